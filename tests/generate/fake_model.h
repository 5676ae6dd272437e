// A made-up model and tokenizer for the session's tests: no weights, every text can be chosen.
//
// The tokenizer's tokens are the 256 bytes, then <end> (256, special) and a padding row (257). A
// FakeModel records what it was fed and computes logits from all of it, so that a slip in feeding
// shows as another text.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "src/generate/random.h"
#include "src/generate/step_model.h"

namespace moray {

inline constexpr TokenId kEnd = 256;
inline constexpr int64_t kRows = 258;

class ByteTokenizer final : public Tokenizer {
 public:
  ByteTokenizer() {
    for (int byte = 0; byte < 256; ++byte) bytes_ += static_cast<char>(byte);
  }
  Result<std::vector<TokenId>> encode(std::string_view text, ControlTokens) const override {
    std::vector<TokenId> ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  std::string_view token_bytes(TokenId id, bool skip_special) const override {
    if (id == kEnd && !skip_special) return "<end>";
    if (id < 0 || id >= 256) return {};
    return std::string_view(bytes_).substr(static_cast<size_t>(id), 1);
  }
  std::optional<TokenId> added_token(std::string_view text) const override {
    if (text == "<end>") return kEnd;
    return std::nullopt;
  }
  int64_t token_count() const override { return 257; }
  bool is_token(TokenId id) const override { return id >= 0 && id <= kEnd; }

 private:
  std::string bytes_;
};

inline std::vector<TokenId> ids(const std::string& text) {
  return *ByteTokenizer().encode(text, ControlTokens::kAsText);
}

struct FakeModel {
  std::vector<TokenId> consumed;
  std::vector<size_t> calls;  // tokens of each forward
  std::function<void(const std::vector<TokenId>&, float*)> logits;
};

// Says `script` after a prompt of `prompt_size` tokens, then <end>. The padding row always shouts.
inline std::shared_ptr<FakeModel> saying(const std::string& script, size_t prompt_size) {
  auto fake = std::make_shared<FakeModel>();
  fake->logits = [script, prompt_size](const std::vector<TokenId>& consumed, float* out) {
    std::fill_n(out, kRows, 0.0f);
    const size_t at = consumed.size() - prompt_size;
    out[at < script.size() ? static_cast<unsigned char>(script[at]) : kEnd] = 5;
    out[257] = 50;
  };
  return fake;
}

// Pseudo-random logits from a hash of everything consumed.
inline std::shared_ptr<FakeModel> babbling() {
  auto fake = std::make_shared<FakeModel>();
  fake->logits = [](const std::vector<TokenId>& consumed, float* out) {
    uint64_t hash = 1469598103934665603u;
    for (const TokenId id : consumed) hash = (hash ^ static_cast<uint64_t>(id)) * 1099511628211u;
    for (int64_t row = 0; row < kRows; ++row) {
      out[row] = static_cast<float>(8 * uniform_at(hash, static_cast<uint64_t>(row)));
    }
  };
  return fake;
}

inline std::shared_ptr<const SessionContext> byte_context() {
  auto context = std::make_shared<SessionContext>();
  context->tokenizer = std::make_shared<ByteTokenizer>();
  context->end_tokens = {kEnd};
  for (TokenId id = 0; id <= kEnd; ++id) context->sampleable.push_back(id);
  return context;
}

inline std::unique_ptr<Session> session_on(const std::shared_ptr<FakeModel>& fake,
                                           int64_t capacity = 100, int64_t block_tokens = 4) {
  StepModel model;
  model.vocab_rows = kRows;
  model.capacity = capacity;
  model.block_tokens = block_tokens;
  model.forward = [fake, block_tokens](std::span<const TokenId> tokens, int64_t rows, float* out) {
    EXPECT_LE(static_cast<int64_t>(tokens.size()), block_tokens);
    fake->calls.push_back(tokens.size());
    for (size_t i = 0; i < tokens.size(); ++i) {
      fake->consumed.push_back(tokens[i]);
      const auto row = static_cast<int64_t>(i) - (static_cast<int64_t>(tokens.size()) - rows);
      if (row >= 0) fake->logits(fake->consumed, out + row * kRows);
    }
    return Status();
  };
  model.clear = [fake] { fake->consumed.clear(); };
  return make_session(std::move(model), byte_context());
}

}  // namespace moray
