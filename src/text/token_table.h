// The bytes of every token, and the way back from bytes to a token.
//
// Invariant: ids may have holes; a token that exists has at least one byte. A TokenIndex finds only
// the tokens put into it, and belongs to the one TokenTable whose tokens those are.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "moray/text.h"

namespace moray {

inline constexpr TokenId kNoToken = -1;
// Ids at or above this are refused: 16 times the largest published vocabulary, and small enough
// that one absurd id in a file cannot claim much memory.
inline constexpr TokenId kTokenIdEnd = 1 << 22;

class TokenTable {
 public:
  // Sets the bytes of `id`, replacing earlier ones. CHECKs 0 <= id < kTokenIdEnd, !bytes.empty(),
  // and that all bytes together stay below 4 GiB.
  void set(TokenId id, std::string_view bytes);

  // Bytes of `id`; empty if there is no such token. The view lives until the next set().
  std::string_view bytes(TokenId id) const {
    if (id < 0 || id >= end()) return {};
    const Place place = places_[static_cast<size_t>(id)];
    return std::string_view(pool_).substr(place.start, place.bytes);
  }
  // One more than the largest id.
  TokenId end() const { return static_cast<TokenId>(places_.size()); }

 private:
  struct Place {
    uint32_t start = 0;
    uint32_t bytes = 0;
  };
  std::string pool_;
  std::vector<Place> places_;
};

class TokenIndex {
 public:
  // Empties the index and makes room for `count` tokens, which is the most it then takes.
  void reset(size_t count);
  // Lets `id` be found by its bytes. False if another token with these bytes is there already.
  bool add(const TokenTable& tokens, TokenId id);
  // The indexed token with exactly these bytes, or kNoToken. Cost: one hash of the bytes.
  TokenId find(const TokenTable& tokens, std::string_view bytes) const;

 private:
  struct Slot {
    uint32_t hash = 0;
    TokenId id = kNoToken;
  };
  size_t find_slot(const TokenTable& tokens, std::string_view bytes, uint32_t hash) const;

  std::vector<Slot> slots_;  // open addressing, a power of two, at most half full
};

}  // namespace moray
