// The multi-token-prediction head: guesses token t+2 from the trunk's hidden at t and token t+1.
//
//   u = fc [ norm(embed(token)) | norm(hidden) ];  h = norm(layer(u));  logits = lm_head h
//
// Invariant: the embedding's half comes first, the hidden is the one after the trunk's final norm
// (or the head's own, for further drafts), and the head's KV cache holds one slot a pair.
#include <algorithm>
#include <cstring>

#include "src/model/layer.h"

namespace moray {
namespace {

// Interleaves [tokens, H] rows into the left (0) or right (1) half of pair [tokens, 2H].
void place_half(const float* rows, int64_t tokens, int64_t width, int half, float* pair) {
  for (int64_t t = 0; t < tokens; ++t) {
    std::memcpy(pair + (2 * t + half) * width, rows + t * width,
                static_cast<size_t>(width) * sizeof(float));
  }
}

void norm_half(const Pass& pass, const float* rows, std::span<const float> weight, int half) {
  const ModelConfig& c = pass.weights.config;
  Workspace::Impl& s = pass.workspace;
  cpu::rms_norm(pass.context,
                {.x = rows,
                 .weight = weight.data(),
                 .rows = pass.tokens,
                 .dim = c.hidden,
                 .eps = static_cast<float>(c.rms_norm_eps),
                 .kind = c.zero_centred_norms ? NormKind::kZeroCentred : NormKind::kPlain,
                 .precision = pass.precision,
                 .out = s.x.data()});
  place_half(s.x.data(), pass.tokens, c.hidden, half, s.pair.data());
}

}  // namespace

void mtp_forward(const Weights& weights, const cpu::Context& context, Workspace& workspace,
                 const MtpArgs& args) {
  CHECK(weights.mtp.has_value(), "the model has no MTP head");
  const MtpWeights& mtp = *weights.mtp;
  const auto tokens = static_cast<int64_t>(args.next_tokens.size());
  State::Impl& state = args.state->impl();
  CHECK(tokens > 0 && tokens <= workspace.block_tokens(), tokens, workspace.block_tokens());
  CHECK(args.position >= 0 && args.position <= state.mtp_length, args.position, state.mtp_length);
  CHECK(args.position + tokens <= state.capacity, args.position, tokens, state.capacity);
  CHECK(args.precision == state.precision);
  CHECK(args.logit_rows >= 0 && args.logit_rows <= tokens, args.logit_rows, tokens);
  const Pass pass{weights, context, workspace.impl(), state, tokens, args.position, args.precision};
  Workspace::Impl& s = pass.workspace;
  norm_half(pass, args.hidden, mtp.hidden_norm, 1);
  cpu::embed(context,
             {.table = weights.embedding, .tokens = args.next_tokens, .out = s.residual.data()});
  norm_half(pass, s.residual.data(), mtp.embedding_norm, 0);
  // The head's residual stream starts at u, rounded as any stream: an addition to zero.
  std::fill_n(s.residual.data(), tokens * weights.config.hidden, 0.0f);
  const LinearTarget target{mtp.fc, s.residual.data(), mtp.fc.rows};
  cpu::linear(context, {.x = s.pair.data(),
                        .tokens = tokens,
                        .k = mtp.fc.cols,
                        .targets = {&target, 1},
                        .output = LinearArgs::Output::kAddToResidual,
                        .precision = args.precision,
                        .workspace = s.op});
  const HeadOutputs outputs{args.hidden_out != nullptr ? tokens : args.logit_rows, args.logit_rows,
                            args.logits, args.hidden_out};
  run_layer(pass, mtp.layer, state.kv.size() - 1, outputs.rows);
  run_head(pass, mtp.norm, outputs);
  state.mtp_length = args.position + tokens;
}

}  // namespace moray
