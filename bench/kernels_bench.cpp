// bench_kernels [--threads N] [--cpu avx2|avx512] [--cpu-time] [FILTER]: what each CPU op does with
// its bytes.
//
// Cases: linear, moe, gdn, attention at the dimensions of moray-nano and of the 35B model, decode
// (1 token) and prefill (256 tokens); `step` strings the ops of all nano layers together as a
// decode step or a prefill block does. Weights are rotated over more memory than the caches hold
// (nano: over a whole model's worth, as decoding does). Columns: median us, spread (10th to 90th
// percentile), GB/s and GFLOP/s, and the share of a plain summing read of the same bytes by the
// same threads in the same run. --cpu-time counts the caller's CPU time instead of wall time: use
// it with --threads 1 on a machine that others use, too.
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "src/kernels/cpu/cpu.h"
#include "src/kernels/cpu/kernels.h"
#include "src/tensor/normal_tiles.h"

namespace moray {
namespace {

double now_us(clockid_t clock) {
  timespec time;
  clock_gettime(clock, &time);
  return double(time.tv_sec) * 1e6 + double(time.tv_nsec) * 1e-3;
}

struct Piece {
  const void* data;
  int64_t bytes;
};

// One measurable thing; run(i) uses the i-th copy of its weights, pieces(i) are the bytes it reads.
struct Case {
  std::string name;
  double flops;
  int copies;
  std::function<void(int)> run;
  std::function<std::vector<Piece>(int)> pieces;
};

class Weights {
 public:
  explicit Weights(unsigned seed) : random_(seed) {}

  MatrixView matrix(DType dtype, int64_t rows, int64_t cols) {
    MatrixView view{.rows = rows, .cols = cols, .dtype = dtype};
    auto& bytes = bytes_.emplace_back(size_t(rows * cols * dtype_bytes(dtype)));
    for (size_t i = 0; i + 8 <= bytes.size(); i += 8) {
      // FP8: normal numbers, as 19 of 20 tiles of a trained matrix have; BF16: the exponent kept
      // near 1.
      uint64_t bits = (random_() & 0xf6f6f6f6f6f6f6f6u) | 0x0808080808080808u;
      if (dtype == DType::kBF16) bits = (bits & 0x807f807f807f807fu) | 0x3c003c003c003c00u;
      std::memcpy(&bytes[i], &bits, 8);
    }
    view.data = bytes.data();
    if (dtype == DType::kF8E4M3) {
      const int64_t blocks = (rows + 127) / 128 * view.scale_cols();
      view.scales = scales_.emplace_back(size_t(blocks), 1e-3f).data();
      auto& tiles = tiles_.emplace_back(size_t(normal_tile_count(view)));
      find_normal_tiles(view, tiles.data());
      view.normal_tiles = tiles.data();
    }
    pieces_.push_back({view.data, int64_t(bytes.size())});
    return view;
  }
  float* floats(int64_t count) {
    auto& values = scales_.emplace_back(size_t(count));
    std::normal_distribution<float> normal;
    for (float& value : values) value = round_to_bf16(normal(random_));
    return values.data();
  }
  const std::vector<Piece>& pieces() const { return pieces_; }
  int64_t bytes() const {
    int64_t sum = 0;
    for (const Piece& piece : pieces_) sum += piece.bytes;
    return sum;
  }

 private:
  std::mt19937_64 random_;
  std::vector<std::vector<char>> bytes_;
  std::vector<std::vector<float>> scales_;
  std::vector<std::vector<uint8_t>> tiles_;
  std::vector<Piece> pieces_;
};

struct Sizes {
  std::string name;
  int64_t hidden, nk, nv, heads, kv_heads, experts, top_k, inner, vocab;
};
const Sizes kNano{"nano", 256, 2, 4, 4, 2, 32, 4, 128, 8192};
const Sizes k35b{"35B", 2048, 16, 32, 16, 2, 24, 8, 512, 8192};  // few experts, part of the head

// One sequence mixer and experts of a model with these sizes.
struct Layer {
  Weights weights;
  bool full;
  std::vector<MatrixView> in;
  MatrixView out, gate, shared_gate;
  std::vector<ExpertView> experts;
  ExpertView shared;
  float *conv, *a_log, *dt_bias, *norm, *head_norm, *inv_freq;
  std::vector<float> tail, s, keys, writes, decay;
  std::vector<uint16_t> cache_k, cache_v;

