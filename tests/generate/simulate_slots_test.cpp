// The simulator against counts and times made by hand, and its reads' bad luck.
#include <gtest/gtest.h>

#include "moray/tools.h"

namespace moray {
namespace {

RoutingTrace trace_of(std::vector<uint16_t> ids, int64_t experts, int64_t top_k = 1) {
  RoutingTrace trace;
  trace.layers = 1;
  trace.experts = experts;
  trace.top_k = top_k;
  trace.weights.assign(ids.size(), 1);
  trace.ids = std::move(ids);
  return trace;
}

SimulatedRun run_of(const RoutingTrace& trace, const SlotSimulation& simulation) {
  const auto run = simulate_slots(trace, simulation);
  CHECK(run.ok(), run.status().message());
  return *run;
}

RoutingTrace made(int64_t tokens) {
  return make_routing_trace({.tokens = tokens, .layers = 4, .experts = 64, .top_k = 4}, 3);
}

TEST(SimulateSlots, PoliciesDifferAsTheyShould) {
  // Two slots. LRU keeps 1 2 -> (0 goes) ...; 0 is used most.
  const RoutingTrace trace = trace_of({0, 0, 0, 1, 2, 0, 1, 0, 2, 0}, 4);
  const auto hits = [&](SlotPolicy policy) {
    return run_of(trace, {.slots = 2, .policy = policy}).hits;
  };
  EXPECT_EQ(hits(SlotPolicy::kLru), 4);     // 0 0, then 2 0 1: miss, 0, miss, 0
  EXPECT_EQ(hits(SlotPolicy::kLfu), 5);     // 0 always
  EXPECT_EQ(hits(SlotPolicy::kFifo), 3);    // 0 0, then 0 goes with 2 and comes back with 1 0
  EXPECT_EQ(hits(SlotPolicy::kBelady), 5);  // as good as any: 1 and 2 must come again
}

TEST(SimulateSlots, NothingBeatsTheBound) {
  const RoutingTrace trace = made(400);
  for (const int64_t slots : {4, 8, 16, 32, 48, 64}) {
    const auto rate = [&](SlotPolicy policy) {
      return run_of(trace, {.slots = slots, .policy = policy}).hit_rate();
    };
    const double bound = rate(SlotPolicy::kBelady);
    for (const SlotPolicy policy : {SlotPolicy::kLru, SlotPolicy::kLfu, SlotPolicy::kFifo}) {
      EXPECT_LE(rate(policy), bound + 1e-12) << slots;
    }
    EXPECT_GE(rate(SlotPolicy::kLru), rate(SlotPolicy::kFifo)) << slots;
  }
}

TEST(SimulateSlots, ASlotForEachMissesOnlyOnce) {
  const RoutingTrace trace = made(400);
  const SimulatedRun run = run_of(trace, {.slots = 64});
  EXPECT_LE(run.misses, 4 * 64);
  EXPECT_EQ(run.hits + run.misses, 400 * 4 * 4);
  EXPECT_EQ(run.tokens, 400);
  EXPECT_EQ(run.requests, 2);
}

// 1 MB experts, VRAM 1 GB/s, link 0.5 GB/s: 1 ms to compute one, 2 ms to fetch it.
TEST(SimulateSlots, TimeIsSummedAsDocumented) {
  SlotSimulation simulation;
  simulation.slots = 3;
  simulation.expert_bytes = 1000000;
  simulation.other_bytes = 5000000;
  simulation.vram_gbps = 1;
  simulation.link_gbps = 0.5;
  // Token 1: two misses, 4 ms of stall. Token 2: one hit covers 1 of 2 ms. Token 3: two hits.
  const SimulatedRun run = run_of(trace_of({0, 1, 1, 2, 1, 2}, 4, 2), simulation);
  EXPECT_EQ(run.hits, 3);
  EXPECT_EQ(run.misses, 3);
  EXPECT_NEAR(run.stall_seconds, 5e-3, 1e-12);
  EXPECT_NEAR(run.seconds, 3 * (5e-3 + 2e-3) + 5e-3, 1e-12);
}

// A token's hits must not be evicted by its own misses, wherever they stand among its choices.
TEST(SimulateSlots, HitsAreSafeFromTheirOwnTokensMisses) {
  const SimulatedRun run = run_of(trace_of({0, 1, 2, 0, 2, 0}, 4, 2), {.slots = 2});
  EXPECT_EQ(run.hits, 3);
}

TEST(SimulateSlots, SlowAndShortReadsCostTimeOnly) {
  const RoutingTrace trace = made(200);
  SlotSimulation simulation{.slots = 24, .expert_bytes = 1000000, .other_bytes = 1000000};
  const SimulatedRun even = run_of(trace, simulation);
  simulation.slow_share = 1;
  const SimulatedRun slow = run_of(trace, simulation);
  EXPECT_EQ(slow.hits, even.hits);
  EXPECT_GT(slow.stall_seconds, 9 * even.stall_seconds);
  simulation.slow_share = 0;
  simulation.short_share = 1;  // halves until nothing is left: as long as a whole one
  const SimulatedRun partial = run_of(trace, simulation);
  EXPECT_EQ(partial.hits, even.hits);
  EXPECT_EQ(partial.failed_requests, 0);
  EXPECT_GE(partial.retries, 6 * partial.misses);
  EXPECT_NEAR(partial.seconds, even.seconds, 1e-9);
}

TEST(SimulateSlots, AFailingReadEndsItsRequestOnly) {
  const RoutingTrace trace = made(400);
  SlotSimulation simulation{.slots = 24, .expert_bytes = 1000000, .other_bytes = 1000000};
  simulation.request_tokens = 10;
  simulation.fail_share = 0.2;  // of the reads eight in a thousand three times
  simulation.seed = 1;
  const SimulatedRun run = run_of(trace, simulation);
  EXPECT_EQ(run.requests, 40);
  EXPECT_GT(run.failed_requests, 0);
  EXPECT_LT(run.failed_requests, 20);
  EXPECT_GT(run.retries, 50);
  EXPECT_GE(run.tokens, 10 * (run.requests - run.failed_requests));
  EXPECT_LT(run.tokens, 400);
  const SimulatedRun again = run_of(trace, simulation);
  EXPECT_EQ(again.tokens, run.tokens);
  EXPECT_EQ(again.seconds, run.seconds);
  simulation.seed = 2;
  EXPECT_NE(run_of(trace, simulation).seconds, run.seconds);
  simulation.fail_share = 1;
  const SimulatedRun none = run_of(trace, simulation);
  EXPECT_EQ(none.failed_requests, 40);
  EXPECT_EQ(none.tokens, 0);
  EXPECT_EQ(none.hits, 0) << "a failed fill must not be found";
  EXPECT_EQ(none.retries, 40 * (kReadAttempts - 1));
}

TEST(SimulateSlots, RefusesWhatMeansNothing) {
  const RoutingTrace trace = made(2);
  const auto message = [&](const SlotSimulation& simulation) {
    const auto run = simulate_slots(trace, simulation);
    CHECK(!run.ok());
    EXPECT_EQ(run.status().code(), StatusCode::kInvalidArgument);
    return run.status().message();
  };
  EXPECT_EQ(message({.slots = 3}),
            "slots: found 3, expected 4 (experts a token) to 64 (experts a layer)");
  EXPECT_TRUE(message({.slots = 65}).starts_with("slots: found 65"));
  EXPECT_TRUE(message({.slots = 8, .link_gbps = 0}).starts_with("rate: found 0 GB/s"));
  EXPECT_TRUE(message({.slots = 8, .slow_share = 1.5}).starts_with("share: found 1.5"));
  EXPECT_TRUE(message({.slots = 8, .short_share = 0.6, .fail_share = 0.6}).starts_with("shares"));
  EXPECT_TRUE(message({.slots = 8, .request_tokens = 0}).starts_with("request: found 0 tokens"));
  const auto empty = simulate_slots(trace_of({}, 4), {.slots = 2});
  EXPECT_EQ(empty.status().message(), "trace: found no tokens, expected one or more");
}

TEST(SimulateSlots, StopsWhenAskedTo) {
  const std::atomic<bool> cancel = true;
  const auto run = simulate_slots(made(50), {.slots = 8, .cancel = &cancel});
  EXPECT_EQ(run.status().code(), StatusCode::kCancelled);
  const RoutingShape shape{.tokens = 50, .layers = 4, .experts = 64, .top_k = 4, .cancel = &cancel};
  EXPECT_EQ(make_routing_trace(shape, 3).tokens(), 0);
}

}  // namespace
}  // namespace moray
