// Speed of the tokenizer, single thread, in megabytes of text a second.
//
//   bench_tokenizer [FOLDER] [google benchmark flags]
// FOLDER holds tokenizer.json; without it the qwen35 stand-in of the tests is used, whose small
// vocabulary is the harder case (more merges a word). Cases: code (this repository's own sources),
// hindi (words with marks, NFC passes over them), decomposed (NFC has to compose), letters (one
// long word: the heap), blanks (one long run), decode (streamed bytes of the code case), load.
#include <benchmark/benchmark.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "moray/text.h"

namespace moray {
namespace {

constexpr size_t kTextBytes = 1 << 20;

std::string repeat(std::string_view unit) {
  std::string text;
  while (text.size() + unit.size() <= kTextBytes) text += unit;
  return text;
}

std::string own_sources() {
  std::string all;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(MORAY_SOURCE_DIR "/src")) {
    if (entry.path().extension() != ".cpp" && entry.path().extension() != ".h") continue;
    std::ifstream in(entry.path(), std::ios::binary);
    all.append(std::istreambuf_iterator<char>(in), {});
  }
  return repeat(all.substr(0, kTextBytes));
}

void encode(benchmark::State& state, const Tokenizer& tokenizer, const std::string& text) {
  size_t tokens = 0;
  for (auto _ : state) {
    const auto ids = tokenizer.encode(text, ControlTokens::kAllow);
    tokens = ids->size();
    benchmark::DoNotOptimize(tokens);
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * text.size()));
  state.counters["bytes_per_token"] =
      static_cast<double>(text.size()) / static_cast<double>(tokens);
}

void decode(benchmark::State& state, const std::shared_ptr<const Tokenizer>& tokenizer,
            const std::string& text) {
  const auto ids = tokenizer->encode(text, ControlTokens::kAllow);
  for (auto _ : state) {
    StreamDecoder decoder(tokenizer);
    for (const TokenId id : *ids) benchmark::DoNotOptimize(decoder.push(id));
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * text.size()));
}

void load(benchmark::State& state, const std::string& folder) {
  for (auto _ : state) benchmark::DoNotOptimize(Tokenizer::load(folder));
}

int run(const std::string& folder) {
  const auto loaded = Tokenizer::load(folder);
  if (!loaded.ok()) {
    std::fprintf(stderr, "error: %s\n", loaded.status().message().c_str());
    return 1;
  }
  const auto tokenizer = *loaded;
  const std::string code = own_sources();
  const std::pair<const char*, std::string> cases[] = {
      {"code", code},
      {"hindi", repeat("नमस्ते दुनिया, यह एक परीक्षण है। ")},
      {"decomposed", repeat("Cafe\u0301 de\u0301compose\u0301 ")},
      {"letters", repeat("the")},
      {"blanks", repeat(" ")}};
  for (const auto& [name, text] : cases) {
    benchmark::RegisterBenchmark(name, [tokenizer, text = text](benchmark::State& state) {
      encode(state, *tokenizer, text);
    });
  }
  benchmark::RegisterBenchmark("decode",
                               [=](benchmark::State& state) { decode(state, tokenizer, code); });
  benchmark::RegisterBenchmark("load", [=](benchmark::State& state) { load(state, folder); });
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

}  // namespace
}  // namespace moray

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  return moray::run(argc > 1 ? argv[1] : MORAY_SOURCE_DIR "/tests/data/text/qwen35");
}
