// A kernel that faults takes its context with it: what the program then says, and that it lives on.
//
// Each case runs in a process of its own, which this program starts with itself: the context of the
// process that other tests share must not be lost.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/gpu/device.h"
#include "tests/gpu/small_program.h"
#include "tests/support/gates.h"

namespace moray::gpu {
namespace {

constexpr const char* kChild = "MORAY_TEST_LOST_DEVICE";

TEST(LostDevice, AFaultIsAStatusWithItsReasonForEver) {
  MORAY_GPU_TEST();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    setenv(kChild, "1", 1);
    execl("/proc/self/exe", "gpu_tests", "--gtest_also_run_disabled_tests",
          "--gtest_filter=LostDevice.DISABLED_*", nullptr);
    _exit(127);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// Only as the child of the test above.
TEST(LostDevice, DISABLED_TrapInThisProcess) {
  if (!test_flag(kChild)) GTEST_SKIP() << "runs in a process of its own";
  const std::shared_ptr<Device> device = test_device();
  const auto stream = test_stream();
  ASSERT_NE(stream, nullptr);
  const auto set = KernelSet::build(device, small_request(), {});
  ASSERT_TRUE(set.ok()) << set.status().message();
  auto memory = DeviceMemory::allocate(device, 4096);
  ASSERT_TRUE(memory.ok());
  int* data = reinterpret_cast<int*>(memory->data());
  launch(*stream, (*set)->find("trap_at"), {}, AddParams{data, data, 5, 5});
  const Status first = stream->synchronize();
  EXPECT_EQ(first.code(), StatusCode::kIo);
  EXPECT_NE(first.message().find("cuda:0"), std::string::npos) << first.message();
  EXPECT_NE(first.message().find("CUDA_ERROR_"), std::string::npos) << first.message();
  std::printf("%s\n", first.message().c_str());

  // Nothing below may crash or hang, and every wait says the same.
  launch(*stream, (*set)->find("add"), {}, AddParams{data, data, 5, 5});
  fill(*stream, data, 0, 4096);
  int host[4];
  copy_to_host(*stream, host, data, sizeof(host));
  EXPECT_EQ(stream->synchronize().message(), first.message());
  const auto more = DeviceMemory::allocate(device, 4096);
  EXPECT_FALSE(more.ok());
  EXPECT_FALSE(Graph::capture(*stream, [] {}).ok());
}

}  // namespace
}  // namespace moray::gpu
