// A gated delta net for checks: a sequence's inputs, a state on either side, the oracle, and a
// machine that steps and prefills. States and outputs are NaN before they are written.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "src/kernels/check/device_array.h"
#include "src/kernels/check/products.h"
#include "src/kernels/check/random.h"
#include "src/kernels/cuda/delta.h"

namespace moray::check::delta {

inline constexpr double kF16Roundoff = 0x1p-11;

struct Dimensions {
  int key_heads, value_heads, key_dim, value_dim, taps;
  float eps = 1e-6f;
  int64_t channels() const { return 2 * key_heads * key_dim + int64_t{value_heads} * value_dim; }
  int64_t width() const { return int64_t{value_heads} * value_dim; }
};

// Inputs of a sequence, values of BF16 so that steps and prefill read the same, and the weights.
struct Sequence {
  Dimensions d;
  int tokens;
  std::vector<float> qkv, z, b, a, conv, a_log, dt_bias, norm;
};

inline Sequence make_sequence(Random& random, const Dimensions& d, int tokens,
                              float value_scale = 1) {
  Sequence s{d,
             tokens,
             random.bf16_normals(tokens * d.channels()),
             random.bf16_normals(tokens * d.width()),
             random.normals(int64_t{tokens} * d.value_heads),
             random.normals(int64_t{tokens} * d.value_heads),
             random.normals(d.channels() * d.taps),
             random.normals(d.value_heads),
             random.normals(d.value_heads),
             random.normals(d.value_dim)};
  for (int t = 0; t < tokens; ++t) s.a[size_t(t * d.value_heads)] -= 4;  // one slow head
  for (int t = 0; t < tokens; ++t) {
    for (int64_t c = 2 * d.key_heads * d.key_dim; c < d.channels(); ++c) {
      float& value = s.qkv[size_t(t * d.channels() + c)];
      value = round_to_bf16(value * value_scale);
    }
  }
  return s;
}

// A state in host memory, as the oracle takes it.
struct HostState {
  explicit HostState(const Dimensions& of)
      : d(of),
        arrays{poison((of.taps - 1 + kDeltaChunk) * of.channels()),
               poison(int64_t{of.value_heads} * of.key_dim * of.value_dim),
               poison(of.key_heads * kDeltaChunk * of.key_dim),
               poison(of.value_heads * kDeltaChunk * of.value_dim),
               poison(of.value_heads * kDeltaChunk)} {}
  GdnStateView view() {
    return {arrays[0].data(), arrays[1].data(), arrays[2].data(), arrays[3].data(),
            arrays[4].data()};
  }
  // Elements that mean something after `position` tokens, array by array.
  std::vector<std::vector<float>> held(int position) const {
    const int64_t pending = position == 0 ? 0 : (position - 1) % kDeltaChunk + 1;
    std::vector<std::vector<float>> out(arrays.size());
    const int64_t rows[] = {1, 1, d.key_heads, d.value_heads, d.value_heads};
    const int64_t used[] = {(d.taps - 1 + pending) * d.channels(), int64_t(arrays[1].size()),
                            pending * d.key_dim, pending * d.value_dim, pending};
    for (size_t i = 0; i < arrays.size(); ++i) {
      const int64_t size = int64_t(arrays[i].size()) / rows[i];
      for (int64_t row = 0; row < rows[i]; ++row) {
        const auto from = arrays[i].begin() + row * size;
        out[i].insert(out[i].end(), from, from + used[i]);
      }
    }
    return out;
  }

  Dimensions d;
  std::vector<std::vector<float>> arrays;  // conv_tail, s, keys, writes, log_decay

 private:
  static std::vector<float> poison(int64_t count) {
    return std::vector<float>(size_t(count), std::nanf("1"));
  }
};

// The oracle on tokens [begin, end); outputs not rounded.
inline std::vector<float> run_oracle(const Sequence& s, int begin, int end, HostState& state) {
  const Dimensions& d = s.d;
  std::vector<float> out(size_t((end - begin) * d.width()), std::nanf("1"));
  ref::gdn({.qkv = s.qkv.data() + begin * d.channels(),
            .z = s.z.data() + begin * d.width(),
            .b = s.b.data() + begin * d.value_heads,
            .a = s.a.data() + begin * d.value_heads,
            .tokens = end - begin,
            .position = begin,
            .conv_weight = s.conv.data(),
            .a_log = s.a_log.data(),
            .dt_bias = s.dt_bias.data(),
            .norm_weight = s.norm.data(),
            .key_heads = d.key_heads,
            .value_heads = d.value_heads,
            .key_dim = d.key_dim,
            .value_dim = d.value_dim,
            .conv_taps = d.taps,
            .eps = d.eps,
            .precision = Precision::kFloat32,
            .state = state.view(),
            .out = out.data(),
            .workspace = {}});
  return out;
}

// A step computes in FP32. Outputs are o / rms(o) times norm and silu(z); o and its parts are sums
// of at most key_dim + 64 products (rounding: about (key_dim / 8 + 64) epsilons of the magnitudes),
// and the division by rms(o) may enlarge that where o is small beside its parts: a factor of 64 is
// allowed for it. Then BF16 rounds by half a spacing.
inline double step_bound(const Dimensions& d, double expected) {
  const double relative = 64 * (d.key_dim / 8.0 + 64) * kF32Epsilon;
  return (relative + kBf16Spacing / 2) * std::abs(expected) + relative;
}

// Of what prefill leaves, S and the writes carry F16 roundoff (a few u, of the largest), keys and
// decays only that of FP32; inputs are copied. Relative to an array's largest value.
inline constexpr const char* kStateNames[] = {"conv_tail", "s", "keys", "writes", "log_decay"};
inline constexpr double kStateBounds[] = {0, 16 * kF16Roundoff, 64 * kF32Epsilon, 16 * kF16Roundoff,
                                          256 * kF32Epsilon};

// A sequence on the device with a state and outputs of all its tokens.
class Machine {
 public:
  Machine(const Site& site, const cuda::DeltaKernels& kernels, const Sequence& s)
      : site_(site),
        s_(s),
        kernels_(kernels),
        qkv_(upload(site, s.qkv)),
        z_(upload(site, s.z)),
        b_(upload(site, s.b)),
        a_(upload(site, s.a)),
        qkv_codes_(upload(site, bf16_of(s.qkv))),
        z_codes_(upload(site, bf16_of(s.z))),
        conv_(upload(site, s.conv)),
        a_log_(upload(site, s.a_log)),
        dt_bias_(upload(site, s.dt_bias)),
        norm_(upload(site, s.norm)),
        out_(site, s.qkv.size() / size_t(s.d.channels()) * size_t(s.d.width())),
        step_(site, 1),
        arrivals_(upload(site, std::vector<int>(size_t(s.d.key_heads)))),
        workspace_(site, size_t(cuda::delta_prefill_workspace_bytes(kernels_.shape, s.tokens))) {
    set_state(HostState(s.d));
  }

