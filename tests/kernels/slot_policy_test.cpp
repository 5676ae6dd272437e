// Slots of experts: pins, evictions and fills, by hand and at random against a plain model.
#include "src/kernels/cuda/slot_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <vector>

namespace moray::cuda {
namespace {

// A table with memory of its own.
struct Slots {
  Slots(int experts, int slots)
      : slot_of(experts), expert_of(slots), pins(slots), stamps(slots), table{slot_of.data(),
                                                                              expert_of.data(),
                                                                              pins.data(),
                                                                              stamps.data(),
                                                                              experts,
                                                                              slots} {
    clear_slots(table);
  }
  // Leases, fills at once on a miss, and gives back.
  SlotAnswer use(int expert, SlotStamp stamp) {
    const SlotLease lease = lease_slot(table, expert, stamp);
    if (lease.answer == SlotAnswer::kMiss) finish_fill(table, lease.slot);
    if (lease.slot != kNoSlot) unpin(table, lease.slot);
    return lease.answer;
  }
  bool holds(int expert) const { return table.slot_of[expert] != kNoSlot; }

  std::vector<int> slot_of, expert_of, pins;
  std::vector<SlotStamp> stamps;
  SlotTable table;
};

TEST(SlotPolicy, HitsAfterAFill) {
  Slots slots(8, 2);
  EXPECT_EQ(slots.use(5, 1), SlotAnswer::kMiss);
  EXPECT_EQ(slots.use(5, 2), SlotAnswer::kHit);
  EXPECT_EQ(slots.use(6, 3), SlotAnswer::kMiss);
  EXPECT_EQ(slots.use(5, 4), SlotAnswer::kHit);
}

TEST(SlotPolicy, TheLeastStampGoesFirst) {
  Slots slots(8, 3);
  for (int expert = 0; expert < 3; ++expert) slots.use(expert, 10 + expert);
  slots.use(0, 20);
  slots.use(7, 21);
  EXPECT_TRUE(slots.holds(0));
  EXPECT_FALSE(slots.holds(1));
  EXPECT_TRUE(slots.holds(2));
  EXPECT_TRUE(slots.holds(7));
}

TEST(SlotPolicy, EqualStampsGoByTheLowerSlotAndEmptyOnesBeforeAny) {
  Slots slots(8, 3);
  EXPECT_EQ(lease_slot(slots.table, 4, 0).slot, 0);
  EXPECT_EQ(lease_slot(slots.table, 5, 0).slot, 1);
  for (const int slot : {0, 1}) {
    finish_fill(slots.table, slot);
    unpin(slots.table, slot);
  }
  EXPECT_EQ(choose_victim(slots.table), 2);
  slots.use(6, 0);
  EXPECT_EQ(choose_victim(slots.table), 0);
}

TEST(SlotPolicy, TheLargestStampIsStillAVictim) {
  Slots slots(4, 1);
  slots.use(0, kSlotStampMax);
  EXPECT_EQ(choose_victim(slots.table), 0);
}

TEST(SlotPolicy, PinnedSlotsSurviveReplacement) {
  Slots slots(64, 4);
  slots.use(9, 1);
  const SlotLease held = lease_slot(slots.table, 9, 2);
  ASSERT_EQ(held.answer, SlotAnswer::kHit);
  for (int expert = 10; expert < 60; ++expert) slots.use(expert, 3 + expert);
  EXPECT_EQ(slots.table.slot_of[9], held.slot);
  unpin(slots.table, held.slot);
  for (int expert = 10; expert < 60; ++expert) slots.use(expert, 100 + expert);
  EXPECT_FALSE(slots.holds(9));
}

TEST(SlotPolicy, TwoReadersPinTwice) {
  Slots slots(8, 1);
  slots.use(1, 1);
  lease_slot(slots.table, 1, 2);
  lease_slot(slots.table, 1, 2);
  unpin(slots.table, 0);
  EXPECT_EQ(lease_slot(slots.table, 2, 3).answer, SlotAnswer::kFull);
  unpin(slots.table, 0);
  EXPECT_EQ(lease_slot(slots.table, 2, 3).answer, SlotAnswer::kMiss);
}

TEST(SlotPolicy, AFullTableRefusesAndChangesNothing) {
  Slots slots(8, 2);
  lease_slot(slots.table, 1, 1);
  lease_slot(slots.table, 2, 1);
  finish_fill(slots.table, 0);
  const Slots before = slots;
  const SlotLease lease = lease_slot(slots.table, 3, 2);
  EXPECT_EQ(lease.answer, SlotAnswer::kFull);
  EXPECT_EQ(lease.slot, kNoSlot);
  EXPECT_EQ(slots.slot_of, before.slot_of);
  EXPECT_EQ(slots.expert_of, before.expert_of);
  EXPECT_EQ(slots.pins, before.pins);
  EXPECT_EQ(slots.stamps, before.stamps);
}

TEST(SlotPolicy, AHalfFilledSlotHasNoName) {
  Slots slots(8, 1);
  slots.use(1, 1);
  const SlotLease lease = lease_slot(slots.table, 2, 2);
  ASSERT_EQ(lease.answer, SlotAnswer::kMiss);
  EXPECT_FALSE(slots.holds(1)) << "its bytes are being overwritten";
  EXPECT_FALSE(slots.holds(2));
  EXPECT_TRUE(is_filling(slots.table, 0));
  unpin(slots.table, 0);
  EXPECT_EQ(choose_victim(slots.table), kNoSlot) << "a slot in flight is pinned by its fill";
  EXPECT_EQ(lease_slot(slots.table, 2, 3).answer, SlotAnswer::kInFlight);
  EXPECT_EQ(lease_slot(slots.table, 1, 3).answer, SlotAnswer::kFull);
  finish_fill(slots.table, 0);
  EXPECT_TRUE(is_ready(slots.table, 0));
  EXPECT_EQ(slots.table.slot_of[2], 0);
}

TEST(SlotPolicy, AFailedFillLeavesTheSlotToWhoeverComesAfterItsReaders) {
  Slots slots(8, 1);
  lease_slot(slots.table, 2, 1);
  lease_slot(slots.table, 2, 1);  // a second reader waits
  fail_fill(slots.table, 0);
  EXPECT_FALSE(slots.holds(2));
  EXPECT_EQ(lease_slot(slots.table, 3, 2).answer, SlotAnswer::kFull);
  unpin(slots.table, 0);
  unpin(slots.table, 0);
  EXPECT_EQ(lease_slot(slots.table, 2, 3).answer, SlotAnswer::kMiss);
}

TEST(SlotPolicy, WithoutSlotsEverythingIsFull) {
  Slots slots(8, 0);
  EXPECT_EQ(lease_slot(slots.table, 3, 1).answer, SlotAnswer::kFull);
}

// The same rules, said again as slowly and plainly as possible.
struct PlainModel {
  struct Entry {
    int expert;
    bool is_ready;
    int pins;
    SlotStamp stamp;
  };
  std::vector<std::optional<Entry>> slots;
  std::vector<int> orphan_pins;  // of slots whose fill failed

