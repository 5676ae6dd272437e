// W8A8 projections of a prefill block: up to four matrices that share their input.
//
// FLOPs 2 tokens N K. Bytes: the output and, as both operands of the models here fit in L2, each
// operand once; from L2 24 KiB (32 alone) a slice of 4.2 MFLOP. Grid: as many blocks as
// multiprocessors, each walking tiles in groups of 8 row tiles by all column tiles, so that the
// blocks running at one time share both.
#include "device/w8a8_product.cuh"
#include "device/w8a8_store.cuh"

constexpr int kGroupTiles = 8;

struct DenseWork {
  static constexpr int kPasses = 1;
  static constexpr int kStages = kWgmmaBlock.stages;
  static constexpr int kRegisters = 232;
  const W8a8Dense& p;
  int blocks = 1;
  int row_tiles = 0, column_items = 0;

  __device__ void begin(int blocks_) {
    blocks = blocks_;
    row_tiles = tiles_of(p.tokens);
    int columns = 0;
    for (int i = 0; i < p.target_count; ++i) columns += tiles_of(p.targets[i].weight.rows);
    column_items = (columns + blocks - 1) / blocks;
  }
  __device__ int items() const { return row_tiles * column_items; }
  __device__ int slices() const { return p.x.cols / kScaleColumns; }
  __device__ const QuantisedRows& x() const { return p.x; }
  __device__ const void* x_map() const { return &p.x_map; }
  __device__ const void* low_map(const Tile& tile) const { return &p.weight_maps[tile.target]; }
  __device__ const void* high_map(const Tile& tile) const { return &p.weight_maps[tile.target]; }
  __device__ const uint8* weight_row(const Tile& tile, int row) const {
    const Matrix& weight = p.targets[tile.target].weight;
    return static_cast<const uint8*>(weight.data) +
           int64(min(tile.low + row, weight.rows - 1)) * weight.stride;
  }
  __device__ void expect(Cursor) const {}
  __device__ Tile tile(Cursor at, int rank) const {
    const int group = at.item / (kGroupTiles * column_items);
    const int rest = at.item - group * kGroupTiles * column_items;
    const int height = min(kGroupTiles, row_tiles - group * kGroupTiles);
    int column = rest / height * blocks + rank;
    int target = 0;
    while (target + 1 < p.target_count && column >= tiles_of(p.targets[target].weight.rows)) {
      column -= tiles_of(p.targets[target++].weight.rows);
    }
    const Matrix& weight = p.targets[target].weight;
    const int x_row = (group * kGroupTiles + rest % height) * kW8a8TileRows;
    const bool inside = column < tiles_of(weight.rows);  // an odd count leaves one block idle
    const float* scale = weight.scales + min(column, tiles_of(weight.rows) - 1) * slices();
    return {.x_row = x_row,
            .rows = inside ? min(kW8a8TileRows, p.tokens - x_row) : 0,
            .low = column * 128,
            .high = column * 128 + 64,
            .plane = 0,
            .target = target,
            .low_scale = scale,
            .high_scale = scale};
  }
};

struct DenseEpilogue {
  const W8a8Dense& p;

  // A residual's lines are fetched to L2 while the tile is computed: 256 bytes a row, two of them a
  // lane of the four that share it.
  __device__ void expect(const Tile& tile, int row) const {
    const W8a8Target& target = p.targets[tile.target];
    const int t = threadIdx.x % 4;
    const int r = row + 8 * (t / 2);
    const int column = tile.low + 64 * (t % 2);
    if (target.output != W8a8Output::kAddBf16 || r >= tile.rows || column >= target.weight.rows) {
      return;
    }
    prefetch_l2(static_cast<const uint16*>(target.out) + int64(tile.x_row + r) * target.out_stride +
                column);
  }
  __device__ void take(const Tile& tile, int, float (&sum)[64], int row) const {
    const W8a8Target& target = p.targets[tile.target];
    const int columns = target.weight.rows - tile.low;
    const bool valid[2] = {row < tile.rows, row + 8 < tile.rows};
    const int64 at = int64(tile.x_row + row) * target.out_stride + tile.low;
    const int64 at8 = at + int64(8) * target.out_stride;
    if (target.output == W8a8Output::kF32) {
      store_row_f32(sum, 0, static_cast<float*>(target.out) + at, columns, valid[0]);
      store_row_f32(sum, 1, static_cast<float*>(target.out) + at8, columns, valid[1]);
      return;
    }
    uint16* out = static_cast<uint16*>(target.out);
    if (target.output == W8a8Output::kAddBf16) {
      Pack16 old[4], old8[4];
      load_row_bf16(old, out + at, columns, valid[0]);
      load_row_bf16(old8, out + at8, columns, valid[1]);
      add_row_bf16(sum, 0, old);
      add_row_bf16(sum, 1, old8);
    }
    store_row_bf16(sum, 0, out + at, columns, valid[0]);
    store_row_bf16(sum, 1, out + at8, columns, valid[1]);
  }
};

extern "C" __global__ void __launch_bounds__(kW8a8Threads, 1)
    w8a8_dense(const __grid_constant__ W8a8Dense p) {
  DenseWork work{p};
  DenseEpilogue epilogue{p};
  w8a8_product(work, epilogue);
}
