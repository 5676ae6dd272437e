// NVRTC itself, where the build folder has it: messages, the cache between processes.
#include "src/gpu/compiler.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <vector>

#include "src/gpu/cubin.h"
#include "tests/cuda/build_folder.h"
#include "tests/gpu/small_program.h"
#include "tests/support/temp_folder.h"

namespace moray::gpu {
namespace {

class CompilerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto found = build_folder_compiler();
    if (!found.ok()) GTEST_SKIP() << found.status().message() << "; ./test fetches it";
    compiler_ = *found;
  }
  const Compiler& compiler() const { return *compiler_; }

 private:
  std::shared_ptr<const Compiler> compiler_;
};

TEST_F(CompilerTest, SaysWhichItIs) {
  EXPECT_GE(compiler().version(), 12080);
  EXPECT_NE(compiler().where().find("(MORAY_NVRTC)"), std::string::npos) << compiler().where();
  EXPECT_NE(compiler().where().find("/libnvrtc.so."), std::string::npos) << compiler().where();
}

TEST_F(CompilerTest, OneNewerThanTheDriverIsRefused) {
  const auto refused = Compiler::find(build_folder_environment(), 11080);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("as the driver serves CUDA 11.8"), std::string::npos)
      << refused.status().message();
}

TEST_F(CompilerTest, AllThreeArchitecturesAndTheirKernelsAreRead) {
  for (const int arch : {89, 90, 120}) {
    const auto cubins = compile(compiler(), small_request(), arch, {});
    ASSERT_TRUE(cubins.ok()) << cubins.status().message();
    const auto kernels = read_cubin((*cubins)[0].bytes);
    ASSERT_TRUE(kernels.ok()) << kernels.status().message();
    ASSERT_EQ(kernels->size(), 4u);
    for (const CubinKernel& kernel : *kernels) {
      EXPECT_EQ(kernel.param_bytes, static_cast<int>(sizeof(AddParams))) << kernel.name;
      EXPECT_GT(kernel.registers, 0) << kernel.name;
      EXPECT_EQ(kernel.stack_bytes, 0) << kernel.name;
    }
  }
}

