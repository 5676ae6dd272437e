#include "src/kernels/cpu/generic/attention.h"

#include "src/kernels/cpu/avx2/lanes.h"
#include "src/kernels/cpu/tables.h"

namespace moray::cpu {

void fill_attention_avx2(Kernels& table) {
  fill_attention<Lanes>(table);
}

}  // namespace moray::cpu