  Layer(const Sizes& z, bool attends, unsigned seed) : weights(seed), full(attends) {
    const DType f8 = DType::kF8E4M3, bf = DType::kBF16;
    const int64_t c = (2 * z.nk + z.nv) * 128;
    if (full) {
      in = {weights.matrix(f8, z.heads * 512, z.hidden),
            weights.matrix(f8, z.kv_heads * 256, z.hidden),
            weights.matrix(f8, z.kv_heads * 256, z.hidden)};
      out = weights.matrix(f8, z.hidden, z.heads * 256);
      cache_k.resize(size_t(z.kv_heads * kContext * 256), 0x3c00);
      cache_v = cache_k;
    } else {
      in = {weights.matrix(f8, c, z.hidden), weights.matrix(f8, z.nv * 128, z.hidden),
            weights.matrix(bf, z.nv, z.hidden), weights.matrix(bf, z.nv, z.hidden)};
      out = weights.matrix(f8, z.hidden, z.nv * 128);
      tail.resize(size_t(67 * c));
      s.resize(size_t(z.nv * 128 * 128));
      keys.resize(size_t(z.nk * 64 * 128));
      writes.resize(size_t(z.nv * 64 * 128));
      decay.resize(size_t(z.nv * 64));
    }
    gate = weights.matrix(bf, z.experts, z.hidden);
    shared_gate = weights.matrix(bf, 1, z.hidden);
    for (int64_t e = 0; e <= z.experts; ++e) {
      const ExpertView view{weights.matrix(f8, z.inner, z.hidden),
                            weights.matrix(f8, z.inner, z.hidden),
                            weights.matrix(f8, z.hidden, z.inner)};
      e < z.experts ? experts.push_back(view) : void(shared = view);
    }
    conv = weights.floats(c * 4);
    a_log = weights.floats(z.nv);
    dt_bias = weights.floats(z.nv);
    norm = weights.floats(z.hidden);
    head_norm = weights.floats(256);
    inv_freq = weights.floats(32);
  }
  static constexpr int64_t kContext = 8192 + 512;
};

// A sequence's activations and the ops of a layer over them.
struct Stream {
  const cpu::Context context;
  const Sizes z;
  int64_t tokens, position;
  Weights memory{7};
  float *hidden, *normed, *qkv, *zz, *b, *a, *mixed, *expert_weights, *shared_weight, *logits;
  std::vector<int32_t> ids;
  std::vector<float> workspace;

  Stream(const cpu::Context& c, const Sizes& sizes, int64_t count, int64_t at)
      : context(c), z(sizes), tokens(count), position(at), ids(size_t(count * sizes.top_k)) {
    hidden = memory.floats(count * z.hidden);
    normed = memory.floats(count * z.hidden);
    const int64_t widest = std::max((2 * z.nk + z.nv) * 128, z.heads * 512);
    qkv = memory.floats(count * widest);
    zz = memory.floats(count * std::max(z.nv * 128, z.kv_heads * 256));
    b = memory.floats(count * std::max(z.nv, z.kv_heads * 256));
    a = memory.floats(count * z.nv);
    mixed = memory.floats(count * std::max(z.nv * 128, z.heads * 256));
    expert_weights = memory.floats(count * z.top_k);
    shared_weight = memory.floats(count);
    logits = memory.floats(z.vocab);
    workspace.resize(size_t(1) << 24);
  }

