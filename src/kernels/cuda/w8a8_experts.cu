// W8A8 products of the experts over rows sorted by expert: gate/up with SwiGLU, and down.
//
// FLOPs 6 rows H I in both together. Bytes: each expert's weights once (its few row tiles run at
// about the same time), rows * (H + I) codes read, rows * I codes and rows * H BF16 written. Grid:
// as many blocks as multiprocessors; how many tiles there are is read from device memory.
#include "device/w8a8_product.cuh"
#include "device/w8a8_store.cuh"

// Row tiles of the plan, or of one expert over all rows.
struct RowTiles {
  const ExpertTile* tiles;
  int count, tokens;

  __device__ RowTiles(const ExpertTile* plan, const int* plan_count, int rows)
      : tiles(plan), count(plan == nullptr ? tiles_of(rows) : *plan_count), tokens(rows) {}
  __device__ void expect(int index) const {
    if (tiles != nullptr && index < count) prefetch_l1(tiles + index);
  }
  __device__ ExpertTile at(int index) const {
    if (tiles != nullptr) return tiles[index];
    const int row = index * kW8a8TileRows;
    return {0, row, min(kW8a8TileRows, tokens - row)};
  }
};

__device__ __forceinline__ const float* scales_of(const ExpertRecords& experts, int expert,
                                                  int offset) {
  return reinterpret_cast<const float*>(experts.base + expert * experts.record_bytes + offset);
}

// An item: one row tile by 128 channels of the inner activation, in two tiles of 64 channels.
struct GateUpWork {
  static constexpr int kPasses = 2;
  static constexpr int kStages = kWgmmaBlock.stages - 1;  // one stage's room is the epilogue's
  static constexpr int kRegisters = 240;
  const W8a8GateUp& p;
  RowTiles rows{nullptr, nullptr, 0};
  int blocks = 1, groups = 1;

  __device__ void begin(int blocks_) {
    rows = RowTiles(p.tiles, p.tile_count, p.tokens);
    blocks = blocks_;
    groups = p.experts.width / kScaleColumns / blocks;
  }
  __device__ int items() const { return rows.count * groups; }
  __device__ int slices() const { return p.x.cols / kScaleColumns; }
  __device__ const QuantisedRows& x() const { return p.x; }
  __device__ const void* x_map() const { return &p.x_map; }
  __device__ const void* low_map(const Tile&) const { return &p.gate_map; }
  __device__ const void* high_map(const Tile&) const { return &p.up_map; }
  __device__ const uint8* weight_row(const Tile& tile, int row) const {
    const char* record = p.experts.base + tile.plane * p.experts.record_bytes;
    return reinterpret_cast<const uint8*>(record + (row < 64 ? 0 : p.experts.up)) +
           (tile.low + row % 64) * p.experts.gate_stride;
  }
  __device__ void expect(Cursor at) const { rows.expect(at.item / groups); }
  __device__ Tile tile(Cursor at, int rank) const {
    const ExpertTile part = rows.at(at.item / groups);
    const int group = at.item % groups * blocks + rank;
    const int channel = group * kScaleColumns + 64 * at.pass;
    const int scale = group * slices();
    return {.x_row = part.first_row,
            .rows = part.rows,
            .low = channel,
            .high = channel,
            .plane = part.expert,
            .target = 0,
            .low_scale = scales_of(p.experts, part.expert, p.experts.gate_scales) + scale,
            .high_scale = scales_of(p.experts, part.expert, p.experts.up_scales) + scale};
  }
};

// A thread's 32 values of the first 64 channels, until the other 64 are there: they share a scale.
// In registers where shared memory is full, in shared memory where registers are.
template <int kArchitecture>
struct Kept {
  float value[32];
  __device__ float& at(int i) { return value[i]; }
};
#if __CUDA_ARCH__ == 900
template <>
struct Kept<900> {
  float* value = spare_floats();
  __device__ float& at(int i) { return value[256 * i]; }
};
#endif

struct GateUpEpilogue {
  const W8a8GateUp& p;
  Kept<kArch> kept;

