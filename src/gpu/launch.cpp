#include "src/gpu/launch.h"

#include "src/gpu/open_device.h"
#include "src/gpu/stream.h"

namespace moray::gpu {
namespace {

constexpr int kPortableClusterMax = 8;

LaunchAttribute cluster_attribute(int blocks) {
  LaunchAttribute attribute{};
  attribute.id = LaunchAttributeId::kClusterDimension;
  attribute.value.cluster = {static_cast<unsigned>(blocks), 1, 1};
  return attribute;
}

LaunchAttribute programmatic_attribute() {
  LaunchAttribute attribute{};
  attribute.id = LaunchAttributeId::kProgrammaticSerialization;
  attribute.value.programmatic = 1;
  return attribute;
}

}  // namespace

void launch(Stream& stream, const Kernel& kernel, const LaunchShape& shape, const void* params,
            int param_bytes) {
  const OpenDevice& on = opened(stream.device());
  CHECK(kernel.function != nullptr, "no kernel", kernel.name);
  CHECK(param_bytes == kernel.param_bytes, kernel.name, "parameter bytes: found", param_bytes,
        "expected", kernel.param_bytes);
  CHECK(kernel.static_shared + shape.shared_bytes <= on.info().shared_bytes_max, kernel.name,
        kernel.static_shared, shape.shared_bytes);
  const bool is_cluster_arch = on.info().major >= 9;
  CHECK(shape.cluster == 1 || (is_cluster_arch && shape.cluster <= kPortableClusterMax),
        kernel.name, "cluster", shape.cluster);

  LaunchAttribute attributes[2];
  unsigned attribute_count = 0;
  if (shape.cluster > 1) attributes[attribute_count++] = cluster_attribute(shape.cluster);
  // Before sm_90 there is no early start: launches are ordered by the stream alone.
  if (shape.programmatic && is_cluster_arch)
    attributes[attribute_count++] = programmatic_attribute();

  const LaunchConfig config = {
      .grid_x = shape.grid.x,
      .grid_y = shape.grid.y,
      .grid_z = shape.grid.z,
      .block_x = shape.block.x,
      .block_y = shape.block.y,
      .block_z = shape.block.z,
      .shared_bytes = static_cast<unsigned>(shape.shared_bytes),
      .stream = stream.handle(),
      .attributes = attributes,
      .attribute_count = attribute_count,
  };
  void* arguments[] = {const_cast<void*>(params)};
  on.make_current();
  const Code code = on.api().launch(&config, kernel.function, arguments, nullptr);
  if (code != Code::kSuccess && is_caller_fault(code)) {
    CHECK(!on.fault().ok(), kernel.name, on.api().describe(code), "grid", shape.grid.x,
          shape.grid.y, shape.grid.z, "block", shape.block.x, shape.block.y, shape.block.z,
          "shared", shape.shared_bytes, "registers", kernel.registers);
  }
  on.settle(code, "a kernel launch");
}

}  // namespace moray::gpu
