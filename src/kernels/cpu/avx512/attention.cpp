#include "src/kernels/cpu/generic/attention.h"

#include "src/kernels/cpu/avx512/lanes.h"
#include "src/kernels/cpu/tables.h"

namespace moray::cpu {

void fill_attention_avx512(Kernels& table) {
  fill_attention<Lanes>(table);
}

}  // namespace moray::cpu