  __device__ void expect(const Tile&, int) const {}
  __device__ void take(const Tile& tile, int pass, const float (&sum)[64], int row) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float value[16];
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const int at = i / 2 * 4 + 2 * half + i % 2;
        value[i] = silu_times(sum[at], sum[at + 32]);
      }
      if (pass == 0) {
#pragma unroll
        for (int i = 0; i < 16; ++i) kept.at(16 * half + i) = value[i];
        continue;
      }
      float first[16];
#pragma unroll
      for (int i = 0; i < 16; ++i) first[i] = kept.at(16 * half + i);
      const int64 r = tile.x_row + row + 8 * half;
      const int channel = tile.low - 64;
      const bool valid = row + 8 * half < tile.rows;
      const float scale =
          store_row_quantised(first, value, p.inner.codes + r * p.inner.cols + channel, valid);
      if (valid && threadIdx.x % 4 == 0) {
        p.inner.scales[int64(channel / kScaleColumns) * p.inner.scale_stride + r] = scale;
      }
    }
  }
};

struct DownWork {
  static constexpr int kPasses = 1;
  static constexpr int kStages = kWgmmaBlock.stages;
  static constexpr int kRegisters = 240;
  const W8a8Down& p;
  RowTiles rows{nullptr, nullptr, 0};
  int blocks = 1, groups = 1;

  __device__ void begin(int blocks_) {
    rows = RowTiles(p.tiles, p.tile_count, p.tokens);
    blocks = blocks_;
    groups = (tiles_of(p.columns) + blocks - 1) / blocks;
  }
  __device__ int items() const { return rows.count * groups; }
  __device__ int slices() const { return p.inner.cols / kScaleColumns; }
  __device__ const QuantisedRows& x() const { return p.inner; }
  __device__ const void* x_map() const { return &p.inner_map; }
  __device__ const void* low_map(const Tile&) const { return &p.down_map; }
  __device__ const void* high_map(const Tile&) const { return &p.down_map; }
  __device__ const uint8* weight_row(const Tile& tile, int row) const {
    const char* record = p.experts.base + tile.plane * p.experts.record_bytes;
    return reinterpret_cast<const uint8*>(record + p.experts.down) +
           min(tile.low + row, p.columns - 1) * p.experts.down_stride;
  }
  __device__ void expect(Cursor at) const { rows.expect(at.item / groups); }
  __device__ Tile tile(Cursor at, int rank) const {
    const ExpertTile part = rows.at(at.item / groups);
    const int column = at.item % groups * blocks + rank;
    const float* scale = scales_of(p.experts, part.expert, p.experts.down_scales) +
                         min(column, tiles_of(p.columns) - 1) * slices();
    return {.x_row = part.first_row,
            .rows = column < tiles_of(p.columns) ? part.rows : 0,
            .low = column * 128,
            .high = column * 128 + 64,
            .plane = part.expert,
            .target = 0,
            .low_scale = scale,
            .high_scale = scale};
  }
};

struct DownEpilogue {
  const W8a8Down& p;

  __device__ void expect(const Tile& tile, int row) const {
    const int r = tile.x_row + min(row + 8, tile.rows - 1);
    if (p.out_row != nullptr) prefetch_l1(p.out_row + r);
  }
  __device__ void take(const Tile& tile, int, const float (&sum)[64], int row) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = row + 8 * half;
      const bool valid = r < tile.rows;
      int64 to = tile.x_row + r;
      if (valid && p.out_row != nullptr) to = p.out_row[to];
      store_row_bf16(sum, half, static_cast<uint16*>(p.out) + to * p.out_stride + tile.low,
                     p.columns - tile.low, valid);
    }
  }
};

extern "C" __global__ void __launch_bounds__(kW8a8Threads, 1)
    w8a8_gate_up(const __grid_constant__ W8a8GateUp p) {
  GateUpWork work{p};
  GateUpEpilogue epilogue{p, {}};
  w8a8_product(work, epilogue);
}

extern "C" __global__ void __launch_bounds__(kW8a8Threads, 1)
    w8a8_down(const __grid_constant__ W8a8Down p) {
  DownWork work{p};
  DownEpilogue epilogue{p};
  w8a8_product(work, epilogue);
}
