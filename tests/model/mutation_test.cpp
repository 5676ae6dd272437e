// Faults that engines of this family have really had must show: each is put into a copy of the
// loaded weights, never into the code, and must move the logits at least a hundred times further
// from the goldens than the tolerance allows.
//
// Terms that no weight can switch off (softmax over another axis, the l2 norms, the order of decay
// and update) are the op tests' concern; the goldens cover them, too.
#include <functional>
#include <map>

#include "fixture.h"

namespace moray {
namespace {

constexpr double kWide = 100 * kFloat32Tolerance;

// A copy of a model's weights whose parts may be replaced by arrays owned here.
class Mutant {
 public:
  explicit Mutant(const Weights& original) : weights(original) {}

  std::span<float> own(size_t count) {
    owned_.push_back(std::make_unique<float[]>(count));
    return {owned_.back().get(), count};
  }

  void map(std::span<const float>& values, const std::function<float(float)>& change) {
    const std::span<float> changed = own(values.size());
    std::transform(values.begin(), values.end(), changed.begin(), change);
    values = changed;
  }

  // The matrix in FP32, row-major, as its own memory.
  std::span<float> widen(MatrixView& m) {
    const std::span<float> values = own(static_cast<size_t>(m.rows * m.cols));
    for (int64_t n = 0; n < m.rows; ++n) {
      for (int64_t k = 0; k < m.cols; ++k) values[n * m.cols + k] = element(m, n, k);
    }
    m = {.data = values.data(), .rows = m.rows, .cols = m.cols, .dtype = DType::kF32};
    return values;
  }

  void scale(MatrixView& m, float factor) {
    for (float& value : widen(m)) value *= factor;
  }

  // Row n of the new matrix is row from(n) of the old one.
  void permute_rows(MatrixView& m, const std::function<int64_t(int64_t)>& from) {
    MatrixView old = m;
    const std::span<float> before = widen(old);
    const std::span<float> after = widen(m);
    for (int64_t n = 0; n < m.rows; ++n) {
      std::copy_n(before.data() + from(n) * m.cols, m.cols, after.data() + n * m.cols);
    }
  }

  void permute_columns(MatrixView& m, const std::function<int64_t(int64_t)>& from) {
    MatrixView old = m;
    const std::span<float> before = widen(old);
    const std::span<float> after = widen(m);
    for (int64_t n = 0; n < m.rows; ++n) {
      for (int64_t k = 0; k < m.cols; ++k) after[n * m.cols + k] = before[n * m.cols + from(k)];
    }
  }

  void permute(std::span<const float>& values, const std::function<size_t(size_t)>& from) {
    const std::span<float> changed = own(values.size());
    for (size_t i = 0; i < values.size(); ++i) changed[i] = values[from(i)];
    values = changed;
  }

  // New scales for an FP8 matrix, element (i, j) by change(old scales, i, j); others stay.
  void rescale(MatrixView& m,
               const std::function<float(const float*, int64_t, int64_t, int64_t)>& change) {
    if (m.scales == nullptr) return;
    const int64_t rows = (m.rows + kScaleBlock - 1) / kScaleBlock;
    const int64_t cols = m.scale_cols();
    const std::span<float> changed = own(static_cast<size_t>(rows * cols));
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < cols; ++j) changed[i * cols + j] = change(m.scales, i, j, cols);
    }
    m.scales = changed.data();
  }

  void each_layer(const std::function<void(LayerWeights&)>& change) {
    for (LayerWeights& layer : weights.layers) change(layer);
    if (weights.mtp) change(weights.mtp->layer);
  }
  void each_delta(const std::function<void(DeltaWeights&)>& change) {
    each_layer([&](LayerWeights& layer) {
      if (layer.kind == LayerKind::kGatedDelta) change(layer.delta);
    });
  }
  void each_attention(const std::function<void(AttentionWeights&)>& change) {
    each_layer([&](LayerWeights& layer) {
      if (layer.kind == LayerKind::kFullAttention) change(layer.attention);
    });
  }
  // Every matrix that official repositories hold in FP8.
  void each_projection(const std::function<void(MatrixView&)>& change) {
    each_delta([&](DeltaWeights& d) {
      for (MatrixView* m : {&d.qkv, &d.z, &d.out}) change(*m);
    });
    each_attention([&](AttentionWeights& a) {
      for (MatrixView* m : {&a.q, &a.k, &a.v, &a.o}) change(*m);
    });
  }

