// Tiny models with golden numbers, and the ways the tests of this folder run and compare them.
//
// Goldens come from tools/make_fixtures.py: FP32 logits of transformers on the same weights. The
// distance used throughout is scale-free: at each position max |difference| / max |golden logit|;
// the largest over the positions counts.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "src/formats/safetensors.h"
#include "src/model/model.h"
#include "src/model/weights.h"

namespace moray {

// FP32 sums in another order: the hidden stream passes about 60 reductions of up to 512 terms, each
// with a relative error of some 1e-7 that a random model amplifies by 10 to 50; transformers itself
// (chunked against recurrent, prefix against whole) stays within 1.4e-5 on these fixtures.
inline constexpr double kFloat32Tolerance = 1e-4;

// Of qwen3_5_moe, then of qwen3_moe: a BF16 or FP8 folder each, as tests/data/README.md says.
inline constexpr const char* kHybridFixtures[] = {"tiny-fused", "tiny-experts", "tiny-fp8"};
inline constexpr const char* kClassicFixtures[] = {"tiny-coder", "tiny-coder-fp8"};
inline constexpr const char* kFixtures[] = {"tiny-fused", "tiny-experts", "tiny-fp8", "tiny-coder",
                                            "tiny-coder-fp8"};

struct Matrix {
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<float> values;
  const float* row(int64_t index) const { return values.data() + index * cols; }
};

struct Fixture {
  std::string name;
  std::shared_ptr<const Weights> weights;
  std::vector<int32_t> tokens;
  Matrix logits;                   // [tokens, V]
  std::vector<float> bfloat16_kl;  // [tokens] KL(logits || transformers in BF16), nats
  // Empty where the fixture has no MTP head.
  std::vector<int32_t> mtp_positions;
  Matrix mtp_logits;                  // [mtp_positions, V]
  std::vector<int32_t> draft_tokens;  // the trunk's choice after the prompt, then the head's
  Matrix draft_logits;                // [drafts, V]