  SlotLease lease(int expert, SlotStamp stamp) {
    for (size_t slot = 0; slot < slots.size(); ++slot) {
      if (!slots[slot] || slots[slot]->expert != expert) continue;
      ++slots[slot]->pins;
      slots[slot]->stamp = stamp;
      return {slots[slot]->is_ready ? SlotAnswer::kHit : SlotAnswer::kInFlight,
              static_cast<int>(slot)};
    }
    std::map<std::pair<SlotStamp, size_t>, size_t> victims;
    for (size_t slot = 0; slot < slots.size(); ++slot) {
      if (!slots[slot] && orphan_pins[slot] == 0) victims[{0, slot}] = slot;
      if (slots[slot] && slots[slot]->is_ready && slots[slot]->pins == 0) {
        victims[{slots[slot]->stamp + 1, slot}] = slot;
      }
    }
    if (victims.empty()) return {SlotAnswer::kFull, kNoSlot};
    const size_t victim = victims.begin()->second;
    slots[victim] = Entry{expert, false, 1, stamp};
    return {SlotAnswer::kMiss, static_cast<int>(victim)};
  }
};

TEST(SlotPolicy, AgreesWithAPlainModelAtRandom) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const int experts = 2 + static_cast<int>(random() % 40);
    const int count = 1 + static_cast<int>(random() % 20);
    Slots slots(experts, count);
    PlainModel model{std::vector<std::optional<PlainModel::Entry>>(count), std::vector<int>(count)};
    std::vector<int> leased;
    for (int step = 0; step < 3000; ++step) {
      const auto action = random() % 8;
      const int slot = static_cast<int>(random() % count);
      auto& entry = model.slots[slot];
      const bool fills = entry && !entry->is_ready;
      if (action < 4) {
        const int expert = static_cast<int>(random() % experts);
        const SlotStamp stamp = random() % 50;
        const SlotLease expected = model.lease(expert, stamp);
        const SlotLease found = lease_slot(slots.table, expert, stamp);
        ASSERT_EQ(found.answer, expected.answer) << step;
        ASSERT_EQ(found.slot, expected.slot) << step;
        if (found.slot != kNoSlot) leased.push_back(found.slot);
      } else if (action < 6 && !leased.empty()) {
        std::swap(leased[random() % leased.size()], leased.back());
        const int returned = leased.back();
        leased.pop_back();
        unpin(slots.table, returned);
        --(model.slots[returned] ? model.slots[returned]->pins : model.orphan_pins[returned]);
      } else if (action == 6 && fills) {
        finish_fill(slots.table, slot);
        entry->is_ready = true;
      } else if (action == 7 && fills) {
        fail_fill(slots.table, slot);
        model.orphan_pins[slot] += entry->pins;
        entry.reset();
      }
      for (int expert = 0; expert < experts; ++expert) {
        int named = kNoSlot;
        for (int i = 0; i < count; ++i) {
          const auto& held = model.slots[i];
          if (held && held->expert == expert && held->is_ready) named = i;
        }
        ASSERT_EQ(slots.table.slot_of[expert], named) << step;
      }
    }
  }
}

}  // namespace
}  // namespace moray::cuda
