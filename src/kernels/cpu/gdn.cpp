// gdn: one loop over blocks of tokens (convolution, norms, gates), one over value heads (the delta
// rule), and around them the bookkeeping of the state that all heads share: convolution inputs and
// keys are written by the caller, when no head reads them.
#include "src/kernels/cpu/cpu.h"
#include "src/kernels/cpu/kernels.h"
#include "src/kernels/cpu/partition.h"

namespace moray::cpu {

namespace {

int64_t channels_of(const GdnArgs& args) {
  return 2 * args.key_heads * args.key_dim + args.value_heads * args.value_dim;
}

// Value heads are independent; each worker needs what generic/gdn_head.h carves.
int64_t head_scratch_floats(const GdnArgs& args) {
  return carved(2 * kDeltaChunk * args.value_dim + 2 * kDeltaChunk * kDeltaChunk +
                kDeltaChunk * args.key_dim + 3 * kDeltaChunk);
}

// The taps - 1 inputs before this call, oldest first; zeros before the sequence.
void copy_history(const GdnArgs& args, int64_t channels, float* history) {
  const int64_t count = (args.conv_taps - 1) * channels;
  if (args.position == 0) {
    std::fill(history, history + count, 0.0f);
    return;
  }
  const int64_t row = (args.position - 1) % kDeltaChunk + 1;
  const float* from = args.state.conv_tail + row * channels;
  std::copy(from, from + count, history);
}

// Brings conv_tail to the chunk that is open after this call (layout in ops.h).
void store_tail(const GdnArgs& args, int64_t channels, const float* history) {
  const int64_t before = args.conv_taps - 1, end = args.position + args.tokens;
  const int64_t chunk = (end - 1) / kDeltaChunk * kDeltaChunk;
  // Within the same chunk the older rows stand already.
  const bool opened = chunk >= args.position;
  for (int64_t p = opened ? chunk - before : args.position; p < end; ++p) {
    const int64_t t = p - args.position;
    const float* from = t >= 0 ? args.qkv + t * channels : history + (before + t) * channels;
    std::copy(from, from + channels, args.state.conv_tail + (p - chunk + before) * channels);
  }
}

// The open chunk's keys among this call's tokens.
void store_keys(const GdnArgs& args, int64_t channels, const float* mixed) {
  const int64_t end = args.position + args.tokens, dim = args.key_dim;
  const int64_t chunk = (end - 1) / kDeltaChunk * kDeltaChunk;
  for (int64_t p = std::max(chunk, args.position); p < end; ++p) {
    const float* from = mixed + (p - args.position) * channels + args.key_heads * dim;
    for (int64_t head = 0; head < args.key_heads; ++head) {
      float* to = args.state.keys + (head * kDeltaChunk + p - chunk) * dim;
      std::copy(from + head * dim, from + (head + 1) * dim, to);
    }
  }
}

struct Buffers {
  float* history;  // [taps - 1, channels]
  float* mixed;    // [tokens, channels]
  float* beta;     // [tokens, value_heads]
  float* g;        // [tokens, value_heads]
  float* scratch;
};

void input_block(const Kernels& kernels, const GdnArgs& args, const Buffers& buffers,
                 int64_t begin) {
  const int64_t channels = channels_of(args), before = args.conv_taps - 1;
  const int64_t count = std::min(kGdnBlockTokens, args.tokens - begin);
  const float* rows[kGdnTaps - 1 + kGdnBlockTokens];
  for (int64_t i = 0; i < before + count; ++i) {
    const int64_t t = begin + i - before;
    rows[i] = t >= 0 ? args.qkv + t * channels : buffers.history + (before + t) * channels;
  }
  const int64_t gates = begin * args.value_heads;
  kernels.gdn_input({.rows = rows,
                     .conv_weight = args.conv_weight,
                     .b = args.b + gates,
                     .a = args.a + gates,
                     .a_log = args.a_log,
                     .dt_bias = args.dt_bias,
                     .tokens = count,
                     .taps = args.conv_taps,
                     .key_heads = args.key_heads,
                     .value_heads = args.value_heads,
                     .key_dim = args.key_dim,
                     .value_dim = args.value_dim,
                     .mixed = buffers.mixed + begin * channels,
                     .beta = buffers.beta + gates,
                     .g = buffers.g + gates});
}

void run_head(const Kernels& kernels, const GdnArgs& args, const Buffers& buffers, int64_t head,
              float* scratch) {
  const int64_t dk = args.key_dim, dv = args.value_dim;
  const int64_t key_head = head / (args.value_heads / args.key_heads);
  const float* const q = buffers.mixed + key_head * dk;
  kernels.gdn_head({.q = q,
                    .k = q + args.key_heads * dk,
                    .v = buffers.mixed + 2 * args.key_heads * dk + head * dv,
                    .mixed_stride = channels_of(args),
                    .beta = buffers.beta + head,
                    .g = buffers.g + head,
                    .gate_stride = args.value_heads,
                    .z = args.z + head * dv,
                    .out = args.out + head * dv,
                    .out_stride = args.value_heads * dv,
                    .norm_weight = args.norm_weight,
                    .eps = args.eps,
                    .round = args.precision == Precision::kBfloat16,
                    .tokens = args.tokens,
                    .position = args.position,
                    .key_dim = dk,
                    .value_dim = dv,
                    .s = args.state.s + head * dk * dv,
                    .keys = args.state.keys + key_head * kDeltaChunk * dk,
                    .writes = args.state.writes + head * kDeltaChunk * dv,
                    .log_decay = args.state.log_decay + head * kDeltaChunk,
                    .scratch = scratch});
}

}  // namespace

void gdn(const Context& context, const GdnArgs& args) {
  if (args.tokens == 0) return;
  CHECK(args.key_heads > 0 && args.value_heads % args.key_heads == 0, args.key_heads,
        args.value_heads);
  CHECK(args.conv_taps >= 1 && args.conv_taps <= kGdnTaps, args.conv_taps);
  CHECK(args.position >= 0, args.position);
  const int64_t channels = channels_of(args), scratch_floats = head_scratch_floats(args);
  Carver carver(args.workspace);
  Buffers buffers{};
  buffers.history = carver.take<float>((args.conv_taps - 1) * channels);
  buffers.mixed = carver.take<float>(args.tokens * channels);
  buffers.beta = carver.take<float>(args.tokens * args.value_heads);
  buffers.g = carver.take<float>(args.tokens * args.value_heads);
  buffers.scratch = carver.take<float>(context.pool->thread_count() * scratch_floats);
  copy_history(args, channels, buffers.history);
  store_tail(args, channels, buffers.history);
  context.pool->run(divide_up(args.tokens, kGdnBlockTokens), [&](int64_t block, int) {
    input_block(*context.kernels, args, buffers, block * kGdnBlockTokens);
  });
  context.pool->run(args.value_heads, [&](int64_t head, int worker) {
    run_head(*context.kernels, args, buffers, head, buffers.scratch + worker * scratch_floats);
  });
  store_keys(args, channels, buffers.mixed);
}

}  // namespace moray::cpu

namespace moray {

int64_t gdn_workspace_floats(const GdnArgs& args, int threads) {
  const int64_t channels = cpu::channels_of(args);
  return cpu::kCacheLineFloats + cpu::carved((args.conv_taps - 1) * channels) +
         cpu::carved(args.tokens * channels) + 2 * cpu::carved(args.tokens * args.value_heads) +
         threads * cpu::head_scratch_floats(args);
}

}  // namespace moray
