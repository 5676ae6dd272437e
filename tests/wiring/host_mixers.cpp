// Stand-ins of the delta net's and attention's launchers, by the oracles of src/kernels/ref.
#include <algorithm>
#include <vector>

#include "src/kernels/cuda/attention.h"
#include "src/kernels/cuda/delta.h"
#include "tests/wiring/host_device.h"
#include "tests/wiring/host_math.h"

namespace moray::cuda {
namespace {

int64_t aligned(int64_t bytes) {
  return (bytes + 255) / 256 * 256;
}

int64_t floats_of(const DeltaShape& s, int part) {
  const int64_t parts[] = {int64_t{s.taps - 1 + kDeltaChunkTokens} * s.channels(),
                           int64_t{s.value_heads} * s.key_dim * s.value_dim,
                           int64_t{s.key_heads} * kDeltaChunkTokens * s.key_dim,
                           int64_t{s.value_heads} * kDeltaChunkTokens * s.value_dim,
                           int64_t{s.value_heads} * kDeltaChunkTokens};
  return parts[part];
}

void run_delta(const DeltaShape& s, const float* qkv, const float* z, const float* b,
               const float* a, const DeltaWeights& w, const DeltaState& state, int64_t position,
               int64_t tokens, uint16_t* out) {
  HostRow result(static_cast<size_t>(tokens * s.value_heads * s.value_dim));
  GdnArgs args{};
  args.qkv = qkv;
  args.z = z;
  args.b = b;
  args.a = a;
  args.tokens = tokens;
  args.position = position;
  args.conv_weight = w.conv;
  args.a_log = w.a_log;
  args.dt_bias = w.dt_bias;
  args.norm_weight = w.norm;
  args.key_heads = s.key_heads;
  args.value_heads = s.value_heads;
  args.key_dim = s.key_dim;
  args.value_dim = s.value_dim;
  args.conv_taps = s.taps;
  args.eps = host_constants().eps;
  args.precision = Precision::kBfloat16;
  args.state = {state.conv_tail, state.s, state.keys, state.writes, state.log_decay};
  args.out = result.data();
  ref::gdn(args);
  to_bf16(result, out);
}

// An FP8 cache's rows [0, end) of every head as BF16 keys or values, and back.
std::vector<uint16_t> unpack(const void* codes, const float* scales, int capacity, int64_t end) {
  const HostConstants& c = host_constants();
  std::vector<uint16_t> rows(size_t(c.kv_heads) * size_t(capacity) * size_t(c.head_dim));
  for (int64_t head = 0; head < c.kv_heads; ++head) {
    for (int64_t at = head * capacity; at < head * capacity + end; ++at) {
      for (int64_t i = at * c.head_dim; i < (at + 1) * c.head_dim; ++i) {
        rows[size_t(i)] =
            float_to_bf16(f8e4m3_to_float(static_cast<const uint8_t*>(codes)[i]) * scales[at]);
      }
    }
  }
  return rows;
}
void pack(const std::vector<uint16_t>& rows, int capacity, int64_t begin, int64_t end, void* codes,
          float* scales) {
  const HostConstants& c = host_constants();
  for (int64_t head = 0; head < c.kv_heads; ++head) {
    for (int64_t at = head * capacity + begin; at < head * capacity + end; ++at) {
      float most = 0;
      for (int64_t i = at * c.head_dim; i < (at + 1) * c.head_dim; ++i) {
        most = std::max(most, std::fabs(bf16_to_float(rows[size_t(i)])));
      }
      scales[at] = most / 448;
      for (int64_t i = at * c.head_dim; i < (at + 1) * c.head_dim; ++i) {
        static_cast<uint8_t*>(codes)[i] =
            float_to_f8e4m3(most > 0 ? bf16_to_float(rows[size_t(i)]) * (448 / most) : 0);
      }
    }
  }
}

void run_attention(const float* q_gate, const float* k, const float* v, const AttentionWeights& w,
                   const KvCache& cache, int64_t position, int64_t tokens, uint16_t* out) {
  const HostConstants& c = host_constants();
  HostRow result(static_cast<size_t>(tokens * c.heads * c.head_dim));
  AttentionArgs args{};
  args.q_gate = q_gate;
  args.k = k;
  args.v = v;
  args.tokens = tokens;
  args.position = position;
  args.q_norm = w.q_norm;
  args.k_norm = w.k_norm;
  args.inv_freq = w.inv_freq;
  args.rope_scale = c.rope_scale;
  args.heads = c.heads;
  args.kv_heads = c.kv_heads;
  args.head_dim = c.head_dim;
  args.rotary_dim = c.rotary_dim;
  args.has_gate = c.has_gate;
  args.eps = c.eps;
  args.norm_kind = c.zero_centred_norms ? NormKind::kZeroCentred : NormKind::kPlain;
  args.precision = Precision::kBfloat16;
  args.cache = {cache.keys, cache.values, cache.capacity, DType::kBF16};
  args.out = result.data();
  if (cache.key_scales != nullptr) {
    auto keys = unpack(cache.keys, cache.key_scales, cache.capacity, position);
    auto values = unpack(cache.values, cache.value_scales, cache.capacity, position);
    args.cache.keys = keys.data();
    args.cache.values = values.data();
    ref::attention(args);
    pack(keys, cache.capacity, position, position + tokens, cache.keys, cache.key_scales);
    pack(values, cache.capacity, position, position + tokens, cache.values, cache.value_scales);
  } else {
    ref::attention(args);
  }
  to_bf16(result, out);
}

}  // namespace

DeltaKernels DeltaKernels::find(const gpu::KernelSet&, const DeltaShape& shape) {
  DeltaKernels kernels{};
  kernels.shape = shape;
  return kernels;
}
int64_t delta_state_bytes(const DeltaShape& shape) {
  int64_t bytes = 0;
  for (int part = 0; part < 5; ++part) bytes += aligned(4 * floats_of(shape, part));
  return bytes;
}
DeltaState delta_state_at(const DeltaShape& shape, char* base) {
  float* parts[5];
  for (int part = 0; part < 5; ++part) {
    parts[part] = reinterpret_cast<float*>(base);
    base += aligned(4 * floats_of(shape, part));
  }
  return {parts[0], parts[1], parts[2], parts[3], parts[4]};
}
int64_t delta_arrivals_bytes(const DeltaShape& shape) {
  return 4 * shape.key_heads;
}
int64_t delta_prefill_workspace_bytes(const DeltaShape&, int64_t tokens) {
  return 256 * tokens;
}

void delta_step(gpu::Stream& stream, const DeltaKernels& kernels, const DeltaStepParams& params,
                bool) {
  // A token at a time, so that its result does not depend on the others: the oracle keeps doubles
  // within a call.
  gpu::enqueue(stream, [p = params, shape = kernels.shape] {
    const int64_t values = int64_t{shape.value_heads} * shape.value_dim;
    for (int64_t t = 0; t < p.step->count; ++t) {
      run_delta(shape, p.qkv + t * shape.channels(), p.z + t * values, p.b + t * shape.value_heads,
                p.a + t * shape.value_heads, p.weights, p.state, p.step->position + t, 1,
                p.out + t * values);
    }
  });
}

void delta_prefill(gpu::Stream& stream, const DeltaKernels& kernels,
                   const DeltaPrefillParams& params) {
  gpu::enqueue(stream, [p = params, shape = kernels.shape] {
    const HostRow qkv = from_bf16(p.qkv, int64_t{p.tokens} * shape.channels());
    const HostRow z = from_bf16(p.z, int64_t{p.tokens} * shape.value_heads * shape.value_dim);
    run_delta(shape, qkv.data(), z.data(), p.b, p.a, p.weights, p.state, p.position, p.tokens,
              p.out);
  });
}

AttentionKernels AttentionKernels::find(const gpu::KernelSet&, const AttentionShape& shape) {
  AttentionKernels kernels{};
  kernels.shape = shape;
  return kernels;
}
std::vector<std::string> attention_programs(const AttentionShape&) {
  return {};
}
int64_t attention_step_workspace_bytes(const AttentionShape&, int tokens) {
  return 256 * tokens;
}
int64_t attention_arrivals_bytes(const AttentionShape& shape) {
  return 8 * shape.kv_heads;
}

void attention_step(gpu::Stream& stream, const AttentionKernels&, int,
                    const AttentionStepParams& params, bool) {
  gpu::enqueue(stream, [p = params] {
    run_attention(p.q_gate, p.k, p.v, p.weights, p.cache, p.step->position, p.step->count, p.out);
  });
}

void attention_prefill(gpu::Stream& stream, const AttentionKernels&,
                       const AttentionPrefillParams& params) {
  gpu::enqueue(stream, [p = params] {
    const HostConstants& c = host_constants();
    const int64_t width = int64_t{c.heads} * c.head_dim * (c.has_gate ? 2 : 1);
    const HostRow q = from_bf16(p.q_gate, p.tokens * width);
    const HostRow k = from_bf16(p.k, int64_t{p.tokens} * c.kv_heads * c.head_dim);
    const HostRow v = from_bf16(p.v, int64_t{p.tokens} * c.kv_heads * c.head_dim);
    run_attention(q.data(), k.data(), v.data(), p.weights, p.cache, p.position, p.tokens, p.out);
  });
}

}  // namespace moray::cuda
