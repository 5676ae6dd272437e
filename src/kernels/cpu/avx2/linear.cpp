#include "src/kernels/cpu/generic/linear.h"

#include "src/kernels/cpu/avx2/lanes.h"
#include "src/kernels/cpu/tables.h"

namespace moray::cpu {

namespace {

template <class Reader>
void linear_f32(const LinearJob& job) {
  linear_rows<Lanes, F32Engine<Lanes>, Reader>(job, Lanes::set(__builtin_nanf("")));
}

}  // namespace

void fill_linear_avx2(Kernels& table) {
  auto& column = table.linear[static_cast<int>(Engine::kF32)];
  column[kWeightF32] = linear_f32<ReadF32<Lanes>>;
  column[kWeightF16] = linear_f32<ReadF16<Lanes>>;
  column[kWeightBf16] = linear_f32<ReadBf16<Lanes>>;
  column[kWeightFp8] = linear_f32<ReadFp8<Lanes>>;
}

}  // namespace moray::cpu
