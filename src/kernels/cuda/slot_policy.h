// Which experts of one layer lie in which slots of fast memory: lookup, victim choice, pins, fills.
//
// One policy for host and device: both compilers take this file, so plain types only. A slot is
//   empty    expert_of[slot] == kNoExpert
//   filling  expert_of[slot] == e, slot_of[e] == kNoSlot: bytes are on their way
//   ready    expert_of[slot] == e, slot_of[e] == slot
// and changes only so:
//   empty or ready --begin_fill--> filling --finish_fill--> ready
//                                  filling --fail_fill----> empty
// Central invariant: slot_of names ready slots only, so a lookup never finds a half-filled one. The
// state is not stored, it follows from the two maps, which therefore cannot contradict it.
//
// A slot that is filling or has pins is never a victim. The victim is the least stamp among the
// others, ties to the lower slot; a policy is what it writes there: the step of the last use (LRU),
// a count of uses (LFU), the reverse of the next use (Belady). The least victim_key() may be found
// in any order, by a loop or a warp's reduction.
//
// No function synchronises: one thread at a time changes a table; finish_fill() must come after the
// slot's bytes are visible to whoever reads them (a kernel's end, or a fence and a release).
#pragma once

#ifdef __CUDACC__
#define MORAY_HOST_DEVICE __host__ __device__
#else
#define MORAY_HOST_DEVICE
#endif

namespace moray::cuda {

inline constexpr int kNoSlot = -1;
inline constexpr int kNoExpert = -1;

using SlotStamp = unsigned long long;
inline constexpr int kSlotIndexBits = 16;
inline constexpr int kSlotsMax = 1 << kSlotIndexBits;
inline constexpr SlotStamp kSlotStampMax = (SlotStamp{1} << (64 - kSlotIndexBits)) - 2;
inline constexpr SlotStamp kNoVictim = ~SlotStamp{0};

struct SlotTable {
  int* slot_of;       // [experts]
  int* expert_of;     // [slots]
  int* pins;          // [slots] readers that must find the slot unchanged
  SlotStamp* stamps;  // [slots], at most kSlotStampMax
  int experts;
  int slots;  // at most kSlotsMax
};

// All slots empty and without pins.
MORAY_HOST_DEVICE inline void clear_slots(const SlotTable& table) {
  for (int expert = 0; expert < table.experts; ++expert) table.slot_of[expert] = kNoSlot;
  for (int slot = 0; slot < table.slots; ++slot) {
    table.expert_of[slot] = kNoExpert;
    table.pins[slot] = 0;
    table.stamps[slot] = 0;
  }
}

MORAY_HOST_DEVICE inline bool is_ready(const SlotTable& table, int slot) {
  const int expert = table.expert_of[slot];
  return expert != kNoExpert && table.slot_of[expert] == slot;
}
MORAY_HOST_DEVICE inline bool is_filling(const SlotTable& table, int slot) {
  return table.expert_of[slot] != kNoExpert && !is_ready(table, slot);
}

// The slot that is being filled with `expert`, or kNoSlot.
MORAY_HOST_DEVICE inline int find_filling(const SlotTable& table, int expert) {
  if (table.slot_of[expert] != kNoSlot) return kNoSlot;
  for (int slot = 0; slot < table.slots; ++slot) {
    if (table.expert_of[slot] == expert) return slot;
  }
  return kNoSlot;
}

// Orders slots for eviction, least first; kNoVictim where the slot may not go. An empty slot goes
// before any other.
MORAY_HOST_DEVICE inline SlotStamp victim_key(const SlotTable& table, int slot) {
  if (table.pins[slot] > 0 || is_filling(table, slot)) return kNoVictim;
  const SlotStamp rank = table.expert_of[slot] == kNoExpert ? 0 : table.stamps[slot] + 1;
  return rank << kSlotIndexBits | static_cast<SlotStamp>(slot);
}
// The slot of the least key, or kNoSlot.
MORAY_HOST_DEVICE inline int victim_of(SlotStamp least_key) {
  return least_key == kNoVictim ? kNoSlot : static_cast<int>(least_key & (kSlotsMax - 1));
}
MORAY_HOST_DEVICE inline int choose_victim(const SlotTable& table) {
  SlotStamp least = kNoVictim;
  for (int slot = 0; slot < table.slots; ++slot) {
    const SlotStamp key = victim_key(table, slot);
    if (key < least) least = key;
  }
  return victim_of(least);
}

MORAY_HOST_DEVICE inline void pin(const SlotTable& table, int slot) {
  ++table.pins[slot];
}
MORAY_HOST_DEVICE inline void unpin(const SlotTable& table, int slot) {
  --table.pins[slot];
}

// `slot`, a victim, loses its expert now and belongs to `expert`, which is in no slot.
MORAY_HOST_DEVICE inline void begin_fill(const SlotTable& table, int slot, int expert,
                                         SlotStamp stamp) {
  const int evicted = table.expert_of[slot];
  if (evicted != kNoExpert) table.slot_of[evicted] = kNoSlot;
  table.expert_of[slot] = expert;
  table.stamps[slot] = stamp;
}
// The bytes of a filling slot are all there.
MORAY_HOST_DEVICE inline void finish_fill(const SlotTable& table, int slot) {
  table.slot_of[table.expert_of[slot]] = slot;
}
// They will not come. Readers that wait for the slot still have to unpin it.
MORAY_HOST_DEVICE inline void fail_fill(const SlotTable& table, int slot) {
  table.expert_of[slot] = kNoExpert;
}

enum class SlotAnswer : int {
  kHit,       // ready
  kInFlight,  // somebody else's fill is on its way: wait for it
  kMiss,      // the caller must fill the slot, then finish_fill() or fail_fill()
  kFull,      // every slot is pinned or filling; slot is kNoSlot and nothing has changed
};
struct SlotLease {
  SlotAnswer answer;
  int slot;
};

// Where `expert` is or will be, pinned once for the caller and stamped.
MORAY_HOST_DEVICE inline SlotLease lease_slot(const SlotTable& table, int expert, SlotStamp stamp) {
  SlotLease lease = {SlotAnswer::kHit, table.slot_of[expert]};
  if (lease.slot == kNoSlot) {
    lease = {SlotAnswer::kInFlight, find_filling(table, expert)};
  }
  if (lease.slot == kNoSlot) {
    lease = {SlotAnswer::kMiss, choose_victim(table)};
    if (lease.slot == kNoSlot) return {SlotAnswer::kFull, kNoSlot};
    begin_fill(table, lease.slot, expert, stamp);
  }
  table.stamps[lease.slot] = stamp;
  pin(table, lease.slot);
  return lease;
}

}  // namespace moray::cuda
