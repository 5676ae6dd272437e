// Merging: scan and heap against the rule written out, over random merge tables.
#include "src/text/bpe.h"

#include <map>

#include "tests/text/support.h"

namespace moray {
namespace {

struct RandomModel {
  TokenTable tokens;
  std::array<TokenId, 256> byte_tokens{};
  std::map<std::pair<TokenId, TokenId>, Merge> rules;  // the oracle's table
  std::vector<TokenId> ids;
};

// A vocabulary grown by joining random pairs; a token may be made by several pairs, ranks are a
// random order, so that parts may come after what they make.
RandomModel make_model(FreshRandom& random, uint32_t merges) {
  RandomModel model;
  for (TokenId byte = 0; byte < 256; ++byte) {
    const char bytes[1] = {static_cast<char>(byte)};
    model.byte_tokens[static_cast<size_t>(byte)] = 255 - byte;  // ids are not bytes
    model.tokens.set(255 - byte, std::string_view(bytes, 1));
  }
  std::map<std::string, TokenId> by_bytes;
  std::vector<TokenId> usable;
  for (const char c : std::string_view("abcd"))
    usable.push_back(model.byte_tokens[static_cast<uint8_t>(c)]);
  std::vector<uint32_t> ranks(merges);
  for (uint32_t i = 0; i < merges; ++i) ranks[i] = i;
  std::shuffle(ranks.begin(), ranks.end(), random.engine);
  for (uint32_t i = 0; i < merges; ++i) {
    const TokenId left = random.pick(usable), right = random.pick(usable);
    const std::string joined =
        std::string(model.tokens.bytes(left)) + std::string(model.tokens.bytes(right));
    if (joined.size() > 12) continue;
    auto [place, is_new] = by_bytes.emplace(joined, model.tokens.end());
    if (is_new) {
      model.tokens.set(place->second, joined);
      model.ids.push_back(place->second);
      usable.push_back(place->second);
    }
    model.rules.emplace(std::pair(left, right), Merge{ranks[i], place->second});
  }
  return model;
}

std::vector<TokenId> merge_by_rule(const RandomModel& model, std::string_view word) {
  std::vector<TokenId> symbols;
  for (const char byte : word) symbols.push_back(model.byte_tokens[static_cast<uint8_t>(byte)]);
  for (;;) {
    Merge best;
    size_t where = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto rule = model.rules.find({symbols[i], symbols[i + 1]});
      if (rule != model.rules.end() && rule->second.rank < best.rank) {
        best = rule->second;
        where = i;
      }
    }
    if (best.rank == kNoRank) return symbols;
    symbols[where] = best.result;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(where) + 1);
  }
}

Bpe make_bpe(const RandomModel& model) {
  MergeTable table(model.rules.size());
  for (const auto& [pair, merge] : model.rules) table.set(pair.first, pair.second, merge);
  return Bpe(model.byte_tokens, std::move(table));
}

std::string random_word(FreshRandom& random, uint32_t length) {
  std::string word;
  for (uint32_t i = 0; i < length; ++i) word += "abcdx"[random.below(random.below(3) ? 2 : 5)];
  return word;
}

TEST(Bpe, ScanAndHeapFollowTheRule) {
  FreshRandom random;
  SCOPED_TRACE(random.trace());
  BpeScratch scratch;
  EncodeWork work;
  for (int round = 0; round < 60; ++round) {
    const RandomModel model = make_model(random, 4 + random.below(200));
    Bpe bpe = make_bpe(model);
    for (int i = 0; i < 100; ++i) {
      const std::string word = random_word(random, 2 + random.below(Bpe::kShortBytes - 1));
      const auto expected = merge_by_rule(model, word);
      std::vector<TokenId> scanned, heaped;
      bpe.merge_by_scan(word, work, scanned);
      bpe.merge_by_heap(word, scratch, work, heaped);
      ASSERT_EQ(scanned, expected) << word;
      ASSERT_EQ(heaped, expected) << word;
    }
    bpe.index_words(model.tokens, model.ids, Bpe::WholeWords::kWhatMergesMake);
    for (const uint32_t length : {0u, 1u, 2u, 47u, 48u, 49u, 50u, 96u, 300u}) {
      const std::string word = random_word(random, length);
      std::vector<TokenId> ids;
      bpe.append_word(model.tokens, word, scratch, work, ids);
      ASSERT_EQ(ids, merge_by_rule(model, word)) << word;
    }
    for (const TokenId id : model.ids) {  // every token's own bytes, whether reachable or not
      std::vector<TokenId> ids;
      bpe.append_word(model.tokens, model.tokens.bytes(id), scratch, work, ids);
      ASSERT_EQ(ids, merge_by_rule(model, model.tokens.bytes(id)));
    }
  }
}

TEST(Bpe, IgnoringMergesTakesAWholeTokenFirst) {
  RandomModel model;
  for (TokenId byte = 0; byte < 256; ++byte) {
    const char bytes[1] = {static_cast<char>(byte)};
    model.byte_tokens[static_cast<size_t>(byte)] = byte;
    model.tokens.set(byte, std::string_view(bytes, 1));
  }
  model.tokens.set(300, "abc");  // no merge makes it
  Bpe bpe(model.byte_tokens, MergeTable(0));
  BpeScratch scratch;
  EncodeWork work;
  std::vector<TokenId> ids;
  bpe.index_words(model.tokens, {300}, Bpe::WholeWords::kWhatMergesMake);
  bpe.append_word(model.tokens, "abc", scratch, work, ids);
  EXPECT_EQ(ids, (std::vector<TokenId>{'a', 'b', 'c'}));
  ids.clear();
  bpe.index_words(model.tokens, {300}, Bpe::WholeWords::kAll);
  bpe.append_word(model.tokens, "abc", scratch, work, ids);
  EXPECT_EQ(ids, std::vector<TokenId>{300});
}

TEST(MergeTable, TheLaterMergeOfAPairWinsAndOtherPairsHaveNone) {
  MergeTable table(3);
  table.set(1, 2, {0, 5});
  table.set(1, 2, {1, 6});
  table.set(2, 1, {2, 7});
  EXPECT_EQ(table.find(1, 2).result, 6);
  EXPECT_EQ(table.find(2, 1).rank, 2u);
  EXPECT_EQ(table.find(2, 2).rank, kNoRank);
  EXPECT_EQ(MergeTable().find(0, 0).rank, kNoRank);
}

}  // namespace
}  // namespace moray
