// What the text tests share: fixture paths, random text with its seed, and tiny tokenizers.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "src/text/byte_level_tokenizer.h"
#include "src/text/tokenizer_file.h"
#include "src/text/utf8.h"

namespace moray {

inline std::string data_path(const std::string& name) {
  return std::string(MORAY_SOURCE_DIR) + "/tests/data/text/" + name;
}

inline std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

inline nlohmann::json read_json(const std::string& name) {
  return nlohmann::json::parse(read_text(data_path(name)));
}

// A stand-in tokenizer under tests/data/text, as the class whose work can be counted.
inline std::shared_ptr<const ByteLevelTokenizer> load_stand_in(const std::string& name) {
  auto file = parse_tokenizer_file(read_text(data_path(name + "/tokenizer.json")), "");
  EXPECT_TRUE(file.ok()) << file.status().message();
  return std::make_shared<ByteLevelTokenizer>(*std::move(file));
}

// A generator with a fresh seed; SCOPED_TRACE(random.trace()) prints it when a check fails.
struct FreshRandom {
  uint32_t seed = std::random_device{}();
  std::mt19937 engine{seed};

  std::string trace() const { return "seed " + std::to_string(seed); }
  uint32_t below(uint32_t end) {
    return std::uniform_int_distribution<uint32_t>(0, end - 1)(engine);
  }
  template <typename T>
  const T& pick(const std::vector<T>& from) {
    return from[below(static_cast<uint32_t>(from.size()))];
  }
  // A scalar value: mostly ASCII and the scripts' planes, now and then any.
  uint32_t code_point() {
    const uint32_t kind = below(8);
    if (kind < 3) return below(0x80);
    if (kind < 5) return below(0x3100);
    const uint32_t any = below(kind < 7 ? 0x1F000 : 0x110000 - 0x800);
    return any < 0xD800 ? any : any + 0x800;
  }
  std::string text(uint32_t characters_max) {
    std::string out;
    for (uint32_t i = below(characters_max + 1); i > 0; --i) append_character(out, code_point());
    return out;
  }
};

// Bytes of all tokens, joined.
inline std::string join_bytes(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  std::string bytes;
  for (const TokenId id : ids) bytes += tokenizer.token_bytes(id);
  return bytes;
}

}  // namespace moray
