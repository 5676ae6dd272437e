// The session's rules, on the made-up model of fake_model.h.
#include <gtest/gtest.h>

#include <cmath>

#include "moray/engine.h"
#include "tests/generate/fake_model.h"

namespace moray {
namespace {

TEST(Session, FeedsInBlocksAndReportsEach) {
  const auto fake = saying("yes", 10);
  const auto session = session_on(fake);
  std::vector<std::pair<int64_t, int64_t>> reports;
  GenerateOptions options;
  options.on_prefill = [&](int64_t done, int64_t total) {
    reports.emplace_back(done, total);
    return true;
  };
  const auto result = session->generate(ids("0123456789"), options);
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(result->text, "yes");
  EXPECT_EQ(result->tokens, (std::vector<TokenId>{'y', 'e', 's', kEnd}));
  EXPECT_EQ(result->stop_reason, StopReason::kEndOfSequence);
  EXPECT_EQ(result->prompt_tokens, 10);
  EXPECT_EQ(fake->calls, (std::vector<size_t>{4, 4, 2, 1, 1, 1}));
  EXPECT_EQ(reports, (std::vector<std::pair<int64_t, int64_t>>{{4, 10}, {8, 10}, {10, 10}}));
  EXPECT_EQ(session->tokens(), ids("0123456789yes"));
  EXPECT_EQ(fake->consumed, session->tokens());
}

TEST(Session, TheBlockSizeDoesNotMatter) {
  std::vector<std::vector<TokenId>> answers;
  for (const int64_t block : {1, 3, 64}) {
    GenerateOptions options;
    options.sampling.temperature = 1;
    options.max_tokens = 40;
    options.ignore_end_tokens = true;
    const auto session = session_on(babbling(), 100, block);
    answers.push_back(session->generate(ids("hello, world"), options)->tokens);
  }
  EXPECT_EQ(answers[0], answers[1]);
  EXPECT_EQ(answers[0], answers[2]);
}

TEST(Session, SameSeedSameTextOtherSeedOtherText) {
  const auto tokens_of = [](uint64_t seed) {
    GenerateOptions options;
    options.sampling.temperature = 1.5;
    options.sampling.seed = seed;
    options.max_tokens = 40;
    return session_on(babbling())->generate(ids("x"), options)->tokens;
  };
  EXPECT_EQ(tokens_of(1), tokens_of(1));
  EXPECT_NE(tokens_of(1), tokens_of(2));
}

// Draws hang on the position: an answer cut in two calls is the answer of one.
TEST(Session, GoingOnFromAnAnswerGivesTheSameText) {
  GenerateOptions options;
  options.sampling.temperature = 1;
  options.ignore_end_tokens = true;
  options.max_tokens = 30;
  const auto whole = session_on(babbling())->generate(ids("ab"), options)->tokens;
  const auto session = session_on(babbling());
  options.max_tokens = 11;
  auto tokens = session->generate(ids("ab"), options)->tokens;
  options.max_tokens = 19;
  const auto rest = session->generate({tokens.back()}, options)->tokens;
  tokens.insert(tokens.end(), rest.begin(), rest.end());
  EXPECT_EQ(tokens, whole);
}

TEST(Session, AnEmptyPromptSamplesAgainFromWhatIsHeld) {
  const auto session = session_on(saying("abc", 1));
  GenerateOptions options;
  options.max_tokens = 0;
  const auto nothing = session->generate(ids("p"), options);
  EXPECT_EQ(nothing->text, "");
  EXPECT_EQ(nothing->stop_reason, StopReason::kMaxTokens);
  EXPECT_EQ(session->tokens(), ids("p"));
  options.max_tokens = 2;
  EXPECT_EQ(session->generate({}, options)->text, "ab");
}

TEST(Session, StopStringsSpanTokensAndAreNotShown) {
  const auto session = session_on(saying("one\n\ntwo", 1));
  std::string shown;
  GenerateOptions options;
  options.stop = {"\n\n"};
  options.on_text = [&](std::string_view piece) {
    shown += piece;
    return true;
  };
  const auto result = session->generate(ids("p"), options);
  EXPECT_EQ(result->stop_reason, StopReason::kStopString);
  EXPECT_EQ(result->text, "one");
  EXPECT_EQ(shown, "one");
}

TEST(Session, HeldTextIsShownWhenTheAnswerEndsOtherwise) {
  const auto session = session_on(saying("one\n", 1));
  GenerateOptions options;
  options.stop = {"\n\n"};
  std::string shown;
  options.on_text = [&](std::string_view piece) {
    shown += piece;
    return true;
  };
  EXPECT_EQ(session->generate(ids("p"), options)->text, "one\n");
  EXPECT_EQ(shown, "one\n");
}

// B04: characters cut across tokens, any limit: pieces are whole, their sum is the text.
TEST(Session, B04CutCharactersAreHeldAndDroppedAlikeStreamedOrNot) {
  const std::string script = "a½日👩‍👩‍👧‍👦z";
  for (int64_t limit = 0; limit <= static_cast<int64_t>(script.size()) + 1; ++limit) {
    std::string shown;
    GenerateOptions options;
    options.max_tokens = limit;
    options.on_text = [&](std::string_view piece) {
      EXPECT_EQ(first_invalid_byte(piece), std::string_view::npos);
      shown += piece;
      return true;
    };
    const auto result = session_on(saying(script, 1))->generate(ids("p"), options);
    EXPECT_EQ(result->text, shown) << "limit " << limit;
    EXPECT_TRUE(script.starts_with(shown)) << "limit " << limit;
    EXPECT_LE(static_cast<int64_t>(shown.size()), limit);
    EXPECT_GE(static_cast<int64_t>(shown.size()) + 3,
              std::min(limit, static_cast<int64_t>(script.size())));
  }
}

// B05: a model that says invalid bytes still yields valid UTF-8.
TEST(Session, B05InvalidBytesOfAModelBecomeReplacementCharacters) {
  const auto result =
      session_on(saying("a\xC0\x80\xED\xA0\x80\xF4\x90\x80\x80z", 1))->generate(ids("p"), {});
  EXPECT_EQ(first_invalid_byte(result->text), std::string::npos);
  EXPECT_TRUE(result->text.starts_with("a"));
  EXPECT_TRUE(result->text.ends_with("z"));
}

TEST(Session, StopTokensAndIgnoredEnds) {
  GenerateOptions options;
  options.stop_tokens = {'c'};
  EXPECT_EQ(session_on(saying("abcd", 1))->generate(ids("p"), options)->text, "ab");
  options = {};
  options.ignore_end_tokens = true;
  options.skip_special = false;
  options.max_tokens = 3;
  EXPECT_EQ(session_on(saying("a", 1))->generate(ids("p"), options)->text, "a<end><end>");
}

TEST(Session, EndsWhenTheContextIsFull) {
  const auto session = session_on(saying(std::string(50, 'x'), 4), 10);
  const auto result = session->generate(ids("0123"), {});
  EXPECT_EQ(result->stop_reason, StopReason::kContextFull);
  EXPECT_EQ(result->tokens.size(), 7u);  // the last is sampled and has no place any more
  EXPECT_EQ(session->tokens().size(), 10u);
  const auto more = session->generate(ids("y"), {});
  EXPECT_EQ(more.status().code(), StatusCode::kExhausted);
  EXPECT_EQ(more.status().message(),
            "prompt: found 1 tokens, expected at most 0 (context of 10, 10 in use)");
}

TEST(Session, APromptBeyondTheContextIsRefusedBeforeAnyWork) {
  const auto fake = saying("x", 1);
  const auto session = session_on(fake, 10);
  EXPECT_EQ(session->generate(std::vector<TokenId>(11, 'x'), {}).status().code(),
            StatusCode::kExhausted);
  EXPECT_TRUE(fake->calls.empty());
  EXPECT_TRUE(session->generate(std::vector<TokenId>(10, 'x'), {}).ok());
}

// B06: ids and numbers out of range are named, nothing has happened.
TEST(Session, B06BadRequestsAreNamed) {
  const auto fake = saying("x", 1);
  const auto session = session_on(fake);
  const auto message = [&](const std::vector<TokenId>& prompt, const GenerateOptions& options) {
    const auto result = session->generate(prompt, options);
    EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
    return result.status().message();
  };
  EXPECT_EQ(message({}, {}), "prompt: found no tokens, expected at least one");
  EXPECT_EQ(message({1, -1}, {}), "prompt: found token -1 at index 1, expected 0 to 257");
  EXPECT_EQ(message({2147483647}, {}),
            "prompt: found token 2147483647 at index 0, expected 0 to 257");
  GenerateOptions options;
  options.max_tokens = -2;
  EXPECT_EQ(message({1}, options), "max_tokens: found -2, expected -1 (no limit) or more");
  options = {};
  options.sampling.logit_bias = {{999999, 5.0f}};
  EXPECT_EQ(message({1}, options), "logit_bias: found token 999999, expected 0 to 256");
  options = {};
  options.stop = {""};
  EXPECT_EQ(message({1}, options), "stop: found 0 bytes in string 1, expected 1 to 1024");
  EXPECT_TRUE(fake->calls.empty());
}

TEST(Session, CancelKeepsAPrefixAndIsNoError) {
  const auto fake = saying("abcdefgh", 9);
  const auto session = session_on(fake);
  GenerateOptions options;
  options.on_prefill = [](int64_t done, int64_t) { return done < 8; };
  auto result = session->generate(ids("123456789"), options);
  EXPECT_EQ(result->stop_reason, StopReason::kCancelled);
  EXPECT_EQ(session->tokens(), ids("12345678"));
  options.on_prefill = nullptr;
  std::atomic<bool> cancel{false};
  options.cancel = &cancel;
  options.on_text = [&](std::string_view piece) {
    cancel = piece == "c";
    return true;
  };
  result = session->generate(ids("9"), options);
  EXPECT_EQ(result->stop_reason, StopReason::kCancelled);
  EXPECT_EQ(result->text, "abc");
  options.cancel = nullptr;
  options.on_text = [](std::string_view) { return false; };
  session->reset();
  result = session->generate(ids("123456789"), options);
  EXPECT_EQ(result->stop_reason, StopReason::kCancelled);
  EXPECT_EQ(result->text, "a");
  EXPECT_EQ(fake->consumed, session->tokens());
}

// B46: NaN ends the answer with an error and spoils the session until it is reset.
TEST(Session, B46NanLogitsEndTheSession) {
  const auto fake = saying("abc", 1);
  const auto healthy = fake->logits;
  fake->logits = [healthy](const std::vector<TokenId>& consumed, float* out) {
    healthy(consumed, out);
    if (consumed.size() == 3) out[17] = std::nanf("");
  };
  const auto session = session_on(fake);
  const auto first = session->generate(ids("p"), {});
  ASSERT_FALSE(first.ok());
  EXPECT_EQ(first.status().code(), StatusCode::kInvalidFile);
  EXPECT_NE(first.status().message().find("token 17 at position 3"), std::string::npos)
      << first.status().message();
  EXPECT_EQ(session->generate(ids("q"), {}).status().message(), first.status().message());
  EXPECT_FALSE(session->score(ids("q"), nullptr).ok());
  session->reset();
  fake->logits = healthy;
  EXPECT_EQ(session->generate(ids("p"), {})->text, "abc");
}

TEST(Session, ScoreIsTheLogOfTheModelsProbabilities) {
  const auto fake = babbling();
  const auto session = session_on(fake, 200, 7);
  const std::vector<TokenId> tokens = ids("score me, please, over several blocks");
  const auto scores = session->score(tokens, nullptr);
  ASSERT_TRUE(scores.ok());
  ASSERT_EQ(scores->size(), tokens.size() - 1);
  std::vector<TokenId> head = {tokens[0]};
  for (size_t i = 1; i < tokens.size(); ++i) {
    std::vector<float> row(kRows);
    fake->logits(head, row.data());
    double sum = 0;
    for (const float logit : row) sum += std::exp(static_cast<double>(logit));
    const double expected = row[static_cast<size_t>(tokens[i])] - std::log(sum);
    // Both are sums of 258 doubles: relative error of at most 258 * 2^-53 = 3e-14 in the sum.
    EXPECT_NEAR((*scores)[i - 1], expected, 1e-12) << i;
    head.push_back(tokens[i]);
  }
  EXPECT_EQ(session->tokens(), tokens);
  EXPECT_EQ(session->score(ids("xy"), nullptr)->size(), 2u);  // with context, the first counts too
}

TEST(Session, B46ScoreReportsNanWithItsToken) {
  const auto fake = babbling();
  const auto healthy = fake->logits;
  fake->logits = [healthy](const std::vector<TokenId>& consumed, float* out) {
    healthy(consumed, out);
    if (consumed.size() == 5) out[0] = std::nanf("");
  };
  const auto session = session_on(fake);
  const auto result = session->score(ids("0123456789"), nullptr);
  EXPECT_EQ(result.status().code(), StatusCode::kInvalidFile);
  EXPECT_NE(result.status().message().find("score of token 5,"), std::string::npos)
      << result.status().message();
}

TEST(Session, ScoreReportsProgressAndCancels) {
  const auto session = session_on(babbling(), 200, 7);
  const auto result =
      session->score(ids("twenty characters..."), [](int64_t done, int64_t) { return done < 14; });
  EXPECT_EQ(result.status().code(), StatusCode::kCancelled);
  EXPECT_EQ(session->tokens().size(), 14u);
}

}  // namespace
}  // namespace moray
