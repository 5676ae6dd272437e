// The house rules that a program can check, over every source file of the tree.
//
// Include edges: a folder of src/ includes only what stands lower (docs/architecture.md); public
// headers see src/base only. Also: line width, file sizes, calls that library code must not make,
// unowned TODOs, a purpose at the head of each file, machine paths. A violation prints file:line.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace moray {
namespace {

namespace fs = std::filesystem;

// What each folder may include besides itself. "public" is include/moray.
const std::map<std::string, std::set<std::string>> kPermitted = {
    {"base", {}},
    {"tensor", {"base"}},
    {"formats", {"base", "tensor", "public"}},
    {"text", {"base", "public"}},
    {"gpu", {"base", "tensor"}},
    {"kernels", {"base", "tensor", "gpu"}},
    {"experts", {"base", "tensor", "gpu", "kernels"}},
    {"model", {"base", "tensor", "gpu", "formats", "kernels", "experts"}},
    {"generate",
     {"base", "tensor", "gpu", "formats", "text", "kernels", "experts", "model", "public"}},
    {"server", {"base", "public"}},
    {"cli", {"base", "public"}},
    {"public", {"base", "public"}},
};

constexpr size_t kLineColumns = 100;
constexpr size_t kSourceLines = 600;
constexpr size_t kHeaderLines = 300;

struct SourceFile {
  std::string path;  // relative to the root
  std::vector<std::string> lines;