  void norm(Layer& l, float* out) {
    cpu::rms_norm(context, {.x = hidden,
                            .weight = l.norm,
                            .rows = tokens,
                            .dim = z.hidden,
                            .eps = 1e-6f,
                            .kind = NormKind::kZeroCentred,
                            .precision = Precision::kBfloat16,
                            .out = out});
  }
  void multiply(const float* x, int64_t count, int64_t k, std::vector<LinearTarget> targets,
                LinearArgs::Output output = LinearArgs::Output::kStore) {
    cpu::linear(context, {.x = x,
                          .tokens = count,
                          .k = k,
                          .targets = targets,
                          .output = output,
                          .precision = Precision::kBfloat16,
                          .workspace = workspace});
  }
  void project_in(Layer& l) {
    std::vector<LinearTarget> targets;
    float* outputs[] = {qkv, zz, b, a};
    for (size_t i = 0; i < l.in.size(); ++i) targets.push_back({l.in[i], outputs[i], l.in[i].rows});
    multiply(normed, tokens, z.hidden, targets);
  }
  void project_out(Layer& l) {
    multiply(mixed, tokens, l.out.cols, {{l.out, hidden, z.hidden}},
             LinearArgs::Output::kAddToResidual);
    // Random weights would let the residual grow without bound; keep it where the values are usual.
    for (int64_t i = 0; i < tokens * z.hidden; ++i) hidden[i] = i % 7 * 0.25f;
  }
  void gdn(Layer& l) {
    cpu::gdn(context,
             {.qkv = qkv,
              .z = zz,
              .b = b,
              .a = a,
              .tokens = tokens,
              .position = position,
              .conv_weight = l.conv,
              .a_log = l.a_log,
              .dt_bias = l.dt_bias,
              .norm_weight = l.head_norm,
              .key_heads = z.nk,
              .value_heads = z.nv,
              .key_dim = 128,
              .value_dim = 128,
              .conv_taps = 4,
              .eps = 1e-6f,
              .precision = Precision::kBfloat16,
              .state = {l.tail.data(), l.s.data(), l.keys.data(), l.writes.data(), l.decay.data()},
              .out = mixed,
              .workspace = workspace});
  }
  void attention(Layer& l) {
    cpu::attention(context,
                   {.q_gate = qkv,
                    .k = zz,
                    .v = b,
                    .tokens = tokens,
                    .position = position,
                    .q_norm = l.head_norm,
                    .k_norm = l.head_norm,
                    .inv_freq = l.inv_freq,
                    .rope_scale = 1,
                    .heads = z.heads,
                    .kv_heads = z.kv_heads,
                    .head_dim = 256,
                    .rotary_dim = 64,
                    .has_gate = true,
                    .eps = 1e-6f,
                    .norm_kind = NormKind::kZeroCentred,
                    .precision = Precision::kBfloat16,
                    .cache = {l.cache_k.data(), l.cache_v.data(), Layer::kContext, DType::kBF16},
                    .out = mixed,
                    .workspace = workspace});
  }
  void route(Layer& l) {
    cpu::route(context, {.x = normed,
                         .tokens = tokens,
                         .gate = l.gate,
                         .shared_gate = l.shared_gate,
                         .top_k = z.top_k,
                         .normalise = true,
                         .expert_ids = ids.data(),
                         .expert_weights = expert_weights,
                         .shared_weight = shared_weight,
                         .workspace = workspace});
  }
  // Random routers prefer few experts: ids are spread as a balanced model's are, anew each turn.
  int32_t expert_of(int64_t token, int64_t slot, int64_t layer, int64_t turn) const {
    return int32_t((token * 7 + slot * 5 + layer * 11 + turn * 3) % z.experts);
  }
  void moe(Layer& l, int64_t layer, int64_t turn) {
    for (int64_t i = 0; i < int64_t(ids.size()); ++i) {
      ids[size_t(i)] = expert_of(i / z.top_k, i % z.top_k, layer, turn);
    }
    cpu::moe(context, {.x = normed,
                       .tokens = tokens,
                       .hidden = z.hidden,
                       .experts = l.experts,
                       .shared = l.shared,
                       .top_k = z.top_k,
                       .expert_ids = ids.data(),
                       .expert_weights = expert_weights,
                       .shared_weight = shared_weight,
                       .precision = Precision::kBfloat16,
                       .residual = hidden,
                       .workspace = workspace});
  }
  void layer(Layer& l, int64_t index, int64_t turn) {
    norm(l, normed);
    project_in(l);
    l.full ? attention(l) : gdn(l);
    project_out(l);
    norm(l, normed);
    route(l);
    moe(l, index, turn);
  }
};

// Median time of a call in microseconds, over about 0.3 s; copies are used in turn.
struct Timing {
  double median_us, low_us, high_us;
};
Timing measure(const std::function<void(int)>& run, int copies, clockid_t clock) {
  std::vector<double> times;
  int turn = 0;
  for (int i = 0; i < 3; ++i) run(turn++ % copies);
  const double start = now_us(CLOCK_MONOTONIC);
  while (times.size() < 5 || now_us(CLOCK_MONOTONIC) - start < 300e3) {
    const double before = now_us(clock);
    run(turn++ % copies);
    times.push_back(now_us(clock) - before);
  }
  std::sort(times.begin(), times.end());
  const size_t n = times.size();
  return {times[n / 2], times[n / 10], times[n * 9 / 10]};
}

// A plain read: sums the pieces, in parts of 32 KiB (the size of an op's unit).
void read_pieces(ThreadPool& pool, const std::vector<Piece>& pieces, uint64_t* sink) {
  constexpr int64_t kPart = 32768;
  std::vector<Piece> parts;
  for (const Piece& piece : pieces) {
    for (int64_t at = 0; at < piece.bytes; at += kPart) {
      parts.push_back(
          {static_cast<const char*>(piece.data) + at, std::min(kPart, piece.bytes - at)});
    }
  }
  pool.run(int64_t(parts.size()), [&](int64_t i, int worker) {
    uint64_t sums[8] = {};
    const auto* words = static_cast<const uint64_t*>(parts[size_t(i)].data);
    for (int64_t w = 0; w + 8 <= parts[size_t(i)].bytes / 8; w += 8) {
      for (int j = 0; j < 8; ++j) sums[j] += words[w + j];
    }
    for (uint64_t sum : sums) sink[worker * 8] += sum;
  });
}

void report(ThreadPool& pool, const Case& c, clockid_t clock) {
  std::vector<uint64_t> sink(size_t(pool.thread_count()) * 8);
  const Timing op = measure(c.run, c.copies, clock);
  const Timing read =
      measure([&](int i) { read_pieces(pool, c.pieces(i), sink.data()); }, c.copies, clock);
  double bytes = 0;
  for (const Piece& piece : c.pieces(0)) bytes += double(piece.bytes);
  fmt::print(
      "{:34} {:10.1f} us [{:.1f} {:.1f}] {:8.2f} GB/s {:8.1f} GFLOP/s {:6.1f} % of read "
      "({:.1f} GB/s)\n",
      c.name, op.median_us, op.low_us, op.high_us, bytes / op.median_us / 1e3,
      c.flops / op.median_us / 1e3, 100 * read.median_us / op.median_us,
      bytes / read.median_us / 1e3);
}

int64_t mixer_weights(const Layer& l) {
  int64_t count = l.out.rows * l.out.cols;
  for (const MatrixView& m : l.in) count += m.rows * m.cols;
  return count;
}

std::vector<Piece> pieces_of(const std::vector<MatrixView>& views) {
  std::vector<Piece> pieces;
  for (const MatrixView& view : views) {
    pieces.push_back({view.data, view.rows * view.cols * dtype_bytes(view.dtype)});
  }
  return pieces;
}

template <typename T>
Piece piece_of(const std::vector<T>& values) {
  return {values.data(), int64_t(values.size() * sizeof(T))};
}

// Experts that Stream::moe reads, the shared one included.
std::vector<Piece> expert_pieces(const Layer& l, const Stream& s, int64_t layer, int64_t turn) {
  std::vector<bool> used(size_t(s.z.experts));
  for (int64_t i = 0; i < s.tokens * s.z.top_k; ++i) {
    used[size_t(s.expert_of(i / s.z.top_k, i % s.z.top_k, layer, turn))] = true;
  }
  std::vector<MatrixView> views = {l.shared.gate, l.shared.up, l.shared.down};
  for (size_t e = 0; e < used.size(); ++e) {
    if (!used[e]) continue;
    views.insert(views.end(), {l.experts[e].gate, l.experts[e].up, l.experts[e].down});
  }
  return pieces_of(views);
}

constexpr int kTurns = 64;  // different choices of experts

struct Model {
  Sizes sizes;
  std::vector<std::unique_ptr<Layer>> layers;
  Weights head_weights{99};
  MatrixView head;

