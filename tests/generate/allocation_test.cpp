// A decode step makes no heap allocation, whatever the sampling options.
//
// heap_counter.h replaces the program's operator new by one that counts; the fake model looks at
// the count each time it is asked for logits, which is once a step.
#include <gtest/gtest.h>

#include "tests/generate/fake_model.h"
#include "tests/support/heap_counter.h"

namespace moray {
namespace {

// Allocations between the second and the last step of an answer of 200 tokens.
int64_t allocations_of(const GenerateOptions& options) {
  const auto fake = babbling();
  fake->consumed.reserve(1000);
  fake->calls.reserve(1000);
  std::vector<int64_t> counts;
  counts.reserve(1000);
  const auto inner = fake->logits;
  fake->logits = [&, inner](const std::vector<TokenId>& consumed, float* out) {
    inner(consumed, out);
    counts.push_back(heap_allocations);
  };
  const auto session = session_on(fake, 400);
  const auto result = session->generate(ids("prompt"), options);
  EXPECT_EQ(result->tokens.size(), 200u);
  return counts.back() - counts[2];
}

TEST(DecodeStep, DoesNotAllocate) {
  GenerateOptions options;
  options.max_tokens = 200;
  options.ignore_end_tokens = true;
  EXPECT_EQ(allocations_of(options), 0) << "greedy";
  options.sampling.temperature = 1;
  EXPECT_EQ(allocations_of(options), 0) << "softmax over all";
  options.sampling.top_p = 0.9;
  EXPECT_EQ(allocations_of(options), 0) << "top-p";
  options.sampling.top_k = 20;
  options.sampling.min_p = 0.01;
  options.sampling.repetition_penalty = 1.1;
  options.sampling.presence_penalty = 0.5;
  options.sampling.frequency_penalty = 0.5;
  options.sampling.logit_bias = {{7, 1.0f}};
  options.stop = {"never said", "nor this"};
  EXPECT_EQ(allocations_of(options), 0) << "everything";
}

// The count is real: a test that cannot fail proves nothing.
TEST(DecodeStep, TheCounterCounts) {
  const int64_t before = heap_allocations;
  int* volatile kept = new int(1);  // volatile: the compiler may drop a pair it can see through
  delete kept;
  EXPECT_EQ(heap_allocations - before, 1);
}

}  // namespace
}  // namespace moray