TEST_F(CompilerTest, StackAndSharedMemoryAreRead) {
  const Source sources[] = {{"odd.cu", R"cuda(
struct Params { int* out; int at; };
extern "C" __global__ void odd(const __grid_constant__ Params p) {
  __shared__ int held[300];
  int local[64];
  for (int i = 0; i < 64; ++i) local[i] = i * p.at;
  held[threadIdx.x] = local[p.at];
  __syncthreads();
  p.out[threadIdx.x] = held[p.at] + local[p.at * 3];
}
)cuda"}};
  const auto cubins =
      compile(compiler(), {.sources = sources, .programs = {"odd.cu"}, .constants = ""}, 89, {});
  ASSERT_TRUE(cubins.ok()) << cubins.status().message();
  const auto kernels = read_cubin((*cubins)[0].bytes);
  ASSERT_TRUE(kernels.ok());
  ASSERT_EQ(kernels->size(), 1u);
  EXPECT_EQ((*kernels)[0].stack_bytes, 256);
  EXPECT_EQ((*kernels)[0].static_shared, 1200);
  EXPECT_EQ((*kernels)[0].param_bytes, 16);
}

// An aligned struct does not begin where the parameter space does.
TEST_F(CompilerTest, ParametersAreMeasuredWithoutTheGapInFrontOfThem) {
  const Source sources[] = {{"aligned.cu", R"cuda(
struct alignas(64) Map { char bytes[128]; };
struct Params { Map maps[2]; int* out; };
extern "C" __global__ void aligned(const __grid_constant__ Params p) {
  *p.out = p.maps[1].bytes[5];
}
)cuda"}};
  for (const int arch : {89, 90, 120}) {
    const auto cubins = compile(
        compiler(), {.sources = sources, .programs = {"aligned.cu"}, .constants = ""}, arch, {});
    ASSERT_TRUE(cubins.ok()) << cubins.status().message();
    const auto kernels = read_cubin((*cubins)[0].bytes);
    ASSERT_TRUE(kernels.ok() && kernels->size() == 1);
    EXPECT_EQ((*kernels)[0].param_bytes, 320) << arch;
  }
}

TEST_F(CompilerTest, TheFirstErrorIsOneLineThatNamesProgramAndPlace) {
  const Source sources[] = {
      {"broken.cu", "int before;\nextern \"C\" __global__ void k() { x = 1; }"}};
  const auto cubins =
      compile(compiler(), {.sources = sources, .programs = {"broken.cu"}, .constants = ""}, 90, {});
  ASSERT_FALSE(cubins.ok());
  EXPECT_EQ(cubins.status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(cubins.status().message(),
            "broken.cu for sm_90: found 'broken.cu(2): error: identifier \"x\" is undefined', "
            "expected it to compile");
}

TEST_F(CompilerTest, ProgressCountsEveryProgramOnce) {
  std::vector<Source> sources;
  std::vector<std::string> programs;
  for (const char* name : {"a.cu", "b.cu", "c.cu", "d.cu", "e.cu"}) {
    sources.push_back({name, "extern \"C\" __global__ void k() {}"});
    programs.push_back(name);
  }
  int last = 0;
  const auto cubins = compile(compiler(), {sources, programs, ""}, 89, [&](int done, int total) {
    EXPECT_GT(done, last);
    EXPECT_EQ(total, 5);
    last = done;
  });
  ASSERT_TRUE(cubins.ok());
  EXPECT_EQ(last, 5);
  for (size_t i = 0; i < programs.size(); ++i) EXPECT_EQ((*cubins)[i].program, programs[i]);
}

TEST_F(CompilerTest, ADamagedCacheEntryIsBuiltAgain) {
  const TempFolder folder;
  BuildReport first, second, third;
  const auto build = [&](BuildReport& report) {
    return obtain_cubins(compiler(), small_request(), 90, folder / "cache", {}, report);
  };
  const auto made = build(first);
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(first.compiled, 1);
  ASSERT_TRUE(build(second).ok());
  EXPECT_EQ(second.from_cache, 1);
  for (const auto& entry : std::filesystem::directory_iterator(folder / "cache"))
    std::filesystem::resize_file(entry.path(), entry.file_size() / 2);
  const auto again = build(third);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(third.compiled, 1);
  EXPECT_EQ((*again)[0].bytes, (*made)[0].bytes);
}

TEST_F(CompilerTest, WithoutAWritableCacheItWorksAndSaysSo) {
  const TempFolder folder;
  folder.write("file", "");
  BuildReport report;
  const auto cubins =
      obtain_cubins(compiler(), small_request(), 90, folder / "file/cache", {}, report);
  ASSERT_TRUE(cubins.ok());
  EXPECT_EQ(report.compiled, 1);
  EXPECT_NE(report.cache_trouble.find("file/cache"), std::string::npos) << report.cache_trouble;
  EXPECT_NE(report.line().find("not kept: kernel cache"), std::string::npos) << report.line();
}

// Both start with an empty cache at once; each must end with the same bytes, and one whole entry a
// program must stay.
TEST_F(CompilerTest, TwoProcessesMayBuildTheSameSetAtOnce) {
  const TempFolder folder;
  std::vector<pid_t> children;
  for (int i = 0; i < 2; ++i) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      BuildReport report;
      const auto made =
          obtain_cubins(compiler(), small_request(7), 90, folder / "cache", {}, report);
      _exit(made.ok() && report.cache_trouble.empty() ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  BuildReport report;
  const auto made = obtain_cubins(compiler(), small_request(7), 90, folder / "cache", {}, report);
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(report.from_cache, 1);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder / "cache"), {}), 1);
}

}  // namespace
}  // namespace moray::gpu