  Weights weights;

 private:
  static float element(const MatrixView& m, int64_t n, int64_t k) {
    const auto* bytes =
        static_cast<const std::byte*>(m.data) + (n * m.cols + k) * dtype_bytes(m.dtype);
    uint16_t half = 0;
    float full = 0;
    switch (m.dtype) {
      case DType::kF32:
        std::memcpy(&full, bytes, 4);
        return full;
      case DType::kBF16:
        std::memcpy(&half, bytes, 2);
        return bf16_to_float(half);
      case DType::kF8E4M3:
        return f8e4m3_to_float(static_cast<uint8_t>(*bytes)) *
               m.scales[n / kScaleBlock * m.scale_cols() + k / kScaleBlock];
      default:
        CHECK(false, "no fixture has this dtype");
        return 0;
    }
  }

  std::vector<std::unique_ptr<float[]>> owned_;
};

using Fault = std::function<void(Mutant&)>;

float minus_one(float w) {
  return w - 1;
}

// Value heads in ggml's tiled order (h reads key head h mod nk) instead of the grouped one.
void tile_value_heads(Mutant& m) {
  const ModelConfig& c = m.weights.config;
  const int64_t nk = c.gdn_key_heads;
  const int64_t group = c.gdn_value_heads / nk;
  const auto head = [=](int64_t h) { return h % nk * group + h / nk; };
  const auto element = [=, dv = c.gdn_value_dim](int64_t i) { return head(i / dv) * dv + i % dv; };
  const int64_t keys = 2 * c.gdn_key_total();
  const auto row = [=](int64_t n) { return n < keys ? n : keys + element(n - keys); };
  const auto taps = static_cast<size_t>(c.gdn_conv_taps);
  m.each_delta([&](DeltaWeights& d) {
    m.permute_rows(d.qkv, row);
    m.permute_rows(d.z, element);
    m.permute_rows(d.b, head);
    m.permute_rows(d.a, head);
    m.permute_columns(d.out, element);
    m.permute(d.conv, [&](size_t i) {
      return static_cast<size_t>(row(static_cast<int64_t>(i / taps))) * taps + i % taps;
    });
    const auto of_head = [&](size_t i) { return static_cast<size_t>(head(int64_t(i))); };
    m.permute(d.a_log, of_head);
    m.permute(d.dt_bias, of_head);
  });
}

// The gate as if it were not there: sigmoid(0) = 1/2 with doubled outputs.
void open_output_gate(Mutant& m) {
  const int64_t d = m.weights.config.head_dim;
  m.each_attention([&](AttentionWeights& a) {
    const std::span<float> q = m.widen(a.q);
    for (int64_t n = 0; n < a.q.rows; ++n) {
      if (n % (2 * d) >= d) std::fill_n(q.data() + n * a.q.cols, a.q.cols, 0.0f);
    }
    m.scale(a.o, 2);
  });
}

void rotate_whole_heads(Mutant& m) {
  ModelConfig& c = m.weights.config;
  c.rotary_dim = c.head_dim;
  m.weights.inv_freq.resize(static_cast<size_t>(c.head_dim / 2));
  for (int64_t i = 0; i < c.head_dim / 2; ++i) {
    m.weights.inv_freq[static_cast<size_t>(i)] = static_cast<float>(
        std::pow(c.rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(c.head_dim)));
  }
}

void separate_query_and_gate_blocks(Mutant& m) {
  const int64_t heads = m.weights.config.num_heads;
  const int64_t d = m.weights.config.head_dim;
  m.each_attention([&](AttentionWeights& a) {
    m.permute_rows(a.q, [=](int64_t n) {
      const int64_t head = n / (2 * d);
      const int64_t half = n % (2 * d) / d;
      return half * heads * d + head * d + n % d;
    });
  });
}

