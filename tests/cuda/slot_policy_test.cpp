// The slot policy's header under the device's compiler, for every architecture: as the kernels that
// will wrap it, a loop by one thread and a victim by a warp's reduction.
#include <gtest/gtest.h>

#include "src/gpu/compiler.h"
#include "src/gpu/cubin.h"
#include "src/gpu/source_closure.h"
#include "src/kernels/cuda/sources.h"
#include "tests/cuda/build_folder.h"

namespace moray {
namespace {

constexpr std::string_view kProbe = R"(
#include "slot_policy.h"

namespace moray::cuda {

struct Probe {
  SlotTable table;
  int expert;
  SlotStamp stamp;
  SlotLease* lease;
};

extern "C" __global__ void lease_by_one_thread(const __grid_constant__ Probe p) {
  *p.lease = lease_slot(p.table, p.expert, p.stamp);
  if (p.lease->answer == SlotAnswer::kMiss) finish_fill(p.table, p.lease->slot);
}

extern "C" __global__ void victim_by_a_warp(const __grid_constant__ Probe p) {
  SlotStamp least = kNoVictim;
  for (int slot = threadIdx.x; slot < p.table.slots; slot += 32) {
    least = min(least, victim_key(p.table, slot));
  }
  for (int lane = 16; lane > 0; lane /= 2) {
    least = min(least, __shfl_xor_sync(0xffffffffu, least, lane));
  }
  if (threadIdx.x == 0) p.lease->slot = victim_of(least);
}

}  // namespace moray::cuda
)";

class SlotPolicyCompile : public ::testing::TestWithParam<int> {};

TEST_P(SlotPolicyCompile, CudaSlotPolicyCompiles) {
  const auto compiler = gpu::build_folder_compiler();
  if (!compiler.ok()) GTEST_SKIP() << compiler.status().message() << "; ./test fetches it";
  std::vector<gpu::Source> sources(cuda::sources().begin(), cuda::sources().end());
  sources.push_back({"probe.cu", kProbe});
  const auto unit = gpu::make_unit(sources, "probe.cu", "");
  ASSERT_TRUE(unit.ok()) << unit.status().message();
  const auto bytes = (*compiler)->compile(*unit, GetParam());
  ASSERT_TRUE(bytes.ok()) << bytes.status().message();
  const auto kernels = gpu::read_cubin(*bytes);
  ASSERT_TRUE(kernels.ok()) << kernels.status().message();
  EXPECT_EQ(kernels->size(), 2u);
  for (const gpu::CubinKernel& kernel : *kernels) {
    EXPECT_GT(kernel.code_bytes, 0) << kernel.name;
    EXPECT_EQ(kernel.stack_bytes, 0) << kernel.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Archs, SlotPolicyCompile, ::testing::Values(89, 90, 120));

}  // namespace
}  // namespace moray
