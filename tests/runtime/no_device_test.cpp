// What a machine without a GPU is told: one sentence, and no crash.
//
// On a machine that has a driver the same calls must work or say one sentence as well.
#include <gtest/gtest.h>

#include "src/gpu/device.h"

namespace moray::gpu {
namespace {

bool is_one_sentence(const std::string& text) {
  return !text.empty() && text.find('\n') == std::string::npos &&
         text.find("found ") != std::string::npos && text.find("expected ") != std::string::npos;
}

TEST(NoDevice, ListingSaysWhyInOneSentence) {
  const Result<std::vector<DeviceInfo>> devices = list_devices();
  if (devices.ok()) GTEST_SKIP() << "this machine has " << devices->size() << " GPUs";
  EXPECT_EQ(devices.status().code(), StatusCode::kUnsupported);
  EXPECT_TRUE(is_one_sentence(devices.status().message())) << devices.status().message();
}

TEST(NoDevice, OpeningSaysTheSameEveryTime) {
  const Result<std::shared_ptr<Device>> first = Device::open(0), second = Device::open(0);
  if (first.ok()) GTEST_SKIP() << "this machine has a GPU: " << (*first)->info().name;
  EXPECT_TRUE(is_one_sentence(first.status().message())) << first.status().message();
  EXPECT_EQ(first.status().message(), second.status().message());
}

TEST(NoDevice, OnlyTheThreeArchitecturesAreOurs) {
  DeviceInfo info;
  const auto arch_of = [&](int major, int minor) {
    info.major = major;
    info.minor = minor;
    return info.arch();
  };
  EXPECT_EQ(arch_of(8, 9), 89);
  EXPECT_EQ(arch_of(9, 0), 90);
  EXPECT_EQ(arch_of(12, 0), 120);
  EXPECT_EQ(arch_of(8, 6), 0);
  EXPECT_EQ(arch_of(10, 0), 0);
  EXPECT_EQ(arch_of(12, 1), 0);
}

}  // namespace
}  // namespace moray::gpu
