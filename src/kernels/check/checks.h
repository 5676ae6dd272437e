// The checks of kernels against their oracles, one function for those that are launched together.
//
// Each makes random weights and inputs of the compiled dimensions (few rows where a kernel allows
// it), poisons what is written, launches, and compares kernel by kernel: one that takes another's
// output is held to the output found, so that an error is named once, where it arises. Bounds are
// those of products.h and of the comments beside each comparison.
#pragma once

#include "src/kernels/check/checker.h"
#include "src/kernels/cuda/attention.h"
#include "src/kernels/cuda/constants.h"
#include "src/kernels/cuda/decode.h"
#include "src/kernels/cuda/delta.h"
#include "src/kernels/cuda/prefill.h"
#include "src/kernels/cuda/w8a8.h"

namespace moray::check {

// The kernels of one model and the constants they were compiled with.
struct Subject {
  cuda::Constants constants;
  cuda::DecodeKernels decode;
  cuda::AttentionKernels attention;
  cuda::DeltaKernels delta;  // of models that have a delta net
  cuda::PrefillKernels prefill;
  cuda::W8a8Kernels w8a8;  // of models whose shapes they take
};

// Steps of 1..16 tokens (decode_checks.cpp).
void check_embed_step(Checker& checker, const Subject& subject);
void check_norm_project(Checker& checker, const Subject& subject);
void check_project_add(Checker& checker, const Subject& subject);
void check_experts_step(Checker& checker, const Subject& subject);
void check_head(Checker& checker, const Subject& subject);

// Steps and blocks of the mixers (delta_checks.cpp, attention_checks.cpp).
void check_delta(Checker& checker, const Subject& subject);
void check_attention(Checker& checker, const Subject& subject);

// Blocks: rows (rows_checks.cpp), products with BF16 activations (block_checks.cpp) and with FP8
// ones (w8a8_checks.cpp).
void check_embed_rows(Checker& checker, const Subject& subject);
void check_norm_rows(Checker& checker, const Subject& subject);
void check_combine_rows(Checker& checker, const Subject& subject);
void check_route_rows(Checker& checker, const Subject& subject);
void check_quantised_rows(Checker& checker, const Subject& subject);
void check_project_rows(Checker& checker, const Subject& subject);
void check_experts_rows(Checker& checker, const Subject& subject);
void check_w8a8_dense(Checker& checker, const Subject& subject);
void check_w8a8_experts(Checker& checker, const Subject& subject);

}  // namespace moray::check
