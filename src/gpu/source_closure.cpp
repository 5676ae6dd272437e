#include "src/gpu/source_closure.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

namespace moray::gpu {
namespace {

constexpr std::string_view kRoot = "src/kernels/cuda/";
constexpr std::string_view kConstants = "constants.cuh";

// The quoted name of an include line and where it stands, or an empty view.
std::string_view included_name(std::string_view line) {
  size_t at = line.find_first_not_of(" \t");
  if (at == std::string_view::npos || line[at] != '#') return {};
  at = line.find_first_not_of(" \t", at + 1);
  constexpr std::string_view kWord = "include";
  if (at == std::string_view::npos || line.substr(at, kWord.size()) != kWord) return {};
  at = line.find_first_not_of(" \t", at + kWord.size());
  if (at == std::string_view::npos || line[at] != '"') return {};
  const size_t end = line.find('"', at + 1);
  if (end == std::string_view::npos) return {};
  return line.substr(at + 1, end - at - 1);
}

class Closure {
 public:
  Closure(std::span<const Source> sources, const std::string& constants)
      : sources_(sources), constants_(constants) {}

  Result<Unit> make(std::string_view program) {
    const Source* source = find(program);
    if (source == nullptr) {
      return Status(StatusCode::kNotFound,
                    fmt::format("{}: found no such source, expected one of the embedded", program));
    }
    unit_.source.name = program;
    ASSIGN_OR_RETURN(unit_.source.text, rewrite(*source));
    return std::move(unit_);
  }

 private:
  const Source* find(std::string_view name) const {
    const auto found = std::find_if(sources_.begin(), sources_.end(),
                                    [name](const Source& source) { return source.name == name; });
    return found == sources_.end() ? nullptr : &*found;
  }

  // The source an include line of `from` names, or null.
  const Source* resolve(const Source& from, std::string_view name) const {
    namespace fs = std::filesystem;
    const fs::path beside = fs::path(from.name).parent_path() / name;
    if (const Source* found = find(beside.lexically_normal().generic_string())) return found;
    if (const Source* found = find(name)) return found;
    return name.starts_with(kRoot) ? find(name.substr(kRoot.size())) : nullptr;
  }

  bool is_held(std::string_view name) const {
    return std::any_of(unit_.headers.begin(), unit_.headers.end(),
                       [name](const Unit::File& file) { return file.name == name; });
  }

  // Puts the header into the unit, with those it includes. Entered before its text is read, so that
  // a circle of includes ends.
  Status hold(const Source& header) {
    if (is_held(header.name)) return Status();
    const size_t index = unit_.headers.size();
    unit_.headers.push_back({std::string(header.name), ""});
    ASSIGN_OR_RETURN(std::string text, rewrite(header));
    unit_.headers[index].text = std::move(text);
    return Status();
  }

  Result<std::string> rewrite(const Source& source) {
    std::string text;
    text.reserve(source.text.size() + 64);
    for (size_t begin = 0; begin < source.text.size();) {
      const size_t end = std::min(source.text.find('\n', begin), source.text.size());
      const std::string_view line = source.text.substr(begin, end - begin);
      begin = end + 1;
      const std::string_view name = included_name(line);
      if (name.empty()) {
        text.append(line).push_back('\n');
      } else if (name == kConstants) {
        if (!is_held(kConstants)) unit_.headers.push_back({std::string(kConstants), constants_});
        text.append(line).push_back('\n');
      } else {
        const Source* header = resolve(source, name);
        if (header == nullptr) {
          return Status(StatusCode::kNotFound,
                        fmt::format("{}: found an include of \"{}\", expected an embedded file",
                                    source.name, name));
        }
        RETURN_IF_ERROR(hold(*header));
        text.append("#include \"").append(header->name).append("\"\n");
      }
    }
    return text;
  }

  std::span<const Source> sources_;
  const std::string& constants_;
  Unit unit_;
};

}  // namespace

Result<Unit> make_unit(std::span<const Source> sources, std::string_view program,
                       const std::string& constants) {
  return Closure(sources, constants).make(program);
}

}  // namespace moray::gpu
