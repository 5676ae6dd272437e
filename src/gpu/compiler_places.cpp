#include "src/gpu/compiler_places.h"

#include <algorithm>
#include <filesystem>
#include <string_view>

namespace moray::gpu {
namespace {

namespace fs = std::filesystem;

constexpr int kFoldersAbove = 3;  // build/tests/gpu/test is the deepest program of the build

// Entries of `folder` whose names start with `prefix`, newest version first: names of one toolkit
// or interpreter differ in their version only, and "cuda" (the chosen one) comes before
// "cuda-12.8".
std::vector<fs::path> entries(const fs::path& folder, std::string_view prefix) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (at->path().filename().string().starts_with(prefix)) found.push_back(at->path());
  }
  std::sort(found.begin(), found.end(), [prefix](const fs::path& a, const fs::path& b) {
    const std::string left = a.filename(), right = b.filename();
    if ((left == prefix) != (right == prefix)) return left == prefix;
    if (left.size() != right.size()) return left.size() > right.size();
    return left > right;
  });
  return found;
}

// The library in `folder`: libnvrtc.so.13 rather than libnvrtc.so, which only linkers want.
void add_library(const fs::path& folder, const std::string& origin,
                 std::vector<CompilerPlace>& places) {
  for (const fs::path& file : entries(folder, "libnvrtc.so.")) {
    const std::string name = file.filename();
    // Not libnvrtc.so.13.0.88, to which libnvrtc.so.13 points.
    if (std::count(name.begin(), name.end(), '.') != 2) continue;
    places.push_back({file.string(), origin});
  }
}

void add_toolkit(const fs::path& root, std::vector<CompilerPlace>& places) {
  if (root.empty()) return;
  for (const char* lib : {"lib64", "lib", "targets/x86_64-linux/lib"})
    add_library(root / lib, "CUDA toolkit", places);
}

// The wheels' layouts: nvidia/cu13/lib since CUDA 13, nvidia/cuda_nvrtc/lib before.
void add_packages(const fs::path& packages, const std::string& origin,
                  std::vector<CompilerPlace>& places) {
  for (const fs::path& part : entries(packages / "nvidia", "cu"))
    add_library(part / "lib", origin, places);
}

// `root` is an environment's prefix: its lib/python3.X/{site,dist}-packages.
void add_python(const fs::path& root, std::vector<CompilerPlace>& places) {
  if (root.empty()) return;
  for (const fs::path& python : entries(root / "lib", "python3")) {
    for (const char* packages : {"site-packages", "dist-packages"})
      add_packages(python / packages, "Python environment", places);
  }
}

// The prefix of the python3 that PATH finds, not through its symbolic link: a virtual environment's
// python3 links to the system's.
fs::path python_prefix(const std::string& path) {
  for (size_t begin = 0; begin < path.size();) {
    const size_t end = std::min(path.find(':', begin), path.size());
    const fs::path folder = path.substr(begin, end - begin);
    std::error_code error;
    if (!folder.empty() && fs::exists(folder / "python3", error)) return folder.parent_path();
    begin = end + 1;
  }
  return {};
}

void add_build_folder(const std::string& program_folder, std::vector<CompilerPlace>& places) {
  fs::path folder = program_folder;
  for (int i = 0; i <= kFoldersAbove && !folder.empty(); ++i, folder = folder.parent_path()) {
    for (const fs::path& packages : entries(folder / "cuda", "nvrtc-"))
      add_packages(packages, "build folder", places);
  }
}

void drop_repeats(std::vector<CompilerPlace>& places) {
  std::vector<CompilerPlace> kept;
  for (CompilerPlace& place : places) {
    const auto is_same = [&](const CompilerPlace& other) { return other.file == place.file; };
    if (std::none_of(kept.begin(), kept.end(), is_same)) kept.push_back(std::move(place));
  }
  places = std::move(kept);
}

}  // namespace

std::vector<CompilerPlace> compiler_places(const Environment& environment) {
  std::vector<CompilerPlace> places;
  if (!environment.nvrtc.empty()) {
    places.push_back({environment.nvrtc, "MORAY_NVRTC"});
    return places;
  }
  add_toolkit(environment.cuda_home, places);
  for (const fs::path& root : entries("/usr/local", "cuda")) add_toolkit(root, places);
  for (const char* name : {"libnvrtc.so.13", "libnvrtc.so.12"})
    places.push_back({name, "system linker"});
  add_python(environment.virtual_env, places);
  add_python(python_prefix(environment.path), places);
  if (!environment.home.empty()) add_python(fs::path(environment.home) / ".local", places);
  add_python("/usr/local", places);
  add_build_folder(environment.program_folder, places);
  drop_repeats(places);
  return places;
}

}  // namespace moray::gpu
