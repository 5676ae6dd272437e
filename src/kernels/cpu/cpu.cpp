// The ops before they are fast: each is its oracle.
#include "src/kernels/cpu/cpu.h"

#include "src/kernels/ref/ref.h"

namespace moray {

int64_t linear_workspace_floats(int64_t, int64_t, int) { return 0; }
int64_t gdn_workspace_floats(const GdnArgs&, int) { return 0; }
int64_t attention_workspace_floats(const AttentionArgs&, int) { return 0; }
int64_t route_workspace_floats(int64_t, int64_t, int) { return 0; }
int64_t moe_workspace_floats(const MoeArgs&, int) { return 0; }

}  // namespace moray

namespace moray::cpu {

void embed(const Context&, const EmbedArgs& args) { ref::embed(args); }
void rms_norm(const Context&, const RmsNormArgs& args) { ref::rms_norm(args); }
void linear(const Context&, const LinearArgs& args) { ref::linear(args); }
void gdn(const Context&, const GdnArgs& args) { ref::gdn(args); }
void attention(const Context&, const AttentionArgs& args) { ref::attention(args); }
void route(const Context&, const RouteArgs& args) { ref::route(args); }
void moe(const Context&, const MoeArgs& args) { ref::moe(args); }

}  // namespace moray::cpu
