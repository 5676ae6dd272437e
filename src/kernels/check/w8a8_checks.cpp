// Checks of a block's products with FP8 activations: dense ones and both halves of the experts.
#include <numeric>

#include "src/kernels/check/checks.h"
#include "src/kernels/check/weights.h"

namespace moray::check {
namespace {

constexpr float kActivationScale = 0x1p-7f;

// Activations in device memory; the stride of the scales is off the tile on purpose.
struct DeviceRows {
  DeviceArray<uint8_t> codes;
  DeviceArray<float> scales;
  cuda::QuantisedRows view;

  DeviceRows(const Site& site, const Quantised& q)
      : codes(upload(site, q.codes)),
        scales(upload(site, q.scale_columns(q.rows + 5))),
        view{codes.data(), scales.data(), int(q.rows), int(q.cols), int(q.rows + 5)} {}
  DeviceRows(const Site& site, int64_t rows, int64_t cols)
      : codes(site, size_t(rows * cols)),
        scales(site, size_t(cols / kSlice * (rows + 5))),
        view{codes.data(), scales.data(), int(rows), int(cols), int(rows + 5)} {}

  // What a kernel wrote, as another reads it.
  Quantised read() const {
    Quantised q{.rows = view.rows, .cols = view.cols, .codes = codes.read(), .scales = {}};
    const std::vector<float> columns = scales.read();
    for (int64_t r = 0; r < q.rows; ++r)
      for (int64_t s = 0; s < q.slices(); ++s)
        q.scales.push_back(columns[size_t(s * view.scale_stride + r)]);
    return q;
  }
};

// Slice s of row r: codes err by half a step of E4M3, 2^-4 of a normal value, 2^-10 of the scale
// below; the scale's own deviation moves every value of the row by the same share.
void judge_inner(const Quantised& x, int64_t r, const ExpertView& expert, const Quantised& inner,
                 int64_t s, Worst& w) {
  std::vector<Estimate> row;
  double largest = 0, slack = 0;
  for (int64_t i = s * kSlice; i < (s + 1) * kSlice; ++i) {
    row.push_back(swiglu(w8a8_product(x, r, expert.gate, i), w8a8_product(x, r, expert.up, i)));
    largest = std::max(largest, std::abs(row.back().value));
    slack = std::max(slack, row.back().error);
  }
  const double scale = inner.scale(r, s);
  w.take(scale * 448, largest, slack + largest * 8 * kF32Epsilon);
  for (int64_t i = 0; i < kSlice; ++i) {
    const Estimate& expected = row[size_t(i)];
    const double half_step = std::abs(expected.value) * 0x1p-4 + scale * 0x1p-10;
    w.take(inner.at(r, s * kSlice + i), expected.value, half_step * 1.001 + expected.error * 1.07);
  }
}

}  // namespace

void check_w8a8_dense(Checker& checker, const Subject& subject) {
  const int64_t k = subject.constants.hidden;
  const int64_t rows[] = {384, 136};
  const Site& site = checker.site();
  std::vector<OwnedWeights> weights;
  std::vector<DeviceMatrix> matrices;
  for (const int64_t n : rows) {
    weights.push_back(random_weights(checker.random(), DType::kF8E4M3, n, k));
    matrices.emplace_back(site, weights.back().view);
  }
  for (const int tokens : checker.sizes({70}, {1, 64, 129, 300})) {
    const Quantised x = random_quantised(checker.random(), tokens, k, 1, kActivationScale);
    const DeviceRows device_x(site, x);
    for (const auto output : {cuda::W8a8Output::kBf16, cuda::W8a8Output::kAddBf16}) {
      const bool adds = output == cuda::W8a8Output::kAddBf16;
      cuda::W8a8Dense params{};
      params.x = device_x.view;
      params.tokens = tokens;
      params.target_count = 2;
      std::vector<std::vector<float>> before;
      std::vector<DeviceArray<uint16_t>> outs;
      for (size_t i = 0; i < weights.size(); ++i) {
        before.push_back(checker.random().bf16_normals(tokens * rows[i]));
        outs.push_back(adds ? upload(site, bf16_of(before[i]))
                            : DeviceArray<uint16_t>(site, before[i].size()));
        params.targets[i] = {matrices[i].matrix(), outs[i].data(), int(rows[i]), output};
      }
      cuda::w8a8_dense(checker.stream(), subject.w8a8, params);
      for (size_t i = 0; i < weights.size(); ++i) {
        const auto found = floats_of(outs[i].read());
        checker.compare(
            "w8a8_dense", adds ? "a residual" : "an output", tokens * rows[i], k,
            [&](int64_t at, Worst& w) {
              const Estimate sum = w8a8_product(x, at / rows[i], weights[i].view, at % rows[i]);
              const double expected = sum.value + (adds ? before[i][size_t(at)] : 0);
              w.take(found[size_t(at)], expected, sum.error + bf16_rounding(expected, sum.error));
            });
      }
    }
  }
}

// Uneven shares of the rows: no rows, one, a tile less one, a tile and more; then one expert
// without a plan, as the shared one is run.
void check_w8a8_experts(Checker& checker, const Subject& subject) {
  const cuda::Constants& c = subject.constants;
  const Site& site = checker.site();
  Random& random = checker.random();
  const ExpertSet experts(site, random, DType::kF8E4M3, c.hidden, c.expert_dim, c.experts);
  for (const int most : checker.sizes({130}, {1, 64, 129, 257})) {
    std::vector<int> expert_of;
    std::vector<cuda::ExpertTile> tiles;
    const int shares[] = {0, 3, most, 0, 1, 63};
    for (int e = 0; e < std::min<int>(c.experts, int(std::size(shares))); ++e) {
      const int expert = e < 5 ? e : c.experts - 1;
      for (int row = 0; row < shares[e]; row += cuda::kW8a8TileRows) {
        tiles.push_back(
            {expert, int(expert_of.size()) + row, std::min(cuda::kW8a8TileRows, shares[e] - row)});
      }
      expert_of.insert(expert_of.end(), size_t(shares[e]), expert);
    }
    const auto rows = int64_t(expert_of.size());
    const Quantised x = random_quantised(random, rows, c.hidden, 1, kActivationScale);
    std::vector<int> out_row(expert_of.size());
    std::iota(out_row.begin(), out_row.end(), 0);
    for (size_t i = out_row.size(); i > 1; --i) {
      std::swap(out_row[i - 1], out_row[size_t(random.below(int64_t(i)))]);
    }
    const DeviceRows device_x(site, x);
    const auto device_tiles = upload(site, tiles);
    const auto tile_count = upload(site, std::vector<int>{int(tiles.size())});
    const auto device_out_row = upload(site, out_row);
    for (const bool has_plan : {true, false}) {
      const DeviceRows device_inner(site, rows, c.expert_dim);
      const DeviceArray<uint16_t> out(site, size_t(rows * c.hidden));
      cuda::W8a8GateUp up{};
      up.x = device_x.view;
      up.experts = experts.records();
      up.expert_count = has_plan ? c.experts : 1;
      up.tiles = has_plan ? device_tiles.data() : nullptr;
      up.tile_count = has_plan ? tile_count.data() : nullptr;
      up.tokens = int(rows);
      up.inner = device_inner.view;
      cuda::w8a8_gate_up(checker.stream(), subject.w8a8, up);
      cuda::W8a8Down down{};
      down.inner = device_inner.view;
      down.experts = up.experts;
      down.expert_count = up.expert_count;
      down.tiles = up.tiles;
      down.tile_count = up.tile_count;
      down.tokens = int(rows);
      down.out_row = has_plan ? device_out_row.data() : nullptr;
      down.out = out.data();
      down.columns = c.hidden;
      down.out_stride = c.hidden;
      cuda::w8a8_down(checker.stream(), subject.w8a8, down);
      const Quantised inner = device_inner.read();
      const auto found = floats_of(out.read());
      const auto view = [&](int64_t r) -> const ExpertView& {
        return experts.view(has_plan ? expert_of[size_t(r)] : 0);
      };
      checker.compare("w8a8_gate_up", "128 inner columns", rows * inner.slices(),
                      2 * kSlice * c.hidden, [&](int64_t i, Worst& w) {
                        const int64_t r = i / inner.slices();
                        judge_inner(x, r, view(r), inner, i % inner.slices(), w);
                      });
      checker.compare("w8a8_down", "an output", rows * c.hidden, c.expert_dim,
                      [&](int64_t i, Worst& w) {
                        const int64_t r = i / c.hidden, n = i % c.hidden;
                        const int64_t to = has_plan ? out_row[size_t(r)] : r;
                        const Estimate sum = w8a8_product(inner, r, view(r).down, n);
                        w.take(found[size_t(to * c.hidden + n)], sum.value,
                               sum.error + bf16_rounding(sum.value, sum.error));
                      });
    }
  }
}

}  // namespace moray::check
