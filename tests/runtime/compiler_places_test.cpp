// Where NVRTC is looked for, and what is said when it is not there or not one.
#include "src/gpu/compiler_places.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "src/gpu/compiler.h"
#include "src/gpu/program.h"
#include "tests/support/temp_folder.h"

namespace moray::gpu {
namespace {

// What was found below `folder`, by its path from there.
std::vector<std::string> found_below(const TempFolder& folder, const Environment& environment) {
  std::vector<std::string> found;
  for (const CompilerPlace& place : compiler_places(environment)) {
    if (place.file.starts_with(folder.path()))
      found.push_back(place.file.substr(folder.path().size() + 1) + " " + place.origin);
  }
  return found;
}

TEST(CompilerPlaces, ToolkitThenPythonThenBuildFolder) {
  const TempFolder folder;
  folder.write("toolkit/lib64/libnvrtc.so", "");
  folder.write("toolkit/lib64/libnvrtc.so.13", "");
  folder.write("toolkit/lib64/libnvrtc.so.13.0.88", "");
  folder.write("venv/lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12", "");
  folder.write("venv/lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.alt.so.12", "");
  folder.write("conda/bin/python3", "");
  folder.write("conda/lib/python3.13/site-packages/nvidia/cu13/lib/libnvrtc.so.13", "");
  folder.write("build/cuda/nvrtc-13/nvidia/cu13/lib/libnvrtc.so.13", "");
  Environment environment;
  environment.cuda_home = folder / "toolkit";
  environment.virtual_env = folder / "venv";
  environment.path = "/nonexistent::" + folder / "conda/bin";
  environment.program_folder = folder / "build/tests/gpu";
  EXPECT_EQ(
      found_below(folder, environment),
      (std::vector<std::string>{
          "toolkit/lib64/libnvrtc.so.13 CUDA toolkit",
          "venv/lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12 Python "
          "environment",
          "conda/lib/python3.13/site-packages/nvidia/cu13/lib/libnvrtc.so.13 Python environment",
          "build/cuda/nvrtc-13/nvidia/cu13/lib/libnvrtc.so.13 build folder"}));
}

TEST(CompilerPlaces, TheOverrideIsTheOnlyPlace) {
  Environment environment = read_environment();
  environment.nvrtc = "/somewhere/libnvrtc.so.13";
  const std::vector<CompilerPlace> places = compiler_places(environment);
  ASSERT_EQ(places.size(), 1u);
  EXPECT_EQ(places[0].file, "/somewhere/libnvrtc.so.13");
}

TEST(Compiler, AnOverrideThatIsNotThereIsNamedInOneSentence) {
  Environment environment;
  environment.nvrtc = "/nonexistent/libnvrtc.so.13";
  const auto compiler = Compiler::find(environment, 13000);
  ASSERT_FALSE(compiler.ok());
  EXPECT_EQ(compiler.status().code(), StatusCode::kUnsupported);
  const std::string& text = compiler.status().message();
  EXPECT_NE(text.find("/nonexistent/libnvrtc.so.13 (MORAY_NVRTC)"), std::string::npos) << text;
  EXPECT_NE(text.find("expected version 12.8 to 13.x"), std::string::npos) << text;
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
}

TEST(Compiler, AFileThatIsNoLibraryAndALibraryThatIsNoCompilerAreRefused) {
  const TempFolder folder;
  Environment environment;
  environment.nvrtc = folder.write("libnvrtc.so.13", "not a library");
  const auto text_file = Compiler::find(environment, 13000);
  ASSERT_FALSE(text_file.ok());
  EXPECT_NE(text_file.status().message().find("does not load"), std::string::npos);
  environment.nvrtc = "libm.so.6";
  const auto other = Compiler::find(environment, 13000);
  ASSERT_FALSE(other.ok());
  EXPECT_NE(other.status().message().find("is no NVRTC"), std::string::npos)
      << other.status().message();
}

TEST(CacheFolder, FollowsTheBaseDirectorySpecification) {
  Environment environment;
  EXPECT_EQ(cache_folder(environment), "");
  environment.home = "/users/ada";
  EXPECT_EQ(cache_folder(environment), "/users/ada/.cache/moray/kernels");
  environment.cache_home = "relative";
  EXPECT_EQ(cache_folder(environment), "/users/ada/.cache/moray/kernels");
  environment.cache_home = "/caches";
  EXPECT_EQ(cache_folder(environment), "/caches/moray/kernels");
}

}  // namespace
}  // namespace moray::gpu
