// A delta net on the GPU for tests: kernels of a shape, a sequence's inputs, a state on either
// side, the oracle, a machine that steps and prefills, and how close it must come.
//
// States and outputs are NaN before they are written and end in guards.
#pragma once

#include <gtest/gtest.h>

#include <map>

#include "src/gpu/program.h"
#include "src/kernels/cuda/constants.h"
#include "src/kernels/cuda/delta.h"
#include "src/kernels/cuda/sources.h"
#include "tests/gpu/device.h"
#include "tests/kernels/support.h"

namespace moray::delta_test {

using gpu::DeviceArray;

inline constexpr float kEps = 1e-6f;
inline constexpr double kF16Roundoff = 0x1p-11;

struct Dimensions {
  int key_heads, value_heads, key_dim, value_dim, taps;
  int64_t channels() const { return 2 * key_heads * key_dim + int64_t{value_heads} * value_dim; }
  int64_t width() const { return int64_t{value_heads} * value_dim; }
};

inline const Dimensions kNano{2, 4, 128, 128, 4}, k35b{16, 32, 128, 128, 4};
inline const std::vector<Dimensions> kShapes = {
    kNano, {2, 4, 32, 32, 4}, {2, 4, 16, 32, 4}, {2, 4, 16, 16, 4}, {1, 3, 20, 36, 3}, k35b};

inline std::string trace(const Dimensions& d) {
  return std::to_string(d.key_heads) + "x" + std::to_string(d.key_dim) + " keys, " +
         std::to_string(d.value_heads) + "x" + std::to_string(d.value_dim) + " values";
}

// The kernels of a shape, built once; null when that failed, after saying why.
inline const cuda::DeltaKernels* kernels_of(const Dimensions& d) {
  struct Built {
    std::shared_ptr<const gpu::KernelSet> set;
    cuda::DeltaKernels kernels;
  };
  static std::map<std::string, Built> built;
  if (const auto found = built.find(trace(d)); found != built.end()) return &found->second.kernels;
  const gpu::DeviceInfo& info = gpu::test_device()->info();
  cuda::Constants constants;
  constants.arch = info.arch();
  constants.multiprocessors = info.multiprocessors;
  constants.norm_eps = kEps;
  constants.key_heads = d.key_heads;
  constants.value_heads = d.value_heads;
  constants.key_dim = d.key_dim;
  constants.value_dim = d.value_dim;
  constants.conv_taps = d.taps;
  auto set = gpu::KernelSet::build(gpu::test_device(),
                                   {.sources = cuda::sources(),
                                    .programs = cuda::delta_programs(),
                                    .constants = cuda::constants_text(constants)},
                                   {});
  EXPECT_TRUE(set.ok()) << set.status().message();
  if (!set.ok()) return nullptr;
  Built& entry = built[trace(d)];
  entry.set = *set;
  entry.kernels = cuda::DeltaKernels::find(
      *entry.set, {d.key_heads, d.value_heads, d.key_dim, d.value_dim, d.taps, info.arch()});
  return &entry.kernels;
}

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
            .eps = kEps,
            .precision = Precision::kFloat32,
            .state = state.view(),
            .out = out.data(),
            .workspace = {}});
  return out;
}

inline std::vector<uint16_t> to_bf16(const std::vector<float>& values) {
  std::vector<uint16_t> codes;
  for (float value : values) codes.push_back(float_to_bf16(value));
  return codes;
}

inline std::vector<float> widened(const std::vector<uint16_t>& codes, int64_t begin, int64_t end) {
  std::vector<float> values;
  for (int64_t i = begin; i < end; ++i) values.push_back(bf16_to_float(codes[size_t(i)]));
  return values;
}

// A sequence on the device with a state and outputs of all its tokens.
class Machine {
 public:
  Machine(gpu::Stream& stream, const Sequence& s)
      : stream_(stream),
        s_(s),
        kernels_(*kernels_of(s.d)),
        qkv_(stream, std::span<const float>(s.qkv)),
        z_(stream, std::span<const float>(s.z)),
        b_(stream, std::span<const float>(s.b)),
        a_(stream, std::span<const float>(s.a)),
        qkv_codes_(stream, std::span<const uint16_t>(to_bf16(s.qkv))),
        z_codes_(stream, std::span<const uint16_t>(to_bf16(s.z))),
        conv_(stream, std::span<const float>(s.conv)),
        a_log_(stream, std::span<const float>(s.a_log)),
        dt_bias_(stream, std::span<const float>(s.dt_bias)),
        norm_(stream, std::span<const float>(s.norm)),
        out_(stream, s.qkv.size() / size_t(s.d.channels()) * size_t(s.d.width())),
        step_(stream, 1),
        arrivals_(stream, std::span<const int>(std::vector<int>(size_t(s.d.key_heads)))),
        workspace_(stream, size_t(cuda::delta_prefill_workspace_bytes(kernels_.shape, s.tokens))) {
    set_state(HostState(s.d));
  }

  void set_state(const HostState& state) {
    state_.clear();
    for (const auto& array : state.arrays) {
      state_.push_back(std::make_unique<DeviceArray<float>>(stream_, std::span(array)));
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
    for (int arrivals : arrivals_.read()) EXPECT_EQ(arrivals, 0);
  }
  void set_step(int position, int count) {
    cuda::Step step{};
    step.position = position;
    step.count = count;
    gpu::copy_to_device(stream_, step_.data(), &step, sizeof step);
    EXPECT_TRUE(stream_.synchronize().ok());
  }
  void enqueue_step(int at, int tokens, bool programmatic) {
    const Dimensions& d = s_.d;
    cuda::delta_step(stream_, kernels_,
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
      gpu::fill(stream_, workspace_.data(), 0xff, int64_t(workspace_.size()));
      cuda::delta_prefill(stream_, kernels_,
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

  gpu::Stream& stream_;
  const Sequence& s_;
  const cuda::DeltaKernels& kernels_;
  DeviceArray<float> qkv_, z_, b_, a_;
  DeviceArray<uint16_t> qkv_codes_, z_codes_;
  DeviceArray<float> conv_, a_log_, dt_bias_, norm_;
  DeviceArray<uint16_t> out_;
  DeviceArray<cuda::Step> step_;
  DeviceArray<int> arrivals_;
  DeviceArray<char> workspace_;
  std::vector<std::unique_ptr<DeviceArray<float>>> state_;
};

}  // namespace moray::delta_test
