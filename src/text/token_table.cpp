// Token bytes in one pool, and an open-addressing index over them.
#include "src/text/token_table.h"

#include <bit>
#include <cstring>

#include "src/base/check.h"

namespace moray {
namespace {

// The `count` bytes at `data` as one number, count <= 8, without a call to memcpy of unknown size.
uint64_t load_tail(const char* data, size_t count) {
  uint32_t low = 0, high = 0;
  if (count >= 4) {
    std::memcpy(&low, data, 4);
    std::memcpy(&high, data + count - 4, 4);
  } else if (count > 0) {
    low = static_cast<uint8_t>(data[0]) |
          static_cast<uint32_t>(static_cast<uint8_t>(data[count / 2])) << 8;
    high = static_cast<uint8_t>(data[count - 1]);
  }
  return static_cast<uint64_t>(high) << 32 | low;
}

// Multiply and fold, 8 bytes a step. A good spread over short words is all that is asked of it.
uint32_t hash_bytes(std::string_view bytes) {
  constexpr uint64_t kOdd = 0x9E3779B97F4A7C15u;  // 2^64 / golden ratio
  uint64_t hash = bytes.size() * kOdd;
  const char* data = bytes.data();
  size_t left = bytes.size();
  for (; left > 8; left -= 8, data += 8) {
    hash = (hash ^ load_tail(data, 8)) * kOdd;
    hash ^= hash >> 32;
  }
  hash = (hash ^ load_tail(data, left)) * kOdd;
  return static_cast<uint32_t>(hash >> 32);
}

}  // namespace

void TokenTable::set(TokenId id, std::string_view bytes) {
  CHECK(id >= 0 && id < kTokenIdEnd && !bytes.empty(), id, bytes.size());
  CHECK(pool_.size() + bytes.size() <= UINT32_MAX, pool_.size());
  if (id >= end()) places_.resize(static_cast<size_t>(id) + 1);
  places_[static_cast<size_t>(id)] = {static_cast<uint32_t>(pool_.size()),
                                      static_cast<uint32_t>(bytes.size())};
  pool_.append(bytes);
}

void TokenIndex::reset(size_t count) {
  slots_.assign(std::bit_ceil(2 * count + 2), Slot{});
}

size_t TokenIndex::find_slot(const TokenTable& tokens, std::string_view bytes,
                             uint32_t hash) const {
  const size_t mask = slots_.size() - 1;
  for (size_t i = hash & mask;; i = (i + 1) & mask) {
    const Slot& slot = slots_[i];
    if (slot.id == kNoToken || (slot.hash == hash && tokens.bytes(slot.id) == bytes)) return i;
  }
}

bool TokenIndex::add(const TokenTable& tokens, TokenId id) {
  const std::string_view key = tokens.bytes(id);
  const uint32_t hash = hash_bytes(key);
  Slot& slot = slots_[find_slot(tokens, key, hash)];
  if (slot.id != kNoToken) return false;
  slot = {hash, id};
  return true;
}

TokenId TokenIndex::find(const TokenTable& tokens, std::string_view bytes) const {
  if (slots_.empty()) return kNoToken;
  return slots_[find_slot(tokens, bytes, hash_bytes(bytes))].id;
}

}  // namespace moray
