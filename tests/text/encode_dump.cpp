// Encodes texts read from stdin and writes their ids: Moray's side of tools/compare_tokenizers.py.
//
//   encode_dump FOLDER allow|text < texts > ids
// In: records of a 32-bit length and that many bytes. Out: for each a 32-bit count and the ids, or
// count 0xFFFFFFFF for a refused text. The seconds spent in encode and the megabytes go to stderr.
// Little-endian machines only, like the script that reads it.
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <string>
#include <string_view>
#include <vector>

#include "moray/text.h"

namespace {

int dump(const moray::Tokenizer& tokenizer, moray::ControlTokens control) {
  std::clock_t spent = 0;  // processor time, so that a busy machine does not matter
  size_t bytes = 0;
  std::string text;
  uint32_t length = 0;
  while (std::fread(&length, sizeof(length), 1, stdin) == 1) {
    text.resize(length);
    if (std::fread(text.data(), 1, length, stdin) != length) return 1;
    const std::clock_t start = std::clock();
    const auto ids = tokenizer.encode(text, control);
    spent += std::clock() - start;
    bytes += length;
    const uint32_t count = ids.ok() ? static_cast<uint32_t>(ids->size()) : UINT32_MAX;
    std::fwrite(&count, sizeof(count), 1, stdout);
    if (ids.ok()) std::fwrite(ids->data(), sizeof(moray::TokenId), ids->size(), stdout);
  }
  std::fprintf(stderr, "%.6f %.6f\n", static_cast<double>(spent) / CLOCKS_PER_SEC,
               static_cast<double>(bytes) / 1e6);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return std::fprintf(stderr, "usage: encode_dump FOLDER allow|text\n"), 2;
  const auto tokenizer = moray::Tokenizer::load(argv[1]);
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "error: %s\n", tokenizer.status().message().c_str());
    return 1;
  }
  const bool allows = std::string_view(argv[2]) == "allow";
  return dump(**tokenizer, allows ? moray::ControlTokens::kAllow : moray::ControlTokens::kAsText);
}
