// Plain oracles of src/kernels/ops.h: what every fast op must equal within its stated tolerance.
//
// Invariant: written as the formula reads, one thread, sums in double, rounded where the contract
// rounds and nowhere else; workspace is not used. Shipped for tests and the debug path only.
#pragma once

#include "src/kernels/ops.h"

namespace moray::ref {

void embed(const EmbedArgs& args);
void rms_norm(const RmsNormArgs& args);
void linear(const LinearArgs& args);
void gdn(const GdnArgs& args);
void attention(const AttentionArgs& args);
void route(const RouteArgs& args);
void moe(const MoeArgs& args);

// W[row, col], exactly: FP8 codes times their block's scale in double.
double weight_at(const MatrixView& weight, int64_t row, int64_t col);

// What the contract's round() does: to BF16 under kBfloat16, to FP32 otherwise.
float round_to(Precision precision, double value);

double sigmoid(double x);
double silu(double x);

}  // namespace moray::ref