  bool is_header() const { return path.ends_with(".h"); }
  bool under(std::string_view folder) const { return path.starts_with(folder); }
};

fs::path root() {
  return MORAY_SOURCE_DIR;
}

std::vector<std::string> read_lines(const fs::path& path) {
  std::ifstream in(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::vector<SourceFile> source_files() {
  std::vector<SourceFile> files;
  for (const char* top : {"include", "src", "tests", "bench", "tools"}) {
    if (!fs::exists(root() / top)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root() / top)) {
      const std::string extension = entry.path().extension();
      if (!std::set<std::string>{".h", ".cpp", ".inc", ".cu", ".cuh"}.contains(extension)) continue;
      files.push_back({fs::relative(entry.path(), root()).string(), read_lines(entry.path())});
    }
  }
  std::sort(files.begin(), files.end(),
            [](const SourceFile& a, const SourceFile& b) { return a.path < b.path; });
  return files;
}

// "src/text/bpe.cpp" -> "text", "include/moray/text.h" or "moray/text.h" -> "public", else "".
std::string folder_of(const std::string& path) {
  if (path.starts_with("include/moray/") || path.starts_with("moray/")) return "public";
  if (!path.starts_with("src/")) return "";
  const size_t slash = path.find('/', 4);
  return slash == std::string::npos ? "" : path.substr(4, slash - 4);
}

// The folder an include line names, or "" for the system's and the libraries' headers.
std::string included_folder(const std::string& line, std::string* header) {
  static const std::regex pattern(R"rx(^\s*#\s*include\s+["<]([^">]+)[">])rx");
  std::smatch match;
  if (!std::regex_search(line, match, pattern)) return "";
  *header = match[1];
  return folder_of(*header);
}

bool edge_permitted(const std::string& from, const std::string& to) {
  if (from == to) return true;
  const auto found = kPermitted.find(from);
  return found != kPermitted.end() && found->second.contains(to);
}

template <typename Check>
void for_each_line(const std::vector<SourceFile>& files, Check check) {
  for (const SourceFile& file : files) {
    for (size_t i = 0; i < file.lines.size(); ++i) {
      const std::string problem = check(file, file.lines[i]);
      if (!problem.empty()) ADD_FAILURE() << file.path << ':' << i + 1 << ": " << problem;
    }
  }
}

TEST(Tidy, EdgeRuleTellsRightFromWrong) {
  EXPECT_TRUE(edge_permitted("model", "kernels"));
  EXPECT_TRUE(edge_permitted("text", "text"));
  EXPECT_FALSE(edge_permitted("kernels", "model"));
  EXPECT_FALSE(edge_permitted("cli", "model"));
  EXPECT_FALSE(edge_permitted("unknown", "base"));
  std::string header;
  EXPECT_EQ(included_folder("#include \"src/model/model.h\"", &header), "model");
  EXPECT_EQ(included_folder("  # include <moray/engine.h>", &header), "public");
  EXPECT_EQ(included_folder("#include <vector>", &header), "");
}

TEST(Tidy, FoldersIncludeOnlyWhatStandsLower) {
  for_each_line(source_files(), [](const SourceFile& file, const std::string& line) -> std::string {
    const std::string from = folder_of(file.path);
    std::string header;
    const std::string to = included_folder(line, &header);
    if (header.ends_with(".cpp")) return "includes a source file";
    if (from.empty() || to.empty() || edge_permitted(from, to)) return "";
    return from + " may not include " + to + " (" + header + ")";
  });
}

TEST(Tidy, EverySourceFolderHasItsRule) {
  for (const SourceFile& file : source_files()) {
    if (!file.under("src/")) continue;
    EXPECT_TRUE(kPermitted.contains(folder_of(file.path))) << file.path << ": unknown folder";
  }
}

TEST(Tidy, LinesFitTheWidth) {
  for_each_line(source_files(), [](const SourceFile& file, const std::string& line) -> std::string {
    if (file.path.ends_with(".inc")) return "";
    size_t columns = 0;
    for (const char c : line) columns += (static_cast<unsigned char>(c) & 0xc0) != 0x80;
    return columns > kLineColumns ? std::to_string(columns) + " columns" : "";
  });
}

TEST(Tidy, FilesStayReadable) {
  for (const SourceFile& file : source_files()) {
    if (file.path.ends_with(".inc")) continue;
    const size_t limit = file.is_header() ? kHeaderLines : kSourceLines;
    EXPECT_LE(file.lines.size(), limit) << file.path << ": a file name is missing";
  }
}

TEST(Tidy, FilesSayWhatTheyAreFor) {
  for (const SourceFile& file : source_files()) {
    if (!file.is_header() && !file.under("tests/") && !file.under("tools/")) continue;
    ASSERT_FALSE(file.lines.empty()) << file.path;
    EXPECT_TRUE(file.lines[0].starts_with("//")) << file.path << ": no purpose at its head";
  }
}

TEST(Tidy, LibraryCodeNeitherPrintsNorExitsNorReadsTheEnvironment) {
  static const std::regex banned(
      R"rx((^|[^_[:alnum:]])((exit|_exit|quick_exit|abort|[fv]*printf|f?puts|perror|system|popen)rx"
      R"rx(|(secure_)?getenv)\s*\(|(cout|cerr|clog|stdout|stderr)\b))rx");
  // Where the contract is to end the process (a failed CHECK and the guard for shrunken files) or
  // to read the environment for all others.
  const std::set<std::string> exempt = {"src/base/check.cpp", "src/base/mapped_file.cpp",
                                        "src/gpu/environment.cpp"};
  for_each_line(source_files(),
                [&](const SourceFile& file, const std::string& line) -> std::string {
                  if (!file.under("src/") || file.under("src/cli/") || exempt.contains(file.path))
                    return "";
                  const std::string code = line.substr(0, line.find("//"));
                  return std::regex_search(code, banned) ? "banned call: " + line : "";
                });
}

TEST(Tidy, NoUnownedTodo) {
  static const std::regex mark(
      "\\b(TO"
      "DO|FIX"
      "ME|XX"
      "X)\\b");
  for_each_line(source_files(), [](const SourceFile&, const std::string& line) -> std::string {
    return std::regex_search(line, mark) ? "open an issue instead: " + line : "";
  });
}

TEST(Tidy, NoMachinePaths) {
  static const std::regex path(
      "[\"' (]/(ho"
      "me|ro"
      "ot|wo"
      "rk|op"
      "t|mnt)/");
  for_each_line(source_files(), [](const SourceFile&, const std::string& line) -> std::string {
    return std::regex_search(line, path) ? "absolute path: " + line : "";
  });
}

}  // namespace
}  // namespace moray
