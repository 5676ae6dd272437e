// Byte pair encoding of one word: merge the adjacent pair of lowest rank until none is left.
//
// Invariant: the result is that of the plain rule "lowest rank first, leftmost among equals", which
// is what `tokenizers` computes; the two methods here (a scan for short words, a heap for long
// ones) and the table of whole words only save time. Immutable once built; any number of threads
// may use it.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "src/text/token_table.h"

namespace moray {

inline constexpr uint32_t kNoRank = UINT32_MAX;

// What becomes of a pair: it turns into `result` unless a pair of lower rank goes first.
struct Merge {
  uint32_t rank = kNoRank;
  TokenId result = kNoToken;
};

class MergeTable {
 public:
  // Makes room for `count` pairs, which is the most the table then takes.
  explicit MergeTable(size_t count = 0);
  // Sets what becomes of the pair; a later call for the same pair wins, as in `tokenizers`.
  void set(TokenId left, TokenId right, Merge merge);
  // The merge of the pair; rank kNoRank if it has none.
  Merge find(TokenId left, TokenId right) const;

 private:
  struct Slot {
    TokenId left = kNoToken;
    TokenId right = kNoToken;
    Merge merge;
  };
  size_t find_slot(TokenId left, TokenId right) const;

  std::vector<Slot> slots_;  // open addressing, a power of two, at most half full
};

// Work spent, for tests that it stays near-linear: one for each byte, rank looked at and heap step.
struct EncodeWork {
  int64_t normalize_steps = 0;
  int64_t scan_steps = 0;
  int64_t merge_steps = 0;
  int64_t total() const { return normalize_steps + scan_steps + merge_steps; }
};

// Memory that one encode call reuses from word to word; grows to about 36 bytes for each byte of
// the longest word.
struct BpeScratch {
  std::vector<TokenId> symbols;
  std::vector<uint32_t> next, previous;
  std::vector<Merge> merges;
  std::vector<uint64_t> heap;
};

class Bpe {
 public:
  // `byte_tokens`: the token of each single byte.
  Bpe(const std::array<TokenId, 256>& byte_tokens, MergeTable merges);

  // Fills the table of whole words from `ids`: those that merging yields from their own bytes, or,
  // for ignore_merges, all.
  enum class WholeWords : uint8_t { kWhatMergesMake, kAll };
  void index_words(const TokenTable& tokens, const std::vector<TokenId>& ids, WholeWords which);

  // Appends the tokens of `word`. Cost: one table look-up for a word that is a token, else
  // O(n log n) in its bytes. Limit: word.size() < 2^32, CHECKed.
  void append_word(const TokenTable& tokens, std::string_view word, BpeScratch& scratch,
                   EncodeWork& work, std::vector<TokenId>& out) const;

  // The two methods, public for the tests that compare them; `word` must have at least 2 bytes, and
  // at most kShortBytes for the first.
  static constexpr size_t kShortBytes = 48;
  void merge_by_scan(std::string_view word, EncodeWork& work, std::vector<TokenId>& out) const;
  void merge_by_heap(std::string_view word, BpeScratch& scratch, EncodeWork& work,
                     std::vector<TokenId>& out) const;

 private:
  std::array<TokenId, 256> byte_tokens_;
  MergeTable merges_;
  std::vector<Merge> byte_pairs_;  // [left byte, right byte]: the first round needs no hashing
  TokenIndex whole_words_;
};

}  // namespace moray
