// A decode step on the GPU makes no allocation of any kind: heap, pinned or device.
//
// heap_counter.h replaces the program's operator new by one that counts; counts are taken where a
// step hands over its token.
#include <gtest/gtest.h>

#include "tests/gpu/model.h"
#include "tests/support/gates.h"
#include "tests/support/heap_counter.h"

namespace moray {
namespace {

struct Counts {
  int64_t heap = 0, device = 0, pinned = 0;
  bool operator==(const Counts&) const = default;
};

Counts counts_now() {
  const gpu::AllocationCounts gpu = gpu::allocation_counts();
  return {heap_allocations, gpu.device, gpu.pinned};
}

TEST(GpuDecodeStep, AllocatesNothing) {
  MORAY_GPU_TEST();
  const Fixture fixture = load_fixture("tiny-fp8");
  const auto model = gpu_model(*fixture.weights);
  ASSERT_NE(model, nullptr);
  GpuRunner runner(model, false);
  std::vector<float> logits(static_cast<size_t>(fixture.vocab()));
  const int32_t token = 1;
  ASSERT_TRUE(runner.forward().forward({&token, 1}, 1, logits.data()).ok());
  const Counts before_steps = counts_now();
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(runner.forward().forward({&token, 1}, 1, logits.data()).ok());
  }
  EXPECT_EQ(counts_now(), before_steps) << "steps whose logits the host reads";

  Counts first;
  Counts last;
  int picks = 0;
  const auto take = [&](int32_t) {
    (picks++ == 0 ? first : last) = counts_now();
    return true;
  };
  ASSERT_TRUE(runner.forward().decode_greedily(1, 150, logits.data(), take).ok());
  EXPECT_EQ(picks, 150);
  EXPECT_EQ(last, first) << "steps that the device goes on with by itself";
}

}  // namespace
}  // namespace moray