  int64_t vocab() const { return logits.cols; }
  int64_t hidden() const { return weights->config.hidden; }
};

inline std::string data_folder() {
  return std::string(MORAY_SOURCE_DIR) + "/tests/data/";
}

template <typename T>
std::vector<T> read_values(const SafetensorsFile& file, const std::string& name) {
  const auto found = file.header().tensors.find(name);
  if (found == file.header().tensors.end()) return {};
  const std::span<const std::byte> bytes = file.bytes(found->second);
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

inline Matrix read_matrix(const SafetensorsFile& file, const std::string& name) {
  const auto found = file.header().tensors.find(name);
  if (found == file.header().tensors.end()) return {};
  return {found->second.shape[0], found->second.shape[1], read_values<float>(file, name)};
}

inline Fixture load_fixture(const std::string& name) {
  const std::string folder = data_folder() + name;
  auto checkpoint = Checkpoint::open(folder);
  CHECK(checkpoint.ok(), checkpoint.status().message());
  auto weights = load_weights(*checkpoint, {});
  CHECK(weights.ok(), weights.status().message());
  auto golden = SafetensorsFile::open(folder + "/golden.safetensors");
  CHECK(golden.ok(), golden.status().message());
  Fixture fixture;
  fixture.name = name;
  fixture.weights = *weights;
  fixture.tokens = read_values<int32_t>(*golden, "tokens");
  fixture.logits = read_matrix(*golden, "logits");
  fixture.bfloat16_kl = read_values<float>(*golden, "bfloat16_kl");
  fixture.mtp_positions = read_values<int32_t>(*golden, "mtp_positions");
  fixture.mtp_logits = read_matrix(*golden, "mtp_logits");
  fixture.draft_tokens = read_values<int32_t>(*golden, "draft_tokens");
  fixture.draft_logits = read_matrix(*golden, "draft_logits");
  return fixture;
}

// One model being run: threads, workspace and a state that starts empty.
class Runner {
 public:
  Runner(const Weights& weights, Precision precision, int threads = 1, int64_t block_tokens = 256,
         int64_t capacity = 512)
      : Runner(weights, precision, cpu::best_kernels(), threads, block_tokens, capacity) {}
  Runner(const Weights& weights, Precision precision, const cpu::Kernels& kernels, int threads = 1,
         int64_t block_tokens = 256, int64_t capacity = 512)
      : weights_(weights),
        pool_(threads),
        context_(pool_, kernels),
        workspace_(weights.config, block_tokens, capacity, threads),
        state_(weights.config, capacity, precision),
        precision_(precision) {}

  State& state() { return state_; }

  // Feeds tokens in calls of at most block_tokens and returns the logits of all of them; with
  // `hidden`, appends the final hidden states too.
  Matrix feed(std::span<const int32_t> tokens, std::vector<float>* hidden = nullptr) {
    const ModelConfig& c = weights_.config;
    Matrix out{static_cast<int64_t>(tokens.size()), c.vocab_rows, {}};
    out.values.resize(static_cast<size_t>(out.rows * out.cols));
    std::vector<float> states(static_cast<size_t>(out.rows * c.hidden));
    for (int64_t at = 0; at < out.rows; at += workspace_.block_tokens()) {
      const int64_t count = std::min(workspace_.block_tokens(), out.rows - at);
      forward(weights_, context_, workspace_,
              {.tokens = tokens.subspan(static_cast<size_t>(at), static_cast<size_t>(count)),
               .state = &state_,
               .precision = precision_,
               .logit_rows = count,
               .logits = out.values.data() + at * out.cols,
               .hidden = hidden ? states.data() + at * c.hidden : nullptr});
    }
    if (hidden) hidden->insert(hidden->end(), states.begin(), states.end());
    return out;
  }

  // MTP logits of all pairs; `hidden` [tokens, H] is replaced by the head's own.
  Matrix draft(std::span<const int32_t> next_tokens, std::vector<float>& hidden, int64_t position) {
    const ModelConfig& c = weights_.config;
    Matrix out{static_cast<int64_t>(next_tokens.size()), c.vocab_rows, {}};
    out.values.resize(static_cast<size_t>(out.rows * out.cols));
    for (int64_t at = 0; at < out.rows; at += workspace_.block_tokens()) {
      const int64_t count = std::min(workspace_.block_tokens(), out.rows - at);
      std::vector<float> own(static_cast<size_t>(count * c.hidden));
      mtp_forward(
          weights_, context_, workspace_,
          {.next_tokens = next_tokens.subspan(static_cast<size_t>(at), static_cast<size_t>(count)),
           .hidden = hidden.data() + at * c.hidden,
           .state = &state_,
           .position = position + at,
           .precision = precision_,
           .logit_rows = count,
           .logits = out.values.data() + at * out.cols,
           .hidden_out = own.data()});
      std::copy(own.begin(), own.end(), hidden.begin() + at * c.hidden);
    }
    return out;
  }

 private:
  const Weights& weights_;
  ThreadPool pool_;
  cpu::Context context_;
  Workspace workspace_;
  State state_;
  Precision precision_;
};

// The scale-free distance at one position. NaN anywhere counts as infinite.
inline double row_distance(const float* found, const float* golden, int64_t count) {
  double difference = 0;
  double scale = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double d = std::abs(static_cast<double>(found[i]) - golden[i]);
    if (std::isnan(d)) return INFINITY;
    difference = std::max(difference, d);
    scale = std::max(scale, std::abs(static_cast<double>(golden[i])));
  }
  return difference / scale;
}

struct Distance {
  double worst = 0;
  int64_t position = 0;
};

// found holds the logits of golden's rows [begin, begin + found.rows).
inline Distance distance(const Matrix& found, const Matrix& golden, int64_t begin = 0) {
  Distance worst;
  for (int64_t t = 0; t < found.rows; ++t) {
    const double d = row_distance(found.row(t), golden.row(begin + t), golden.cols);
    if (d > worst.worst) worst = {d, begin + t};
  }
  return worst;
}

inline ::testing::AssertionResult close_to(const Matrix& found, const Matrix& golden,
                                           int64_t begin = 0,
                                           double tolerance = kFloat32Tolerance) {
  if (found.cols != golden.cols || found.rows == 0 || begin + found.rows > golden.rows) {
    return ::testing::AssertionFailure() << "rows or columns do not fit";
  }
  const Distance d = distance(found, golden, begin);
  if (d.worst <= tolerance) return ::testing::AssertionSuccess() << "worst " << d.worst;
  return ::testing::AssertionFailure()
         << "position " << d.position << ": distance " << d.worst << ", allowed " << tolerance;
}

inline int64_t argmax(const float* row, int64_t count) {
  return std::max_element(row, row + count) - row;
}

// KL(golden || found) in nats at one position, both as softmax of logits.
inline double kl_divergence(const float* golden, const float* found, int64_t count) {
  const auto log_sum = [&](const float* row) {
    const double top = *std::max_element(row, row + count);
    double sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += std::exp(row[i] - top);
    return top + std::log(sum);
  };
  const double golden_sum = log_sum(golden);
  const double found_sum = log_sum(found);
  double kl = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double log_p = golden[i] - golden_sum;
    kl += std::exp(log_p) * (log_p - (found[i] - found_sum));
  }
  return kl;
}

// "tiny-fp8" as a test name may spell it.
inline std::string fixture_label_of(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}
inline std::string fixture_label(const ::testing::TestParamInfo<const char*>& instance) {
  return fixture_label_of(instance.param);
}

// A seed that a failure prints and MORAY_TEST_SEED repeats.
inline uint32_t fresh_seed() {
  if (const char* fixed = std::getenv("MORAY_TEST_SEED")) {
    return static_cast<uint32_t>(std::strtoul(fixed, nullptr, 10));
  }
  return std::random_device{}();
}

}  // namespace moray