// Faults that any family can have.
const std::map<std::string, Fault>& common_faults() {
  static const std::map<std::string, Fault> faults = {
      {"input_norm_less_one",
       [](Mutant& m) { m.each_layer([&](auto& l) { m.map(l.input_norm, minus_one); }); }},
      {"post_norm_less_one",
       [](Mutant& m) { m.each_layer([&](auto& l) { m.map(l.post_norm, minus_one); }); }},
      {"final_norm_less_one", [](Mutant& m) { m.map(m.weights.final_norm, minus_one); }},
      {"query_norm_less_one",
       [](Mutant& m) { m.each_attention([&](auto& a) { m.map(a.q_norm, minus_one); }); }},
      {"key_norm_less_one",
       [](Mutant& m) { m.each_attention([&](auto& a) { m.map(a.k_norm, minus_one); }); }},
      {"rotation_omitted",
       [](Mutant& m) { std::fill(m.weights.inv_freq.begin(), m.weights.inv_freq.end(), 0.0f); }},
      {"top_k_not_renormalised", [](Mutant& m) { m.weights.config.normalise_top_k = false; }},
      {"one_expert_fewer", [](Mutant& m) { m.weights.config.top_k -= 1; }},
      {"expert_gate_and_up_swapped",
       [](Mutant& m) {
         m.each_layer([](auto& l) {
           for (ExpertView& e : l.moe.experts) std::swap(e.gate, e.up);
         });
       }},
  };
  return faults;
}

// Faults of a gated hybrid with zero-centred norms and a shared expert.
const std::map<std::string, Fault>& hybrid_faults() {
  static const std::map<std::string, Fault> faults = {
      {"delta_norm_with_one",
       [](Mutant& m) {
         m.each_delta([&](auto& d) { m.map(d.norm, [](float w) { return w + 1; }); });
       }},
      {"gate_and_query_swapped",
       [](Mutant& m) {
         const int64_t d = m.weights.config.head_dim;
         m.each_attention([&](auto& a) {
           m.permute_rows(a.q, [=](int64_t n) { return n % (2 * d) < d ? n + d : n - d; });
         });
       }},
      {"query_block_then_gate_block", separate_query_and_gate_blocks},
      {"output_gate_omitted", open_output_gate},
      {"rotation_of_whole_heads", rotate_whole_heads},
      {"conv_reversed",
       [](Mutant& m) {
         const auto taps = static_cast<size_t>(m.weights.config.gdn_conv_taps);
         m.each_delta([&](auto& d) {
           m.permute(d.conv, [=](size_t i) { return i / taps * taps + (taps - 1 - i % taps); });
         });
       }},
      {"decay_omitted",
       [](Mutant& m) {
         m.each_delta([&](auto& d) { m.map(d.a_log, [](float) { return -1e30f; }); });
       }},
      {"dt_bias_omitted",
       [](Mutant& m) {
         m.each_delta([&](auto& d) { m.map(d.dt_bias, [](float) { return 0.0f; }); });
       }},
      {"value_heads_tiled", tile_value_heads},
      {"shared_gate_omitted",
       [](Mutant& m) {
         m.each_layer([&](auto& l) {
           m.scale(l.moe.shared_gate, 0);
           m.scale(l.moe.shared.down, 2);
         });
       }},
  };
  return faults;
}

// Faults of a model read as if it were such a hybrid.
const std::map<std::string, Fault>& classic_faults() {
  static const std::map<std::string, Fault> faults = {
      {"norms_with_one", [](Mutant& m) { m.weights.config.zero_centred_norms = true; }},
      {"rotation_of_half_heads",
       [](Mutant& m) {
         m.weights.config.rotary_dim /= 2;
         m.weights.inv_freq.resize(m.weights.inv_freq.size() / 2);
       }},
      {"query_heads_reversed",
       [](Mutant& m) {
         const ModelConfig& c = m.weights.config;
         const auto row = [heads = c.num_heads, d = c.head_dim](int64_t n) {
           return (heads - 1 - n / d) * d + n % d;
         };
         m.each_attention([&](auto& a) { m.permute_rows(a.q, row); });
       }},
  };
  return faults;
}

const std::map<std::string, Fault>& scale_faults() {
  static const std::map<std::string, Fault> faults = {
      {"scales_transposed",
       [](Mutant& m) {
         m.each_projection([&](MatrixView& w) {
           m.rescale(w, [rows = (w.rows + kScaleBlock - 1) / kScaleBlock](const float* s, int64_t i,
                                                                          int64_t j, int64_t cols) {
             const int64_t flat = i * cols + j;  // read as if stored [cols, rows]
             return s[flat % rows * cols + flat / rows];
           });
         });
       }},
      {"scales_as_reciprocals",
       [](Mutant& m) {
         m.each_projection([&](MatrixView& w) {
           m.rescale(w, [](const float* s, int64_t i, int64_t j, int64_t cols) {
             return 1 / s[i * cols + j];
           });
         });
       }},
      {"first_scale_for_all",
       [](Mutant& m) {
         m.each_projection([&](MatrixView& w) {
           m.rescale(w, [](const float* s, int64_t, int64_t, int64_t) { return s[0]; });
         });
       }},
  };
  return faults;
}

