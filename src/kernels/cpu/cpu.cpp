// The ops that are still their oracles.
#include "src/kernels/cpu/cpu.h"

#include "src/kernels/ref/ref.h"

namespace moray {

int64_t attention_workspace_floats(const AttentionArgs&, int) { return 0; }

}  // namespace moray

namespace moray::cpu {

void attention(const Context&, const AttentionArgs& args) { ref::attention(args); }

}  // namespace moray::cpu
