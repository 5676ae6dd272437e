#include "src/kernels/cpu/generic/elementwise.h"

#include "src/kernels/cpu/avx2/lanes.h"
#include "src/kernels/cpu/generic/moe.h"
#include "src/kernels/cpu/tables.h"

namespace moray::cpu {

void fill_elementwise_avx2(Kernels& table) {
  fill_elementwise<Lanes>(table);
  fill_moe<Lanes>(table);
}

}  // namespace moray::cpu