const std::map<std::string, Fault>& mtp_faults() {
  static const std::map<std::string, Fault> faults = {
      {"hidden_half_first",
       [](Mutant& m) {
         const int64_t width = m.weights.config.hidden;
         m.permute_columns(m.weights.mtp->fc,
                           [=](int64_t k) { return k < width ? k + width : k - width; });
       }},
      {"embedding_norm_without_one",
       [](Mutant& m) { m.map(m.weights.mtp->embedding_norm, minus_one); }},
      {"hidden_norm_without_one", [](Mutant& m) { m.map(m.weights.mtp->hidden_norm, minus_one); }},
      {"norm_without_one", [](Mutant& m) { m.map(m.weights.mtp->norm, minus_one); }},
  };
  return faults;
}

double trunk_distance(const Weights& weights, const Fixture& fixture) {
  Runner runner(weights, Precision::kFloat32);
  return distance(runner.feed(fixture.tokens), fixture.logits).worst;
}

double mtp_distance(const Weights& weights, const Fixture& fixture, bool hidden_before_norm) {
  Runner runner(weights, Precision::kFloat32);
  std::vector<float> hidden;
  runner.feed(fixture.tokens, &hidden);
  if (hidden_before_norm) {
    // Undo the final norm's weight: what a head fed with the un-normed stream would see, up to a
    // factor a row, which its own norm removes.
    for (size_t i = 0; i < hidden.size(); ++i) {
      hidden[i] /= 1 + weights.final_norm[i % weights.final_norm.size()];
    }
  }
  hidden.resize(hidden.size() - static_cast<size_t>(fixture.hidden()));
  const Matrix found = runner.draft(std::span(fixture.tokens).subspan(1), hidden, 0);
  double worst = 0;
  for (size_t i = 0; i < fixture.mtp_positions.size(); ++i) {
    worst =
        std::max(worst, row_distance(found.row(fixture.mtp_positions[i]),
                                     fixture.mtp_logits.row(static_cast<int64_t>(i)), found.cols));
  }
  return worst;
}

TEST(Mutation, AnUntouchedCopyAgrees) {
  for (const char* name : kFixtures) {
    const Fixture fixture = load_fixture(name);
    Mutant copy(*fixture.weights);
    copy.each_projection([&](MatrixView& m) { copy.widen(m); });
    EXPECT_LE(trunk_distance(copy.weights, fixture), kFloat32Tolerance) << name;
  }
}

void expect_all_show(const std::map<std::string, Fault>& faults, const char* name) {
  const Fixture fixture = load_fixture(name);
  for (const auto& [fault, apply] : faults) {
    Mutant mutant(*fixture.weights);
    apply(mutant);
    EXPECT_GE(trunk_distance(mutant.weights, fixture), kWide) << fault << " in " << name;
  }
}

TEST(Mutation, EveryTrunkFaultShowsInEveryFixture) {
  for (const char* name : kFixtures) expect_all_show(common_faults(), name);
  for (const char* name : kHybridFixtures) expect_all_show(hybrid_faults(), name);
  for (const char* name : kClassicFixtures) expect_all_show(classic_faults(), name);
}

TEST(Mutation, EveryScaleFaultShows) {
  for (const char* name : {"tiny-fp8", "tiny-coder-fp8"}) expect_all_show(scale_faults(), name);
}

TEST(Mutation, EveryMtpFaultShows) {
  for (const char* name : {"tiny-fused", "tiny-fp8"}) {
    const Fixture fixture = load_fixture(name);
    EXPECT_LE(mtp_distance(*fixture.weights, fixture, false), kFloat32Tolerance) << name;
    EXPECT_GE(mtp_distance(*fixture.weights, fixture, true), kWide) << "hidden before the norm";
    for (const auto& [fault, apply] : mtp_faults()) {
      Mutant mutant(*fixture.weights);
      apply(mutant);
      EXPECT_GE(mtp_distance(mutant.weights, fixture, false), kWide) << fault << " in " << name;
    }
  }
}

}  // namespace
}  // namespace moray
