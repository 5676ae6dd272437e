// The gated delta net on the GPU against the plain recurrence: steps, prefill blocks, and a state
// that is handed over at every kind of border.
#include <gtest/gtest.h>

#include "tests/gpu/delta_bounds.h"
#include "tests/gpu/delta_machine.h"
#include "tests/support/gates.h"

namespace moray::delta_test {
namespace {

TEST(DeltaGpu, StepAgreesWithTheRecurrenceHoweverItIsSplit) {
  MORAY_GPU_TEST();
  const auto stream = gpu::test_stream();
  Random random;
  SCOPED_TRACE(random.trace());
  for (const Dimensions& d : kShapes) {
    SCOPED_TRACE(trace(d));
    if (kernels_of(d) == nullptr) return;
    const int tokens = 135;
    const Sequence s = make_sequence(random, d, tokens);
    HostState plain(d);
    const auto expected = run_oracle(s, 0, tokens, plain);
    std::vector<uint16_t> first;
    std::vector<std::vector<float>> first_state;
    const std::vector<std::vector<int>> splits = {{1}, {16}, {7, 1, 13, 16, 2}, {5, 16, 15}};
    for (const std::vector<int>& sizes : splits) {
      SCOPED_TRACE(testing::Message() << "steps of " << sizes[0] << ", ..");
      Machine machine(*stream, s);
      machine.step(0, tokens, sizes);
      const auto out = machine.out();
      expect_step_close(s, widened(out, 0, int64_t(out.size())), expected);
      const auto state = machine.state().held(tokens);
      if (first.empty()) {
        first = out;
        first_state = state;
      }
      EXPECT_EQ(out, first);
      EXPECT_EQ(state, first_state);
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST(DeltaGpu, OracleStepAndPrefillContinueEachOther) {
  MORAY_GPU_TEST();
  const auto stream = gpu::test_stream();
  Random random;
  SCOPED_TRACE(random.trace());
  for (const Dimensions& d : {kNano, kShapes[2], kShapes[4]}) {
    SCOPED_TRACE(trace(d));
    if (kernels_of(d) == nullptr) return;
    for (int border : {1, 2, 3, 62, 63, 64, 65, 66, 67, 127, 128, 129}) {
      SCOPED_TRACE(testing::Message() << "border " << border);
      const int tokens = border + 70;
      const Sequence s = make_sequence(random, d, tokens);
      HostState plain(d);
      run_oracle(s, 0, border, plain);
      const HostState before = plain;
      const auto expected = run_oracle(s, border, tokens, plain);
      const int64_t from = border * d.width(), to = tokens * d.width();

      Machine stepped(*stream, s);  // oracle, then steps
      stepped.set_state(before);
      stepped.step(border, tokens, {3, 16});
      expect_step_close(s, widened(stepped.out(), from, to), expected);

      Machine filled(*stream, s);  // oracle, then prefill
      filled.set_state(before);
      filled.prefill(border, tokens, {tokens});
      expect_prefill_close(s, border, widened(filled.out(), from, to), expected);
      expect_states_close(filled.state(), plain, tokens);

      Machine first_filled(*stream, s);  // prefill, then steps
      first_filled.prefill(0, border, {border});
      first_filled.step(border, tokens, {16});
      expect_prefill_close(s, border, widened(first_filled.out(), from, to), expected);

      Machine first_stepped(*stream, s);  // steps, then the oracle
      first_stepped.step(0, border, {16});
      HostState handed = first_stepped.state();
      const auto continued = run_oracle(s, border, tokens, handed);
      expect_step_close(s, continued, expected);
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST(DeltaGpu, PrefillAgreesWithTheRecurrenceHoweverItIsSplit) {
  MORAY_GPU_TEST();
  const auto stream = gpu::test_stream();
  Random random;
  SCOPED_TRACE(random.trace());
  for (const Dimensions& d : kShapes) {
    SCOPED_TRACE(trace(d));
    if (kernels_of(d) == nullptr) return;
    for (int tokens : {1, 2, 63, 64, 65, 127, 128, 130, 330}) {
      if (d.value_heads > 8 && tokens != 330) continue;
      SCOPED_TRACE(testing::Message() << tokens << " tokens");
      const Sequence s = make_sequence(random, d, tokens);
      HostState plain(d);
      const auto expected = run_oracle(s, 0, tokens, plain);
      for (const std::vector<int>& sizes :
           {std::vector<int>{tokens}, {64}, {63, 1, 5, 130, 2, 9}, {1, 127, 2}}) {
        SCOPED_TRACE(testing::Message() << "blocks of " << sizes[0] << ", ..");
        Machine machine(*stream, s);
        machine.prefill(0, tokens, sizes);
        const auto out = machine.out();
        expect_prefill_close(s, 0, widened(out, 0, int64_t(out.size())), expected);
        expect_states_close(machine.state(), plain, tokens);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(DeltaGpu, ErrorsDoNotGrowOverALongSequence) {
  MORAY_GPU_TEST();
  const auto stream = gpu::test_stream();
  Random random;
  SCOPED_TRACE(random.trace());
  if (kernels_of(kNano) == nullptr) return;
  const int tokens = 4096;
  const Sequence s = make_sequence(random, kNano, tokens);
  HostState plain(kNano);
  const auto expected = run_oracle(s, 0, tokens, plain);
  Machine filled(*stream, s), stepped(*stream, s);
  filled.prefill(0, tokens, {tokens});
  stepped.step(0, tokens, {16});
  const auto by_prefill = filled.out(), by_step = stepped.out();
  for (int quarter = 0; quarter < 4; ++quarter) {
    SCOPED_TRACE(testing::Message() << "quarter " << quarter);
    const int begin = quarter * tokens / 4;
    const int64_t from = begin * kNano.width(), to = from + tokens / 4 * kNano.width();
    const std::vector<float> wanted(expected.begin() + from, expected.begin() + to);
    expect_prefill_close(s, begin, widened(by_prefill, from, to), wanted);
    expect_step_close(s, widened(by_step, from, to), wanted);
  }
  expect_states_close(filled.state(), plain, tokens);
}

// Values have no natural scale: prefill must find one for F16, also when it changes on the way.
// Those of a chunk share theirs, which holds 2^23 between the largest and the smallest that keep
// their precision; a larger leap is taken at a chunk's border.
TEST(DeltaGpu, PrefillTakesValuesOfAnyMagnitude) {
  MORAY_GPU_TEST();
  const auto stream = gpu::test_stream();
  Random random;
  SCOPED_TRACE(random.trace());
  const Dimensions& d = kShapes[1];
  if (kernels_of(d) == nullptr) return;
  const int tokens = 300;
  struct Case {
    float scale;
    int from;  // the token whose values are the first of this scale; before it they are near 1
  };
  for (const auto [scale, from] :
       {Case{1e-3f, 0}, {1e4f, 0}, {1e8f, 0}, {1e4f, 150}, {1e8f, 192}}) {
    SCOPED_TRACE(testing::Message() << "scale " << scale << " from token " << from);
    Sequence s = make_sequence(random, d, tokens, scale);
    const Sequence plain_values = make_sequence(random, d, tokens);
    std::copy_n(plain_values.qkv.begin(), from * d.channels(), s.qkv.begin());
    HostState plain(d);
    const auto expected = run_oracle(s, 0, tokens, plain);
    Machine machine(*stream, s);
    machine.prefill(0, tokens, {tokens});
    const auto out = machine.out();
    expect_prefill_close(s, 0, widened(out, 0, int64_t(out.size())), expected);
  }
}

// The hardest case for the chunk's inverse: keys that hardly differ, writes that are taken back in
// full, no decay. Roundoff of one write then meets all that follow it in the chunk: twice as much.
TEST(DeltaGpu, PrefillStaysStableWhereAllKeysAreAlike) {
  MORAY_GPU_TEST();
  const auto stream = gpu::test_stream();
  Random random;
  SCOPED_TRACE(random.trace());
  if (kernels_of(kNano) == nullptr) return;
  const int tokens = 300;
  for (float difference : {0.0f, 0.1f, 0.5f}) {
    SCOPED_TRACE(testing::Message() << "difference " << difference);
    Sequence s = make_sequence(random, kNano, tokens);
    const int64_t keys = int64_t{kNano.key_heads} * kNano.key_dim;
    for (int t = 1; t < tokens; ++t) {
      for (int64_t c = keys; c < 2 * keys; ++c) {
        float& input = s.qkv[size_t(t * kNano.channels() + c)];
        input = round_to_bf16(s.qkv[size_t(c)] + difference * input);
      }
    }
    std::fill(s.b.begin(), s.b.end(), 12.0f);
    std::fill(s.a.begin(), s.a.end(), -12.0f);
    HostState plain(kNano);
    const auto expected = run_oracle(s, 0, tokens, plain);
    Machine machine(*stream, s);
    machine.prefill(0, tokens, {tokens});
    const auto out = machine.out();
    expect_prefill_close(s, 0, widened(out, 0, int64_t(out.size())), expected, 8);
  }
}

TEST(DeltaGpu, AStateCanBeSetBackWithinItsChunk) {
  MORAY_GPU_TEST();
  const auto stream = gpu::test_stream();
  Random random;
  SCOPED_TRACE(random.trace());
  if (kernels_of(kNano) == nullptr) return;
  for (int far : {70, 127, 128}) {
    const int tokens = 140;
    const Sequence s = make_sequence(random, kNano, tokens);
    Machine straight(*stream, s), back(*stream, s);
    straight.step(0, tokens, {16});
    back.step(0, far, {16});
    back.step(65, tokens, {5});
    EXPECT_EQ(back.out(), straight.out()) << "set back from " << far;
    EXPECT_EQ(back.state().held(tokens), straight.state().held(tokens));
  }
}

// Two layers in one graph, the second started while the first drains; steps cross a border.
TEST(DeltaGpu, ProgrammaticStepsInAGraphGiveTheSameBits) {
  MORAY_GPU_TEST();
  const auto stream = gpu::test_stream();
  Random random;
  SCOPED_TRACE(random.trace());
  if (kernels_of(k35b) == nullptr) return;
  const int tokens = 70;
  const Sequence s = make_sequence(random, k35b, tokens);
  Machine first(*stream, s), second(*stream, s), plain(*stream, s);
  plain.step(0, tokens, {1});
  for (int at = 0; at < tokens; ++at) {
    first.set_step(at, 1);
    second.set_step(at, 1);
    auto graph = gpu::Graph::capture(*stream, [&] {
      first.enqueue_step(at, 1, false);
      second.enqueue_step(at, 1, true);
    });
    ASSERT_TRUE(graph.ok()) << graph.status().message();
    (*graph)->launch(*stream);
    ASSERT_TRUE(stream->synchronize().ok());
  }
  EXPECT_EQ(first.out(), plain.out());
  EXPECT_EQ(second.out(), plain.out());
  EXPECT_EQ(second.state().held(tokens), plain.state().held(tokens));
}

TEST(DeltaGpu, PrefillGivesTheSameBitsTwice) {
  MORAY_GPU_TEST();
  const auto stream = gpu::test_stream();
  Random random;
  SCOPED_TRACE(random.trace());
  if (kernels_of(k35b) == nullptr) return;
  const int tokens = 333;
  const Sequence s = make_sequence(random, k35b, tokens);
  Machine one(*stream, s), other(*stream, s);
  one.prefill(0, tokens, {tokens});
  other.prefill(0, tokens, {tokens});
  EXPECT_EQ(one.out(), other.out());
  EXPECT_EQ(one.state().held(tokens), other.state().held(tokens));
}

TEST(DeltaGpu, StateArraysAreCarvedApartAndAligned) {
  const cuda::DeltaShape shape{
      .key_heads = 16, .value_heads = 32, .key_dim = 128, .value_dim = 128, .taps = 4, .arch = 90};
  char* const base = reinterpret_cast<char*>(uintptr_t{0x1000});
  const cuda::DeltaState state = cuda::delta_state_at(shape, base);
  const char* const ends[] = {reinterpret_cast<char*>(state.s), reinterpret_cast<char*>(state.keys),
                              reinterpret_cast<char*>(state.writes),
                              reinterpret_cast<char*>(state.log_decay)};
  EXPECT_EQ(reinterpret_cast<char*>(state.conv_tail), base);
  for (const char* end : ends) EXPECT_EQ(reinterpret_cast<uintptr_t>(end) % 256, 0u);
  EXPECT_EQ(ends[0] - base, int64_t{67} * 8192 * 4);
  EXPECT_EQ(ends[1] - ends[0], int64_t{32} * 128 * 128 * 4);
  EXPECT_EQ(ends[2] - ends[1], int64_t{16} * 64 * 128 * 4);
  EXPECT_EQ(ends[3] - ends[2], int64_t{32} * 64 * 128 * 4);
  EXPECT_EQ(cuda::delta_state_bytes(shape), ends[3] - base + 32 * 64 * 4);
}

}  // namespace
}  // namespace moray::delta_test
