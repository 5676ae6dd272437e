// The merge table and the two ways to apply it.
//
// Heap method: symbols form a linked list over byte positions; the heap holds (rank, position) of
// every pair that was ever adjacent. An entry is stale when the pair now starting at its position
// has another rank. Pairs only grow, and a rank belongs to one pair, so equal rank means the same
// pair: no entry has to be searched for and removed. Source of the idea: the same list and heap are
// used by Hugging Face `tokenizers` and by SentencePiece.
#include "src/text/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "src/base/check.h"

namespace moray {
namespace {

constexpr uint32_t kNoSymbol = UINT32_MAX;

}  // namespace

MergeTable::MergeTable(size_t count) : slots_(std::bit_ceil(2 * count + 2)) {}

size_t MergeTable::find_slot(TokenId left, TokenId right) const {
  const size_t mask = slots_.size() - 1;
  uint64_t hash =
      static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  hash *= 0x9E3779B97F4A7C15u;  // Fibonacci hashing: the high half depends on all bits
  for (size_t i = (hash >> 32) & mask;; i = (i + 1) & mask) {
    const Slot& slot = slots_[i];
    if (slot.left == kNoToken || (slot.left == left && slot.right == right)) return i;
  }
}

void MergeTable::set(TokenId left, TokenId right, Merge merge) {
  slots_[find_slot(left, right)] = {left, right, merge};
}

Merge MergeTable::find(TokenId left, TokenId right) const {
  return slots_[find_slot(left, right)].merge;
}

Bpe::Bpe(const std::array<TokenId, 256>& byte_tokens, MergeTable merges)
    : byte_tokens_(byte_tokens), merges_(std::move(merges)), byte_pairs_(256 * 256) {
  for (size_t left = 0; left < 256; ++left) {
    for (size_t right = 0; right < 256; ++right) {
      byte_pairs_[left * 256 + right] = merges_.find(byte_tokens_[left], byte_tokens_[right]);
    }
  }
}

void Bpe::index_words(const TokenTable& tokens, const std::vector<TokenId>& ids, WholeWords which) {
  whole_words_.reset(ids.size());
  BpeScratch scratch;
  EncodeWork work;
  std::vector<TokenId> out;
  // Longer tokens are rare in text, and a file full of them must not make loading slow.
  constexpr size_t kIndexedBytesMax = 256;
  TokenIndex chosen;
  chosen.reset(ids.size());
  for (const TokenId id : ids) {
    const std::string_view word = tokens.bytes(id);
    if (which == WholeWords::kWhatMergesMake) {
      if (word.size() > kIndexedBytesMax) continue;
      out.clear();
      append_word(tokens, word, scratch, work, out);
      if (out.size() != 1 || out[0] != id) continue;
    }
    chosen.add(tokens, id);
  }
  whole_words_ = std::move(chosen);
}

void Bpe::append_word(const TokenTable& tokens, std::string_view word, BpeScratch& scratch,
                      EncodeWork& work, std::vector<TokenId>& out) const {
  if (word.size() <= 1) {
    if (!word.empty()) out.push_back(byte_tokens_[static_cast<uint8_t>(word[0])]);
    return;
  }
  work.merge_steps += static_cast<int64_t>(word.size());
  const TokenId whole = whole_words_.find(tokens, word);
  if (whole != kNoToken) {
    out.push_back(whole);
  } else if (word.size() <= kShortBytes) {
    merge_by_scan(word, work, out);
  } else {
    merge_by_heap(word, scratch, work, out);
  }
}

void Bpe::merge_by_scan(std::string_view word, EncodeWork& work, std::vector<TokenId>& out) const {
  TokenId symbols[kShortBytes];
  uint32_t ranks[kShortBytes];  // of the pair (i, i + 1)
  TokenId results[kShortBytes];
  size_t pairs = word.size() - 1;
  const auto set_pair = [&](size_t i, Merge merge) {
    ranks[i] = merge.rank;
    results[i] = merge.result;
  };
  for (size_t i = 0; i < pairs; ++i) {
    const auto left = static_cast<uint8_t>(word[i]), right = static_cast<uint8_t>(word[i + 1]);
    symbols[i] = byte_tokens_[left];
    set_pair(i, byte_pairs_[left * 256u + right]);
  }
  symbols[pairs] = byte_tokens_[static_cast<uint8_t>(word[pairs])];
  while (pairs > 0) {
    work.merge_steps += static_cast<int64_t>(pairs);
    const size_t best = static_cast<size_t>(std::min_element(ranks, ranks + pairs) - ranks);
    if (ranks[best] == kNoRank) break;
    symbols[best] = results[best];
    --pairs;
    std::copy(symbols + best + 2, symbols + pairs + 2, symbols + best + 1);
    if (best < pairs) {
      std::copy(ranks + best + 1, ranks + pairs + 1, ranks + best);
      std::copy(results + best + 1, results + pairs + 1, results + best);
      set_pair(best, merges_.find(symbols[best], symbols[best + 1]));
    }
    if (best > 0) set_pair(best - 1, merges_.find(symbols[best - 1], symbols[best]));
  }
  out.insert(out.end(), symbols, symbols + pairs + 1);
}

void Bpe::merge_by_heap(std::string_view word, BpeScratch& scratch, EncodeWork& work,
                        std::vector<TokenId>& out) const {
  CHECK(word.size() < kNoSymbol, word.size());
  const auto count = static_cast<uint32_t>(word.size());
  std::vector<TokenId>& symbols = scratch.symbols;
  std::vector<uint32_t>& next = scratch.next;
  std::vector<uint32_t>& previous = scratch.previous;
  std::vector<Merge>& merges = scratch.merges;
  std::vector<uint64_t>& heap = scratch.heap;
  symbols.resize(count);
  next.resize(count);
  previous.resize(count);
  merges.assign(count, Merge{});
  heap.clear();
  const auto later = [&work](uint64_t a, uint64_t b) {
    ++work.merge_steps;
    return a > b;
  };
  const auto entry = [&merges](uint32_t i) {
    return static_cast<uint64_t>(merges[i].rank) << 32 | i;
  };
  for (uint32_t i = 0; i < count; ++i) {
    const auto byte = static_cast<uint8_t>(word[i]);
    symbols[i] = byte_tokens_[byte];
    next[i] = i + 1 < count ? i + 1 : kNoSymbol;
    previous[i] = i > 0 ? i - 1 : kNoSymbol;
    if (i + 1 == count) break;
    merges[i] = byte_pairs_[byte * 256u + static_cast<uint8_t>(word[i + 1])];
    if (merges[i].rank != kNoRank) heap.push_back(entry(i));
  }
  std::make_heap(heap.begin(), heap.end(), later);
  const auto renew_pair = [&](uint32_t i) {
    merges[i] = next[i] == kNoSymbol ? Merge{} : merges_.find(symbols[i], symbols[next[i]]);
    if (merges[i].rank == kNoRank) return;
    heap.push_back(entry(i));
    std::push_heap(heap.begin(), heap.end(), later);
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const uint64_t top = heap.back();
    heap.pop_back();
    const auto left = static_cast<uint32_t>(top);
    if (merges[left].rank != top >> 32) continue;
    const uint32_t right = next[left];
    symbols[left] = merges[left].result;
    merges[right] = Merge{};
    next[left] = next[right];
    if (next[left] != kNoSymbol) previous[next[left]] = left;
    renew_pair(left);
    if (previous[left] != kNoSymbol) renew_pair(previous[left]);
  }
  for (uint32_t i = 0; i != kNoSymbol; i = next[i]) out.push_back(symbols[i]);
}

}  // namespace moray
