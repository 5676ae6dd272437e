#include "src/gpu/tensor_map.h"

#include "src/base/check.h"
#include "src/gpu/driver.h"

namespace moray::gpu {
namespace {

// The driver's numbers for what is the same in every map here.
constexpr int kElementUint8 = 0;
constexpr int kNoInterleave = 0;
constexpr int kSwizzle128 = 3;
constexpr int kFetch256 = 3;  // sectors that one miss brings into L2
constexpr int kFillZeros = 0;
constexpr uint32_t kBoxColumns = 128;

}  // namespace

void encode_map(const ByteBoxes& boxes, void* map) {
  const Result<const Driver*> api = driver();
  CHECK(api.ok(), "a map without a driver");
  const uint64_t sizes[3] = {static_cast<uint64_t>(boxes.columns),
                             static_cast<uint64_t>(boxes.rows),
                             static_cast<uint64_t>(boxes.planes)};
  const uint64_t strides[2] = {static_cast<uint64_t>(boxes.row_bytes),
                               static_cast<uint64_t>(boxes.plane_bytes)};
  const uint32_t box[3] = {kBoxColumns, static_cast<uint32_t>(boxes.box_rows), 1};
  const uint32_t steps[3] = {1, 1, 1};
  const Code code = (*api)->tensor_map_encode(map, kElementUint8, 3, const_cast<void*>(boxes.base),
                                              sizes, strides, box, steps, kNoInterleave,
                                              kSwizzle128, kFetch256, kFillZeros);
  CHECK(code == Code::kSuccess, "a map of boxes", (*api)->describe(code), boxes.columns, boxes.rows,
        boxes.planes, boxes.row_bytes, boxes.plane_bytes, boxes.box_rows);
}

}  // namespace moray::gpu
