// The machine code of a cubin, by kernel, as NVIDIA's nvdisasm prints it.
#pragma once

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <string_view>

namespace moray {

// The opcodes of each kernel ("LDG.E.128", "HMMA.16816.F32"), once each, NOPs left out.
using Sass = std::map<std::string, std::set<std::string>>;

// The opcode of a line "/*0060*/  @!P0 LDG.E R0, [R4.64] ;", or "".
inline std::string opcode_of(std::string_view line) {
  size_t at = line.find("*/");
  if (line.find("/*") == std::string_view::npos || at == std::string_view::npos) return "";
  const auto next_word = [&] {
    const size_t begin = line.find_first_not_of(" \t{", at);
    if (begin == std::string_view::npos) return std::string_view{};
    at = std::min(line.find_first_of(" \t;", begin), line.size());
    return line.substr(begin, at - begin);
  };
  at += 2;
  std::string_view word = next_word();
  if (word.starts_with('@')) word = next_word();
  return word == "NOP" ? "" : std::string(word);
}

inline Sass parse_sass(std::string_view text) {
  constexpr std::string_view kLabel = ".text.";
  Sass sass;
  std::set<std::string>* kernel = nullptr;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.starts_with(kLabel) && line.ends_with(':')) {
      kernel = &sass[std::string(line.substr(kLabel.size(), line.size() - kLabel.size() - 1))];
    } else if (kernel != nullptr) {
      const std::string opcode = opcode_of(line);
      if (!opcode.empty()) kernel->insert(opcode);
    }
  }
  return sass;
}

// A Sass as text and back: "kernel: LDG.E.128 EXIT\n".
inline std::string write_sass(const Sass& sass) {
  std::string text;
  for (const auto& [kernel, opcodes] : sass) {
    text += kernel + ":";
    for (const std::string& opcode : opcodes) text += " " + opcode;
    text += "\n";
  }
  return text;
}
inline Sass read_sass(const std::string& text) {
  Sass sass;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line.substr(line.find(':') + 1));
    std::set<std::string>& opcodes = sass[line.substr(0, line.find(':'))];
    for (std::string opcode; words >> opcode;) opcodes.insert(opcode);
  }
  return sass;
}

// What `program` prints about `file`; "" when it fails.
inline std::string disassemble(const std::string& program, const std::string& file) {
  std::FILE* pipe = popen(("'" + program + "' -c '" + file + "' 2>/dev/null").c_str(), "r");
  if (pipe == nullptr) return "";
  std::string text;
  char piece[1 << 16];
  for (size_t got; (got = std::fread(piece, 1, sizeof(piece), pipe)) > 0;) text.append(piece, got);
  return pclose(pipe) == 0 ? text : "";
}

}  // namespace moray
