// attention: prepares heads and appends to the cache, then walks keys in ranges on an absolute
// grid.
//
// Invariant: every query's softmax is taken range by range (kRangeKeys keys, absolute grid) and the
// ranges are merged in ascending order, whether one worker walks them all (prefill) or each is a
// unit of its own (few tokens over a long context). Hence the same bits either way.
#include <cmath>

#include "src/kernels/cpu/cpu.h"
#include "src/kernels/cpu/kernels.h"
#include "src/kernels/cpu/partition.h"

namespace moray::cpu {

namespace {

// Scores of a block, [kBlockQueries, kRangeKeys] FP32, are 64 KiB: second-cache size, and a range
// of BF16 keys 256 KiB at head_dim 256.
constexpr int64_t kRangeKeys = 512;
constexpr int64_t kBlockQueries = 32;
constexpr int64_t kPrepareTokens = 8;
// Up to this many tokens (a draft and its verification) ranges become units of their own.
constexpr int64_t kSplitTokens = 4;

struct Shape {
  int64_t group;         // query heads of a KV head
  int64_t padded;        // head_dim as products read it
  int64_t block_tokens;  // tokens whose queries share loads
  int64_t blocks;
  int64_t ranges;
  int64_t part_floats;  // a query's partial result: sums, largest, total
};

Shape shape_of(const AttentionArgs& args) {
  Shape shape{};
  shape.group = args.heads / args.kv_heads;
  shape.padded = padded_k(args.head_dim);
  shape.block_tokens = std::max<int64_t>(1, kBlockQueries / shape.group);
  shape.blocks = divide_up(args.tokens, shape.block_tokens);
  shape.ranges = divide_up(args.position + args.tokens, kRangeKeys);
  shape.part_floats = round_up(args.head_dim + 2, kCacheLineFloats);
  return shape;
}

int64_t block_queries(const Shape& shape) {
  return shape.block_tokens * shape.group;
}

// A worker's: scores, one range's partial results and the merged ones, linear's scratch.
int64_t scratch_floats(const Shape& shape) {
  return carved(block_queries(shape) * kRangeKeys) +
         2 * carved(block_queries(shape) * shape.part_floats) +
         carved(kLinearTileRows * shape.padded);
}

struct Buffers {
  float* q_f32;      // [tokens, heads, padded]; one of the two, by engine
  uint16_t* q_bf16;  // likewise
  float* parts;      // [kv_head, range, tokens * group, part_floats]; only when ranges are units
  float* scratch;
  int64_t scratch_floats;
  Engine engine;
};

const char* cache_row(const AttentionArgs& args, const void* base, int64_t head, int64_t row) {
  return static_cast<const char*>(base) +
         (head * args.cache.capacity + row) * args.head_dim * dtype_bytes(args.cache.dtype);
}

// One prepared head (or a value head) into the cache.
void append(const Kernels& kernels, const AttentionArgs& args, const void* base, int64_t head,
            int64_t position, const float* values) {
  char* to = const_cast<char*>(cache_row(args, base, head, position));
  if (args.cache.dtype == DType::kF32) {
    kernels.pack_f32(values, args.head_dim, reinterpret_cast<float*>(to), args.head_dim);
  } else {
    kernels.pack_bf16(values, args.head_dim, reinterpret_cast<uint16_t*>(to), args.head_dim);
  }
}

// Angles of one position; the product is FP32 by contract.
void rotation(const AttentionArgs& args, int64_t position, float* cosine, float* sine) {
  for (int64_t i = 0; i < args.rotary_dim / 2; ++i) {
    const float angle = static_cast<float>(position) * args.inv_freq[i];
    cosine[i] = std::cos(angle) * args.rope_scale;
    sine[i] = std::sin(angle) * args.rope_scale;
  }
}

void prepare_token(const Kernels& kernels, const AttentionArgs& args, const Shape& shape,
                   const Buffers& buffers, int64_t t, float* space) {
  const int64_t dim = args.head_dim, position = args.position + t;
  float* const cosine = space;
  float* const sine = space + args.rotary_dim / 2;
  float* const head_out = sine + args.rotary_dim / 2;
  rotation(args, position, cosine, sine);
  const bool round = args.precision == Precision::kBfloat16;
  HeadJob job{.x = nullptr,
              .weight = args.q_norm,
              .cosine = cosine,
              .sine = sine,
              .dim = dim,
              .rotary_dim = args.rotary_dim,
              .eps = args.eps,
              .zero_centred = args.norm_kind == NormKind::kZeroCentred,
              .round = round,
              .out = head_out};
  for (int64_t head = 0; head < args.heads; ++head) {
    job.x = args.q_gate + (t * args.heads + head) * dim * (args.has_gate ? 2 : 1);
    kernels.prepare_head(job);
    const int64_t at = (t * args.heads + head) * shape.padded;
    if (buffers.engine == Engine::kBf16) {
      kernels.pack_bf16(head_out, dim, buffers.q_bf16 + at, shape.padded);
    } else {
      kernels.pack_f32(head_out, dim, buffers.q_f32 + at, shape.padded);
    }
  }
  job.weight = args.k_norm;
  for (int64_t head = 0; head < args.kv_heads; ++head) {
    job.x = args.k + (t * args.kv_heads + head) * dim;
    kernels.prepare_head(job);
    append(kernels, args, args.cache.keys, head, position, head_out);
    const float* value = args.v + (t * args.kv_heads + head) * dim;
    if (round && args.cache.dtype == DType::kF32) {  // rounded on the way, as contracted
      for (int64_t i = 0; i < dim; ++i) head_out[i] = round_to_bf16(value[i]);
      value = head_out;
    }
    append(kernels, args, args.cache.values, head, position, value);
  }
}

// The queries of one block of tokens over one KV head.
struct Block {
  int64_t kv_head, token, tokens, queries;
  int32_t rows[kBlockQueries > 64 ? kBlockQueries : 64];  // q row of each query
  int32_t ends[kBlockQueries > 64 ? kBlockQueries : 64];  // keys it may see, absolute
};

// Query order: token, then head.
Block make_block(const AttentionArgs& args, const Shape& shape, int64_t kv_head, int64_t index) {
  Block block{};
  block.kv_head = kv_head;
  block.token = index * shape.block_tokens;
  block.tokens = std::min(shape.block_tokens, args.tokens - block.token);
  block.queries = block.tokens * shape.group;
  for (int64_t q = 0; q < block.queries; ++q) {
    const int64_t t = block.token + q / shape.group;
    const int64_t head = kv_head * shape.group + q % shape.group;
    block.rows[q] = static_cast<int32_t>(t * args.heads + head);
    block.ends[q] = static_cast<int32_t>(args.position + t + 1);
  }
  return block;
}

float* largest_of(const AttentionArgs& args, float* part) {
  return part + args.head_dim;
}
float* total_of(const AttentionArgs& args, float* part) {
  return part + args.head_dim + 1;
}

// Softmax and p V of one range for a block; parts[q] gets sums, largest score and total.
void attend_range(const Kernels& kernels, const AttentionArgs& args, const Shape& shape,
                  const Buffers& buffers, const Block& block, int64_t range, float* parts,
                  float* scratch) {
  const int64_t begin = range * kRangeKeys;
  const int64_t keys = std::min<int64_t>(kRangeKeys, block.ends[block.queries - 1] - begin);
  float* const scores = scratch;
  LinearJob job{};
  job.weight = cache_row(args, args.cache.keys, block.kv_head, begin);
  job.k = args.head_dim;
  job.row_end = keys;
  job.x =
      buffers.engine == Engine::kBf16 ? static_cast<const void*>(buffers.q_bf16) : buffers.q_f32;
  job.x_stride = shape.padded;
  job.x_rows = block.rows;
  job.tokens = block.queries;
  job.y = scores;
  job.y_stride = kRangeKeys;
  job.scratch = scratch + carved(block_queries(shape) * kRangeKeys);
  run_linear(kernels, buffers.engine, args.cache.dtype, job);
  const float scale = 1.0f / std::sqrt(static_cast<float>(args.head_dim));
  int32_t ends[std::size(block.ends)];
  for (int64_t q = 0; q < block.queries; ++q) {
    float* const part = parts + q * shape.part_floats;
    ends[q] = static_cast<int32_t>(std::clamp<int64_t>(block.ends[q] - begin, 0, keys));
    std::fill(part, part + args.head_dim, 0.0f);
    kernels.softmax_part(scores + q * kRangeKeys, ends[q], scale, largest_of(args, part),
                         total_of(args, part));
  }
  kernels.add_values({.values = cache_row(args, args.cache.values, block.kv_head, begin),
                      .bf16 = args.cache.dtype == DType::kBF16,
                      .dim = args.head_dim,
                      .p = scores,
                      .p_stride = kRangeKeys,
                      .ends = ends,
                      .queries = block.queries,
                      .sums = parts,
                      .sum_stride = shape.part_floats});
}

// Merges the next range's partial result into the running one.
void merge(const Kernels& kernels, const AttentionArgs& args, float* running, float* part) {
  const float before = *largest_of(args, running), now = *largest_of(args, part);
  const float largest = now > before ? now : before;
  float factors[2] = {before - largest, now - largest};
  kernels.exp(factors, 2, factors);
  kernels.merge_sums(running, factors[0], part, factors[1], args.head_dim);
  float* const total = total_of(args, running);
  *total = *total * factors[0] + *total_of(args, part) * factors[1];
  *largest_of(args, running) = largest;
}

void finish(const Kernels& kernels, const AttentionArgs& args, int64_t row, float* part) {
  const int64_t dim = args.head_dim;
  const float* gate = args.has_gate ? args.q_gate + row * 2 * dim + dim : nullptr;
  kernels.finish_head(part, *total_of(args, part), gate, dim,
                      args.precision == Precision::kBfloat16, args.out + row * dim);
}

// All ranges of a block by one worker.
void attend_block(const Kernels& kernels, const AttentionArgs& args, const Shape& shape,
                  const Buffers& buffers, const Block& block, float* scratch) {
  const int64_t part_block = carved(block_queries(shape) * shape.part_floats);
  float* const running = scratch;
  float* const part = running + part_block;
  const int64_t ranges = divide_up(block.ends[block.queries - 1], kRangeKeys);
  attend_range(kernels, args, shape, buffers, block, 0, running, part + part_block);
  for (int64_t range = 1; range < ranges; ++range) {
    attend_range(kernels, args, shape, buffers, block, range, part, part + part_block);
    for (int64_t q = 0; q < block.queries; ++q) {
      if (block.ends[q] <= range * kRangeKeys) continue;
      merge(kernels, args, running + q * shape.part_floats, part + q * shape.part_floats);
    }
  }
  for (int64_t q = 0; q < block.queries; ++q) {
    finish(kernels, args, block.rows[q], running + q * shape.part_floats);
  }
}

// Few tokens, long context: every (KV head, block, range) is a unit; then the ranges are merged.
void attend_split(const Context& context, const AttentionArgs& args, const Shape& shape,
                  const Buffers& buffers) {
  const Kernels& kernels = *context.kernels;
  const int64_t part_block = block_queries(shape) * shape.part_floats;
  const auto parts_of = [&](int64_t kv_head, int64_t index, int64_t range) {
    return buffers.parts + ((kv_head * shape.blocks + index) * shape.ranges + range) * part_block;
  };
  const int64_t per_head = shape.blocks * shape.ranges;
  context.pool->run(args.kv_heads * per_head, [&](int64_t unit, int worker) {
    const int64_t kv_head = unit / per_head, index = unit % per_head / shape.ranges;
    const int64_t range = unit % shape.ranges;
    const Block block = make_block(args, shape, kv_head, index);
    if (block.ends[block.queries - 1] <= range * kRangeKeys) return;
    attend_range(kernels, args, shape, buffers, block, range, parts_of(kv_head, index, range),
                 buffers.scratch + worker * buffers.scratch_floats);
  });
  context.pool->run(args.kv_heads * shape.blocks, [&](int64_t unit, int) {
    const int64_t kv_head = unit / shape.blocks, index = unit % shape.blocks;
    const Block block = make_block(args, shape, kv_head, index);
    for (int64_t q = 0; q < block.queries; ++q) {
      float* const running = parts_of(kv_head, index, 0) + q * shape.part_floats;
      for (int64_t range = 1; range * kRangeKeys < block.ends[q]; ++range) {
        merge(kernels, args, running, parts_of(kv_head, index, range) + q * shape.part_floats);
      }
      finish(kernels, args, block.rows[q], running);
    }
  });
}

void check_arguments(const AttentionArgs& args) {
  CHECK(args.kv_heads > 0 && args.heads % args.kv_heads == 0, args.heads, args.kv_heads);
  CHECK(args.heads / args.kv_heads <= int64_t{std::size(Block{}.rows)}, args.heads, args.kv_heads);
  CHECK(args.rotary_dim % 2 == 0 && args.rotary_dim <= args.head_dim, args.rotary_dim);
  CHECK(args.position >= 0 && args.position + args.tokens <= args.cache.capacity, args.position,
        args.tokens, args.cache.capacity);
  CHECK(args.cache.dtype == DType::kF32 || args.cache.dtype == DType::kBF16,
        dtype_name(args.cache.dtype));
}

int64_t part_floats(const AttentionArgs& args, const Shape& shape) {
  const int64_t blocks = divide_up(std::min(args.tokens, kSplitTokens), shape.block_tokens);
  return carved(args.kv_heads * blocks * shape.ranges * block_queries(shape) * shape.part_floats);
}

}  // namespace

void attention(const Context& context, const AttentionArgs& args) {
  check_arguments(args);
  if (args.tokens == 0) return;
  const Shape shape = shape_of(args);
  const int threads = context.pool->thread_count();
  const int64_t q_floats = args.tokens * args.heads * shape.padded;
  const int64_t prepare_floats = carved(args.rotary_dim + args.head_dim);
  Carver carver(args.workspace);
  Buffers buffers{};
  buffers.engine = engine_for(*context.kernels, args.precision, args.cache.dtype);
  buffers.q_f32 = carver.take<float>(q_floats);
  buffers.q_bf16 = reinterpret_cast<uint16_t*>(buffers.q_f32);
  buffers.scratch_floats = std::max(scratch_floats(shape), prepare_floats);
  buffers.scratch = carver.take<float>(threads * buffers.scratch_floats);
  context.pool->run(divide_up(args.tokens, kPrepareTokens), [&](int64_t unit, int worker) {
    const int64_t end = std::min((unit + 1) * kPrepareTokens, args.tokens);
    for (int64_t t = unit * kPrepareTokens; t < end; ++t) {
      prepare_token(*context.kernels, args, shape, buffers, t,
                    buffers.scratch + worker * buffers.scratch_floats);
    }
  });
  if (args.tokens <= kSplitTokens && shape.ranges > 1 && threads > 1) {
    buffers.parts = carver.take<float>(part_floats(args, shape));
    attend_split(context, args, shape, buffers);
    return;
  }
  context.pool->run(args.kv_heads * shape.blocks, [&](int64_t unit, int worker) {
    // The last block sees the most keys: it starts first, so that no worker ends late.
    const int64_t index = shape.blocks - 1 - unit / args.kv_heads;
    const Block block = make_block(args, shape, unit % args.kv_heads, index);
    attend_block(*context.kernels, args, shape, buffers, block,
                 buffers.scratch + worker * buffers.scratch_floats);
  });
}

}  // namespace moray::cpu

namespace moray {

int64_t attention_workspace_floats(const AttentionArgs& args, int threads) {
  const cpu::Shape shape = cpu::shape_of(args);
  return cpu::kCacheLineFloats + cpu::carved(args.tokens * args.heads * shape.padded) +
         threads *
             std::max(cpu::scratch_floats(shape), cpu::carved(args.rotary_dim + args.head_dim)) +
         cpu::part_floats(args, shape);
}

}  // namespace moray
