// Runs a fuzz entry without libFuzzer: seeded mutations of its seeds, or the files named.
//
//   fuzz_X_replay [--seed S] [--mutations N] [--trace]
//   fuzz_X_replay FILE...               these inputs, as a libFuzzer binary would run them
//   fuzz_X_replay --write-seeds FOLDER  the seeds, as a first corpus for libFuzzer
//
// Without arguments it is a test of ./test --long: it exits with 77 (skipped) unless
// MORAY_TEST_LONG is 1, takes a fresh seed and prints it. Mutation n of a seed is always the same;
// --trace prints each number before its input runs, so that a crash names the mutation.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "tests/fuzz/fuzz_entry.h"

namespace moray {
namespace {

constexpr int kSkipped = 77;
constexpr uint64_t kMutations = 2'000'000;
constexpr std::chrono::seconds kTimeLimit{60};  // an entry; slow parsers get fewer mutations

struct ReplayOptions {
  uint64_t seed = std::random_device{}();
  uint64_t mutations = kMutations;
  bool trace = false;
  std::string seed_folder;  // write the seeds here and do nothing else
  std::vector<std::string> files;
};

// Pieces that parsers stumble over.
constexpr std::string_view kTokens[] = {"0",
                                        "-1",
                                        "1e999",
                                        "2147483648",
                                        "9223372036854775807",
                                        "18446744073709551615",
                                        "null",
                                        "true",
                                        "[]",
                                        "{}",
                                        "\"\"",
                                        "[[[[[[[[",
                                        "{",
                                        "}",
                                        "\\u0000",
                                        "\\ud800",
                                        "\xff",
                                        "\xf4\x90\x80\x80",
                                        ",",
                                        ":",
                                        "\"F8_E4M3\"",
                                        "/../",
                                        "1.0",
                                        "4294967296"};

size_t below(std::mt19937_64& random, size_t limit) {
  return limit == 0 ? 0 : random() % limit;
}

// Replaces the number at or after a random place by another: syntax survives, meaning does not.
void mutate_number(std::string& input, std::mt19937_64& random) {
  constexpr std::string_view kDigits = "0123456789";
  constexpr std::string_view kNumbers[] = {
      "0",  "1",  "2",  "3",  "4",   "7",          "8",
      "16", "32", "64", "-1", "0.5", "2147483648", "9223372036854775807",
      "1e9"};
  const size_t begin = input.find_first_of(kDigits, below(random, input.size() + 1));
  if (begin == std::string::npos) return;
  const size_t end = std::min(input.find_first_not_of(kDigits, begin), input.size());
  input.replace(begin, end - begin, kNumbers[random() % std::size(kNumbers)]);
}

// One random change: a bit, a byte, a cut, a doubled or moved piece, an awkward token.
void mutate(std::string& input, std::mt19937_64& random) {
  const size_t at = below(random, input.size() + 1);
  const size_t length = below(random, std::min<size_t>(input.size() - at, 64) + 1);
  switch (random() % 12) {
    case 0:
      if (at < input.size()) input[at] = static_cast<char>(input[at] ^ (1 << (random() % 8)));
      break;
    case 1:
      if (at < input.size()) input[at] = static_cast<char>(random());
      break;
    case 2:
      input.erase(at, length);
      break;
    case 3:
      input.insert(below(random, input.size() + 1), input.substr(at, length));
      break;
    case 4:
      input.insert(at, kTokens[random() % std::size(kTokens)]);
      break;
    case 5:
      input.replace(at, length, kTokens[random() % std::size(kTokens)]);
      break;
    case 6:
      if (random() % 8 == 0) input.resize(at);
      break;
    default:
      mutate_number(input, random);
      break;
  }
}

void run(const std::string& input) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
}

void run_mutations(const ReplayOptions& options) {
  const std::vector<std::string> seeds = fuzz_seeds();
  for (const std::string& seed : seeds) run(seed);
  const auto end = std::chrono::steady_clock::now() + kTimeLimit;
  for (uint64_t number = 0; number < options.mutations; ++number) {
    if (number % 256 == 0 && std::chrono::steady_clock::now() > end) {
      fmt::print("stopped after {} mutations: time is up\n", number);
      return;
    }
    if (options.trace) fmt::print(stderr, "mutation {}\n", number);
    // Each mutation has its own generator, so that it can be run again alone.
    std::mt19937_64 random(options.seed * 0x9e3779b97f4a7c15u + number);
    std::string input = seeds[below(random, seeds.size())];
    for (size_t count = 1 + below(random, 6); count > 0; --count) mutate(input, random);
    run(input);
  }
}

int run_files(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    std::ifstream file(path, std::ios::binary);
    if (!file) {
      fmt::print(stderr, "error: {}: found nothing readable, expected a file\n", path);
      return 2;
    }
    run(std::string(std::istreambuf_iterator<char>(file), {}));
  }
  return 0;
}

int write_seeds(const std::string& folder) {
  size_t number = 0;
  for (const std::string& seed : fuzz_seeds()) {
    const std::string path = fmt::format("{}/seed-{}", folder, number++);
    std::ofstream file(path, std::ios::binary);
    if (!file.write(seed.data(), static_cast<std::streamsize>(seed.size()))) {
      fmt::print(stderr, "error: {}: found no way to write it, expected an existing folder\n",
                 path);
      return 2;
    }
  }
  return 0;
}

}  // namespace
}  // namespace moray

int main(int argc, char** argv) {
  moray::ReplayOptions options;
  for (int index = 1; index < argc; ++index) {
    const std::string_view argument = argv[index];
    const bool has_value = index + 1 < argc;
    if (argument == "--seed" && has_value) {
      options.seed = std::strtoull(argv[++index], nullptr, 10);
    } else if (argument == "--mutations" && has_value) {
      options.mutations = std::strtoull(argv[++index], nullptr, 10);
    } else if (argument == "--write-seeds" && has_value) {
      options.seed_folder = argv[++index];
    } else if (argument == "--trace") {
      options.trace = true;
    } else {
      options.files.emplace_back(argument);
    }
  }
  if (!options.files.empty()) return moray::run_files(options.files);
  if (!options.seed_folder.empty()) return moray::write_seeds(options.seed_folder);
  const char* is_long = std::getenv("MORAY_TEST_LONG");
  if (argc == 1 && (is_long == nullptr || std::string_view(is_long) != "1")) {
    fmt::print("skipped: slow, run with ./test --long\n");
    return moray::kSkipped;
  }
  fmt::print("seed {}, {} mutations\n", options.seed, options.mutations);
  std::fflush(stdout);
  moray::run_mutations(options);
  return 0;
}
