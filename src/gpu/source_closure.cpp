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

bool is_word_part(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

// The name that a line "constexpr TYPE NAME = VALUE;" defines, or an empty view.
std::string_view defined_name(std::string_view line) {
  const size_t equals = line.find(" = ");
  if (!line.starts_with("constexpr ") || equals == std::string_view::npos) return {};
  size_t begin = equals;
  while (begin > 0 && is_word_part(line[begin - 1])) --begin;
  return line.substr(begin, equals - begin);
}

bool holds_word(std::string_view text, std::string_view word) {
  for (size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((at == 0 || !is_word_part(text[at - 1])) &&
        (end == text.size() || !is_word_part(text[end])))
      return true;
  }
  return false;
}

template <typename Use>
void for_each_line(std::string_view text, Use use) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    use(text.substr(begin, end - begin));
    begin = end + 1;
  }
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
    for (Unit::File& header : unit_.headers) {
      if (header.name == kConstants) header.text = mentioned_constants();
    }
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

  bool is_mentioned(std::string_view name) const {
    return holds_word(unit_.source.text, name) ||
           std::any_of(unit_.headers.begin(), unit_.headers.end(),
                       [name](const Unit::File& file) { return holds_word(file.text, name); });
  }

  std::string mentioned_constants() const {
    std::string text;
    for_each_line(constants_, [&](std::string_view line) {
      const std::string_view name = defined_name(line);
      if (name.empty() || is_mentioned(name)) text.append(line).push_back('\n');
    });
    return text;
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

  // The line that stands for an include of `name` in `from`; what it names is held.
  Status include(const Source& from, std::string_view name, std::string& text) {
    if (name == kConstants) {
      if (!is_held(kConstants)) unit_.headers.push_back({std::string(kConstants), ""});
      text.append("#include \"").append(kConstants).append("\"\n");
      return Status();
    }
    const Source* header = resolve(from, name);
    if (header == nullptr) {
      return Status(StatusCode::kNotFound,
                    fmt::format("{}: found an include of \"{}\", expected an embedded file",
                                from.name, name));
    }
    text.append("#include \"").append(header->name).append("\"\n");
    return hold(*header);
  }

  Result<std::string> rewrite(const Source& source) {
    std::string text;
    text.reserve(source.text.size() + 64);
    Status status;
    for_each_line(source.text, [&](std::string_view line) {
      const std::string_view name = included_name(line);
      if (name.empty()) {
        text.append(line).push_back('\n');
      } else if (status.ok()) {
        status = include(source, name, text);
      }
    });
    RETURN_IF_ERROR(status);
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