  Model(const Sizes& z, int count) : sizes(z) {
    for (int i = 0; i < count; ++i) {
      layers.push_back(std::make_unique<Layer>(z, i % 4 == 3, unsigned(i)));
    }
    head = head_weights.matrix(DType::kBF16, z.vocab, z.hidden);
  }
};

void add_op_cases(std::vector<Case>& cases, Model& model, Stream& stream) {
  const Sizes& z = model.sizes;
  const int n = int(model.layers.size());
  const double tokens = double(stream.tokens);
  const std::string suffix = fmt::format(" {} {}@{}", z.name, stream.tokens, stream.position);
  Stream* s = &stream;
  Model* m = &model;
  const auto gdn_layer = [m, n](int i) -> Layer& {
    return *m->layers[size_t(i % n - (i % 4 == 3))];
  };
  const auto full_layer = [m, n](int i) -> Layer& { return *m->layers[size_t(i % n / 4 * 4 + 3)]; };
  Layer& first = gdn_layer(0);
  double in_weights = 0;
  for (const MatrixView& view : first.in) in_weights += double(view.rows * view.cols);
  cases.push_back({"linear in" + suffix, 2 * tokens * in_weights, n,
                   [=](int i) { s->project_in(gdn_layer(i)); },
                   [=](int i) { return pieces_of(gdn_layer(i).in); }});
  cases.push_back({"linear out" + suffix, 2 * tokens * double(first.out.rows * first.out.cols), n,
                   [=](int i) { s->project_out(gdn_layer(i)); },
                   [=](int i) { return pieces_of({gdn_layer(i).out}); }});
  cases.push_back({"gdn" + suffix, tokens * double(z.nv) * 6 * 128 * 128, n,
                   [=](int i) { s->gdn(gdn_layer(i)); },
                   [=](int i) { return std::vector<Piece>{piece_of(gdn_layer(i).s)}; }});
  const double context = double(stream.position) + tokens / 2;
  cases.push_back({"attention" + suffix, tokens * context * double(z.heads) * 4 * 256, n,
                   [=](int i) { s->attention(full_layer(i)); },
                   [=](int i) {
                     const int64_t bytes = (s->position + s->tokens) * 512;
                     std::vector<Piece> pieces;
                     for (int64_t h = 0; h < s->z.kv_heads; ++h) {
                       const int64_t at = h * Layer::kContext * 256;
                       pieces.push_back({full_layer(i).cache_k.data() + at, bytes});
                       pieces.push_back({full_layer(i).cache_v.data() + at, bytes});
                     }
                     return pieces;
                   }});
  cases.push_back({"norm and route" + suffix, 2 * tokens * double(z.experts * z.hidden), n,
                   [=](int i) {
                     s->norm(gdn_layer(i), s->normed);
                     s->route(gdn_layer(i));
                   },
                   [=](int i) { return pieces_of({gdn_layer(i).gate}); }});
  cases.push_back(
      {"moe" + suffix, 2 * tokens * double(z.top_k + 1) * 3 * double(z.inner * z.hidden), kTurns,
       [=](int i) { s->moe(*m->layers[size_t(i % n)], i % n, i / n); },
       [=](int i) { return expert_pieces(*m->layers[size_t(i % n)], *s, i % n, i / n); }});
  cases.push_back({"linear head" + suffix, 2 * double(z.vocab * z.hidden), 1,
                   [=](int) {
                     s->multiply(s->normed, 1, z.hidden, {{m->head, s->logits, z.vocab}});
                   },
                   [=](int) { return pieces_of({m->head}); }});
}

void add_step_case(std::vector<Case>& cases, Model& model, Stream& stream) {
  const Sizes& z = model.sizes;
  double weights = double(z.vocab * z.hidden) / double(stream.tokens);
  for (const auto& layer : model.layers) {
    weights += double(mixer_weights(*layer) + (z.top_k + 1) * 3 * z.inner * z.hidden);
  }
  Stream* s = &stream;
  Model* m = &model;
  cases.push_back({fmt::format("step {} {}@{}", z.name, stream.tokens, stream.position),
                   2 * double(stream.tokens) * weights, kTurns,
                   [=](int turn) {
                     for (size_t i = 0; i < m->layers.size(); ++i)
                       s->layer(*m->layers[i], int64_t(i), turn);
                     s->multiply(s->normed, 1, s->z.hidden, {{m->head, s->logits, s->z.vocab}});
                   },
                   [=](int turn) {
                     std::vector<Piece> pieces = pieces_of({m->head});
                     for (size_t i = 0; i < m->layers.size(); ++i) {
                       const Layer* layer = m->layers[i].get();
                       auto more = pieces_of(layer->in);
                       more.push_back(pieces_of({layer->out})[0]);
                       more.push_back(pieces_of({layer->gate})[0]);
                       const auto experts = expert_pieces(*layer, *s, int64_t(i), turn);
                       more.insert(more.end(), experts.begin(), experts.end());
                       if (!layer->full) more.push_back(piece_of(layer->s));
                       pieces.insert(pieces.end(), more.begin(), more.end());
                     }
                     return pieces;
                   }});
}

int run(int argc, char** argv) {
  int threads = 0;
  clockid_t clock = CLOCK_MONOTONIC;
  std::optional<cpu::Level> level;
  std::string filter;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--threads" && i + 1 < argc) {
      threads = std::atoi(argv[++i]);
    } else if (argument == "--cpu-time") {
      clock = CLOCK_THREAD_CPUTIME_ID;
    } else if (argument == "--cpu" && i + 1 < argc) {
      level = std::string(argv[++i]) == "avx2" ? cpu::Level::kAvx2 : cpu::Level::kAvx512;
    } else {
      filter = argument;
    }
  }
  const auto kernels = cpu::kernels_for(level);
  if (!kernels.ok()) {
    fmt::print(stderr, "{}\n", kernels.status().message());
    return 1;
  }
  ThreadPool pool(threads);
  const cpu::Context context(pool, **kernels);
  fmt::print("level {}, BF16 products {}, threads {}\n", cpu::level_name((*kernels)->level),
             (*kernels)->has_bf16_products, pool.thread_count());
  Model nano(kNano, 8), big(k35b, 4);
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<Case> cases;
  for (Model* model : {&nano, &big}) {
    for (const auto& [tokens, position] :
         {std::pair{1, 512 + 32}, {1, 8192}, {4, 544}, {256, 512}}) {
      streams.push_back(std::make_unique<Stream>(context, model->sizes, tokens, position));
      add_op_cases(cases, *model, *streams.back());
      add_step_case(cases, *model, *streams.back());
    }
  }
  for (const Case& c : cases) {
    if (c.name.find(filter) != std::string::npos) report(pool, c, clock);
  }
  return 0;
}

}  // namespace
}  // namespace moray

int main(int argc, char** argv) {
  return moray::run(argc, argv);
}
