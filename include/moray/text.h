// Text in and out of a model: tokenize, render a conversation, read tokens back as text.
//
// Everything here is loaded from the checkpoint's own files (tokenizer.json, tokenizer_config.json,
// chat_template.jinja, generation_config.json) and is immutable afterwards, so any number of
// threads may share it. A control token can only come from scaffolding or from a caller who asks
// for it: content is tokenized with control tokens off.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"

namespace moray {

using TokenId = int32_t;

// Whether text such as "<|im_start|>" becomes the control token it spells.
enum class ControlTokens { kAsText, kAllow };

// Offset of the first byte that is not part of a well-formed UTF-8 character, or npos.
size_t first_invalid_byte(std::string_view bytes);

class Tokenizer {
 public:
  // Reads `folder`/tokenizer.json (and tokenizer_config.json if there). Errors name the file and
  // field: unknown pre-tokenizer pattern, a merge whose parts or result are missing, a duplicate
  // token or id, invalid UTF-8, a model that is not byte-level BPE.
  static Result<std::shared_ptr<const Tokenizer>> load(const std::string& folder);

  virtual ~Tokenizer() = default;

  // Ids of `text` (valid UTF-8, else kInvalidArgument naming the byte offset), id for id what
  // Hugging Face `tokenizers` gives with add_special_tokens=false. Cost: near-linear in the bytes.
  virtual Result<std::vector<TokenId>> encode(std::string_view text,
                                              ControlTokens control) const = 0;

  // The bytes `id` stands for; empty for ids outside the vocabulary (padding rows) and, when
  // `skip_special`, for tokens flagged special. The view lives as long as the tokenizer.
  virtual std::string_view token_bytes(TokenId id, bool skip_special = false) const = 0;

  // Id of an added token by its exact text ("<|im_end|>"), if the checkpoint has it.
  virtual std::optional<TokenId> added_token(std::string_view text) const = 0;

  // One more than the largest id that stands for text. Rows of the head at or beyond it are padding
  // and must never be sampled; `is_token` also covers holes.
  virtual int64_t token_count() const = 0;
  virtual bool is_token(TokenId id) const = 0;
};

// Joins the bytes of successive tokens into valid UTF-8 pieces: an incomplete character is held
// until it is complete. Invalid bytes become U+FFFD, one for each maximal invalid part.
class StreamDecoder {
 public:
  explicit StreamDecoder(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special = true);
  // Text that became certain with `id`; may be empty.
  std::string push(TokenId id);
  // Drops an unfinished tail, as both streamed and whole answers do; returns how many bytes it had.
  int64_t finish();

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  bool skip_special_;
  std::string tail_;
};

// One message of a conversation. `role` is system, user, assistant or tool.
struct ChatMessage {
  std::string role;
  std::string content;
  std::string reasoning;  // of an assistant turn, without the think tags; may be empty
};

// A whole conversation as clients send it, for what ChatMessage cannot say: tool calls, tool
// results, content in parts. All JSON text; key order is kept, since it shows in the prompt.
struct ChatRequest {
  std::string messages;   // an array of message objects, handed to the template as they are
  std::string tools;      // an array of tool definitions; empty: none
  std::string arguments;  // an object of further template variables; empty: none
};

struct ChatOptions {
  bool add_generation_prompt = true;
  bool enable_thinking = false;  // `arguments` may name the same variable and then wins
};

// The checkpoint's own template, run by our interpreter: the subset of Jinja that chat templates
// use, with jinja2's semantics as transformers configures it. What it does not know is refused by
// name and line, if possible at load. Rendering is bounded in depth, steps and text, whatever
// template and request are. Thread-safe.
class ChatTemplate {
 public:
  // From `folder`/chat_template.jinja, else tokenizer_config.json's chat_template. A checkpoint
  // without one gives kNotFound.
  static Result<std::shared_ptr<const ChatTemplate>> load(const std::string& folder);
  // From the template's text and tokenizer_config.json's (empty: no bos_token and the like).
  static Result<std::shared_ptr<const ChatTemplate>> parse(std::string_view source,
                                                           std::string_view tokenizer_config = "");

  virtual ~ChatTemplate() = default;

  // The prompt's token ids: scaffolding with control tokens, message content without, so that no
  // content can forge a turn. Errors: the template's own raise_exception text and the line, a
  // request that is not JSON of the stated kind, the bounds (kExhausted).
  virtual Result<std::vector<TokenId>> render(const Tokenizer& tokenizer,
                                              const std::vector<ChatMessage>& messages,
                                              const ChatOptions& options) const = 0;
  virtual Result<std::vector<TokenId>> render(const Tokenizer& tokenizer,
                                              const ChatRequest& request,
                                              const ChatOptions& options) const = 0;
  // The same as one string, for display.
  virtual Result<std::string> render_text(const std::vector<ChatMessage>& messages,
                                          const ChatOptions& options) const = 0;
  virtual Result<std::string> render_text(const ChatRequest& request,
                                          const ChatOptions& options) const = 0;
};

}  // namespace moray
