// Who fills the table of inner loops: one function a file of avx2/ and avx512/, each to be called
// only on a machine that has the file's instructions. Declarations only, as in kernels.h.
#pragma once

#include "src/kernels/cpu/kernels.h"

namespace moray::cpu {

void fill_elementwise_avx2(Kernels& table);
void fill_linear_avx2(Kernels& table);
void fill_gdn_avx2(Kernels& table);
void fill_attention_avx2(Kernels& table);

void fill_elementwise_avx512(Kernels& table);
void fill_linear_avx512(Kernels& table);
void fill_gdn_avx512(Kernels& table);
void fill_attention_avx512(Kernels& table);
void fill_linear_avx512_bf16(Kernels& table);  // needs AVX512_BF16 and AVX512_VBMI

}  // namespace moray::cpu
