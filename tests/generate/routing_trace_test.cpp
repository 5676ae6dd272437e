// Traces: files as documented and damaged, made-up ones with the locality they promise.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "moray/tools.h"
#include "tests/support/temp_folder.h"

namespace moray {
namespace {

std::string bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

TEST(RoutingTrace, ComesBackAsItWasWritten) {
  const TempFolder folder;
  const RoutingTrace trace =
      make_routing_trace({.tokens = 20, .layers = 3, .experts = 16, .top_k = 4}, 7);
  ASSERT_TRUE(write_routing_trace(trace, folder / "t").ok());
  const auto read = read_routing_trace(folder / "t");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->layers, 3);
  EXPECT_EQ(read->experts, 16);
  EXPECT_EQ(read->top_k, 4);
  EXPECT_EQ(read->tokens(), 20);
  EXPECT_EQ(read->ids, trace.ids);
  EXPECT_EQ(read->weights, trace.weights);
}

TEST(RoutingTrace, IsTheDocumentedBytes) {
  const TempFolder folder;
  RoutingTrace trace;
  trace.layers = 1, trace.experts = 300, trace.top_k = 2;
  trace.ids = {0x102, 3};
  trace.weights = {1.0f, 0.5f};
  ASSERT_TRUE(write_routing_trace(trace, folder / "t").ok());
  const std::string expected(
      "MORAYRT1\1\0\0\0\x2c\1\0\0\2\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\2\1\3\0\0\0\x80\x3f\0\0\0\x3f",
      44);
  EXPECT_EQ(bytes_of(folder / "t"), expected);
}

TEST(RoutingTrace, DamagedFilesAreRefusedByName) {
  const TempFolder folder;
  const RoutingTrace trace =
      make_routing_trace({.tokens = 2, .layers = 1, .experts = 4, .top_k = 2}, 1);
  ASSERT_TRUE(write_routing_trace(trace, folder / "t").ok());
  const std::string good = bytes_of(folder / "t");
  const auto with = [&](size_t at, char byte) {
    std::string bytes = good;
    bytes[at] = byte;
    return bytes;
  };
  const std::vector<std::pair<std::string, std::string>> damages = {
      {"", "found"},
      {good.substr(0, 31), "found 31 bytes"},
      {good.substr(0, good.size() - 1), "expected 32 + 12 for each of 2 tokens"},
      {good + "x", "expected 32 + 12"},
      {with(0, 'm'), "expected MORAYRT1"},
      {with(8, 0), "found 0 layers"},
      {with(12, 0), "0 experts"},
      {with(16, 5), "top-5"},
      {with(20, 1), "found 1 in the fourth number, expected 0"},
      {with(24, 3), "each of 3 tokens"},
      {with(31, '\xff'), "found"},
      {with(32, 9), "token 0, layer 0: found expert 9"},
      {with(32, good[34]), "twice"},
      {good.substr(0, 40) + good.substr(44, 4) + good.substr(40, 4) + good.substr(48),
       "expected larger ones first"},
      {with(good.size() - 1, '\xff').replace(good.size() - 2, 1, "\x80"), "found a weight of"},
  };
  for (const auto& [bytes, part] : damages) {
    const std::string path = folder.write("damaged", bytes);
    const auto read = read_routing_trace(path);
    ASSERT_FALSE(read.ok()) << part;
    EXPECT_EQ(read.status().code(), StatusCode::kInvalidFile);
    EXPECT_NE(read.status().message().find("damaged: "), std::string::npos);
    EXPECT_NE(read.status().message().find(part), std::string::npos) << read.status().message();
  }
  EXPECT_EQ(read_routing_trace(folder / "absent").status().code(), StatusCode::kNotFound);
}

// A size limit stands in for a full disk: the same failing write.
TEST(RoutingTrace, AFullDiskLeavesWhatWasThere) {
  const TempFolder folder;
  folder.write("t", "older");
  const RoutingTrace trace =
      make_routing_trace({.tokens = 200, .layers = 2, .experts = 16, .top_k = 4}, 7);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{4096, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const Status status = write_routing_trace(trace, folder / "t");
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(status.code(), StatusCode::kExhausted) << status.message();
  EXPECT_EQ(bytes_of(folder / "t"), "older");
  const auto entries = std::filesystem::directory_iterator(folder.path());
  EXPECT_EQ(std::distance(begin(entries), end(entries)), 1) << "a partial file was left";
  EXPECT_EQ(write_routing_trace(trace, folder / "no/t").code(), StatusCode::kNotFound);
}

TEST(MadeTrace, HasThePublishedLocality) {
  for (const uint64_t seed : {1, 2, 3}) {
    for (const auto& [experts, top_k] :
         {std::pair<int64_t, int64_t>{256, 8}, {128, 8}, {512, 10}}) {
      const RoutingTrace trace = make_routing_trace(
          {.tokens = 600, .layers = 4, .experts = experts, .top_k = top_k}, seed);
      const ReuseStatistics reuse = measure_reuse(trace);
      // Standard error of a share over 4 x 592 x 8 choices: 0.0036 if they were independent.
      EXPECT_NEAR(reuse.repeats, 0.45, 0.015) << experts;
      EXPECT_NEAR(reuse.within_8, 0.80, 0.015) << experts;
      EXPECT_EQ(reuse.median_distance, 2) << experts;
      for (const int64_t percent : {36, 43}) {
        const auto run = simulate_slots(trace, {.slots = experts * percent / 100});
        ASSERT_TRUE(run.ok());
        EXPECT_GE(run->hit_rate(), 0.62) << experts;
        EXPECT_LE(run->hit_rate(), 0.95) << experts;
      }
    }
  }
}

TEST(MadeTrace, IsAFunctionOfItsSeed) {
  const RoutingShape shape{.tokens = 50, .layers = 2, .experts = 32, .top_k = 4};
  EXPECT_EQ(make_routing_trace(shape, 5).ids, make_routing_trace(shape, 5).ids);
  EXPECT_NE(make_routing_trace(shape, 5).ids, make_routing_trace(shape, 6).ids);
  const RoutingTrace all =
      make_routing_trace({.tokens = 9, .layers = 1, .experts = 4, .top_k = 4}, 5);
  EXPECT_EQ(measure_reuse(all).repeats, 1);
}

TEST(MadeTrace, ReuseIsCountedFromTheNinthTokenOn) {
  RoutingTrace trace;
  trace.layers = 1, trace.experts = 16, trace.top_k = 1;
  trace.ids = {0, 1, 2, 3, 4, 5, 6, 7, 7, 0, 8, 8};  // distances 1, 9, none, 1
  trace.weights.assign(trace.ids.size(), 1);
  const ReuseStatistics reuse = measure_reuse(trace);
  EXPECT_EQ(reuse.repeats, 0.5);
  EXPECT_EQ(reuse.within_8, 0.5);
  EXPECT_EQ(reuse.median_distance, 1);
}

}  // namespace
}  // namespace moray
