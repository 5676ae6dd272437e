#include "src/kernels/cpu/avx512/lanes.h"
#include "src/kernels/cpu/generic/gdn_head.h"
#include "src/kernels/cpu/generic/gdn_input.h"
#include "src/kernels/cpu/tables.h"

namespace moray::cpu {

void fill_gdn_avx512(Kernels& table) {
  table.gdn_input = gdn_input<Lanes>;
  table.gdn_head = gdn_head<Lanes>;
}

}  // namespace moray::cpu