  void set_state(const HostState& state) {
    state_.clear();
    for (const auto& array : state.arrays) {
      state_.push_back(std::make_unique<DeviceArray<float>>(site_, std::span(array)));
    }
  }
  HostState state() const {
    HostState state(s_.d);
    for (size_t i = 0; i < state_.size(); ++i) state.arrays[i] = state_[i]->read();
    return state;
  }
  std::vector<uint16_t> out() const { return out_.read(); }

  // Tokens [begin, end) in steps of the given sizes, over and over.
  void step(int begin, int end, const std::vector<int>& sizes) {
    size_t next = 0;
    for (int at = begin; at < end;) {
      const int count = std::min(sizes[next++ % sizes.size()], end - at);
      set_step(at, count);
      enqueue_step(at, cuda::kStepTokensMax, false);
      at += count;
    }
    for (const int arrivals : arrivals_.read()) {
      if (arrivals == 0) continue;
      site_.note(Status(StatusCode::kUnsupported, "left arrivals that were not zero"));
    }
  }
  void set_step(int position, int count) {
    cuda::Step step{};
    step.position = position;
    step.count = count;
    gpu::copy_to_device(site_.stream, step_.data(), &step, sizeof step);
    site_.note(site_.stream.synchronize());
  }
  void enqueue_step(int at, int tokens, bool programmatic) {
    const Dimensions& d = s_.d;
    cuda::delta_step(site_.stream, kernels_,
                     {.step = step_.data(),
                      .qkv = qkv_.data() + at * d.channels(),
                      .z = z_.data() + at * d.width(),
                      .b = b_.data() + at * d.value_heads,
                      .a = a_.data() + at * d.value_heads,
                      .weights = weights(),
                      .state = view(),
                      .arrivals = arrivals_.data(),
                      .out = out_.data() + at * d.width(),
                      .tokens = tokens},
                     programmatic);
  }
  void prefill(int begin, int end, const std::vector<int>& sizes) {
    const Dimensions& d = s_.d;
    size_t next = 0;
    for (int at = begin; at < end;) {
      const int count = std::min(sizes[next++ % sizes.size()], end - at);
      gpu::fill(site_.stream, workspace_.data(), 0xff, int64_t(workspace_.size()));
      cuda::delta_prefill(site_.stream, kernels_,
                          {.qkv = qkv_codes_.data() + at * d.channels(),
                           .z = z_codes_.data() + at * d.width(),
                           .b = b_.data() + at * d.value_heads,
                           .a = a_.data() + at * d.value_heads,
                           .weights = weights(),
                           .state = view(),
                           .workspace = workspace_.data(),
                           .out = out_.data() + at * d.width(),
                           .position = at,
                           .tokens = count});
      at += count;
    }
    workspace_.read();
  }

 private:
  cuda::DeltaWeights weights() const {
    return {conv_.data(), a_log_.data(), dt_bias_.data(), norm_.data()};
  }
  cuda::DeltaState view() const {
    return {state_[0]->data(), state_[1]->data(), state_[2]->data(), state_[3]->data(),
            state_[4]->data()};
  }

  Site site_;
  const Sequence& s_;
  cuda::DeltaKernels kernels_;
  DeviceArray<float> qkv_, z_, b_, a_;
  DeviceArray<uint16_t> qkv_codes_, z_codes_;
  DeviceArray<float> conv_, a_log_, dt_bias_, norm_;
  DeviceArray<uint16_t> out_;
  DeviceArray<cuda::Step> step_;
  DeviceArray<int> arrivals_;
  DeviceArray<char> workspace_;
  std::vector<std::unique_ptr<DeviceArray<float>>> state_;
};

}  // namespace moray::check::delta
