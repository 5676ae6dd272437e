// Drivers and GPUs that Moray cannot use, played by a libcuda.so.1 of the tests: one sentence each.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

namespace moray::gpu {
namespace {

// What device_dump prints with the fake driver in front of any real one.
std::string opening_with(const std::string& settings) {
  const std::string command =
      "LD_LIBRARY_PATH='" MORAY_FAKE_DRIVER_DIR "' " + settings + " '" MORAY_DEVICE_DUMP "' 2>&1";
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return "popen failed";
  std::string text;
  char piece[4096];
  while (std::fgets(piece, sizeof(piece), pipe) != nullptr) text += piece;
  EXPECT_EQ(pclose(pipe), 0) << text;
  return text;
}

TEST(OddDriver, AUsualOneOpens) {
  EXPECT_EQ(opening_with(""), "opened Fake GPU, arch 89\n");
}

TEST(OddDriver, TooOldIsSaidWithBothVersions) {
  EXPECT_EQ(opening_with("FAKE_CUDA_VERSION=11040"),
            "NVIDIA driver: found one for CUDA 11.4, expected 12.0 or newer\n");
}

TEST(OddDriver, OneThatRefusesToStartIsQuoted) {
  EXPECT_EQ(
      opening_with("FAKE_CUDA_INIT=803"),
      "NVIDIA driver: found CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (as the test asked for) at start, "
      "expected success\n");
}

TEST(OddDriver, ADriverWithoutAGpuIsSaidAtStartAndByCount) {
  const std::string none = "GPU: found none that the NVIDIA driver can use, expected one\n";
  EXPECT_EQ(opening_with("FAKE_CUDA_INIT=100"), none);
  EXPECT_EQ(opening_with("FAKE_CUDA_DEVICES=0"), none);
}

TEST(OddDriver, OlderAndUnknownGpusAreNamed) {
  EXPECT_EQ(opening_with("FAKE_CUDA_CAPABILITY=86"),
            "cuda:0 Fake GPU: found compute capability 8.6, expected 8.9, 9.0 or 12.0\n");
  EXPECT_EQ(opening_with("FAKE_CUDA_CAPABILITY=121"),
            "cuda:0 Fake GPU: found compute capability 12.1, expected 8.9, 9.0 or 12.0\n");
  EXPECT_EQ(opening_with("FAKE_CUDA_CAPABILITY=120"), "opened Fake GPU, arch 120\n");
}

TEST(OddDriver, AGpuThatAnotherProcessHoldsIsQuoted) {
  EXPECT_EQ(opening_with("FAKE_CUDA_CONTEXT=46"),
            "cuda:0 Fake GPU: found CUDA_ERROR_OTHER (as the test asked for), expected success\n");
}

}  // namespace
}  // namespace moray::gpu
