// Writes a model's logits at chosen positions of a token sequence, for
// tools/compare_transformers.py.
//
//   logits_dump MODEL TOKENS OUT PRECISION THREADS BEGIN END [BEGIN END ...]
//
// TOKENS holds int32 ids; OUT gets FP32 rows [END - BEGIN, vocab_rows] range after range, ranges
// ascending; PRECISION is "float32" or "bfloat16". Prints prefill seconds to stderr.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "src/model/model.h"

namespace moray {
namespace {

constexpr int64_t kBlockTokens = 256;

struct Range {
  int64_t begin, end;
};

std::vector<int32_t> read_tokens(const char* path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::vector<int32_t> tokens(bytes.size() / sizeof(int32_t));
  std::memcpy(tokens.data(), bytes.data(), tokens.size() * sizeof(int32_t));
  return tokens;
}

void write_ranges(const std::vector<Range>& ranges, int64_t begin, int64_t rows, int64_t vocab,
                  const float* logits, std::ofstream& out) {
  for (const Range& range : ranges) {
    const int64_t from = std::max(range.begin, begin);
    const int64_t to = std::min(range.end, begin + rows);
    if (from >= to) continue;
    out.write(reinterpret_cast<const char*>(logits + (from - begin) * vocab),
              (to - from) * vocab * static_cast<int64_t>(sizeof(float)));
  }
}

Status dump(const char* folder, const std::vector<int32_t>& tokens, const char* out_path,
            Precision precision, int threads, const std::vector<Range>& ranges) {
  ASSIGN_OR_RETURN(auto checkpoint, Checkpoint::open(folder));
  ASSIGN_OR_RETURN(auto weights, load_weights(checkpoint, {}));
  const ModelConfig& config = config_of(*weights);
  const auto count = static_cast<int64_t>(tokens.size());
  ThreadPool pool(threads);
  State state(config, count, precision);
  Workspace workspace(config, kBlockTokens, count, threads);
  std::vector<float> logits(static_cast<size_t>(kBlockTokens * config.vocab_rows));
  std::ofstream out(out_path, std::ios::binary);
  const auto start = std::chrono::steady_clock::now();
  for (int64_t at = 0; at < count; at += kBlockTokens) {
    const int64_t rows = std::min(kBlockTokens, count - at);
    bool wanted = false;
    for (const Range& range : ranges) wanted |= range.begin < at + rows && range.end > at;
    forward(
        *weights, pool, workspace,
        {.tokens = std::span(tokens).subspan(static_cast<size_t>(at), static_cast<size_t>(rows)),
         .state = &state,
         .precision = precision,
         .logit_rows = wanted ? rows : 0,
         .logits = logits.data()});
    if (wanted) write_ranges(ranges, at, rows, config.vocab_rows, logits.data(), out);
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::fprintf(stderr, "%lld tokens in %.3f s\n", static_cast<long long>(count), took.count());
  if (!out.good()) return Status(StatusCode::kIo, std::string(out_path) + ": cannot be written");
  return Status();
}

}  // namespace
}  // namespace moray

int main(int count, char** arguments) {
  if (count < 8 || count % 2 != 0) {
    std::fprintf(stderr,
                 "usage: logits_dump MODEL TOKENS OUT float32|bfloat16 THREADS BEGIN END "
                 "[BEGIN END ...]\n");
    return 2;
  }
  std::vector<moray::Range> ranges;
  for (int i = 6; i < count; i += 2) {
    ranges.push_back({std::atoll(arguments[i]), std::atoll(arguments[i + 1])});
  }
  const moray::Status status =
      moray::dump(arguments[1], moray::read_tokens(arguments[2]), arguments[3],
                  std::string(arguments[4]) == "float32" ? moray::Precision::kFloat32
                                                         : moray::Precision::kBfloat16,
                  std::atoi(arguments[5]), ranges);
  if (status.ok()) return 0;
  std::fprintf(stderr, "error: %s\n", status.message().c_str());
  return 1;
}
