// Reads what the model says: text in pieces becomes reasoning, text and tool calls.
//
// Invariants: the events do not depend on how the text is cut into pieces (neighbouring events of
// one kind, reasoning or text, may be split differently). The `raw` of all events, joined, is the
// text itself, so nothing is ever lost. No input is an error: what is not a call is text. Held text
// is bounded by kCallBytesMax, and the work is linear in the text.
//
// Tags are found by their text, since models also spell them in ordinary tokens. Stop strings are
// found before, by the session (src/generate/stop_matcher.h).
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "src/text/tool_schema.h"

namespace moray {

struct AnswerEvent {
  enum class Kind {
    kReasoning,
    kText,
    kCallStart,  // `text` is the function's name
    kArguments,  // a fragment; those of a call, joined, are one JSON object
    kCallEnd,    // of a whole call
    kCallCut,    // of a call that the answer's end or a malformed tag cut: parameters that were
                 // complete are in its arguments, the others are left out; never to be run
    kMarkup,     // tags and the space round them, nothing to show
    kWarning,    // one line in `text` about what was read in a way the model may not have meant
  };
  Kind kind;
  std::string text;
  std::string raw;  // the bytes of the answer that this event stands for
};

class AnswerParser {
 public:
  // A longer parameter or JSON call is cut there and what follows is text.
  static constexpr size_t kCallBytesMax = 4 << 20;

  enum class Opening { kAnswer, kReasoning };  // kReasoning: the prompt ends with an open <think>

  // Without tools everything outside the thought is text.
  AnswerParser(ToolSchemas tools, Opening opening);

  // Appends what became certain with `piece` to `events`.
  void push(std::string_view piece, std::vector<AnswerEvent>* events);
  // Appends what was held; the answer has ended.
  void finish(std::vector<AnswerEvent>* events);

 private:
  using Kind = AnswerEvent::Kind;
  enum class State { kStart, kReasoning, kSpace, kText, kJson, kParameters, kValue, kAfterCall };

  std::string_view rest() const { return std::string_view(buffer_).substr(begin_); }
  void emit(Kind kind, size_t length, std::string text = {});
  void emit_text(size_t length);
  void warn(std::string text);
  void run();

  // Each reads the beginning of rest(); false when more text is needed first.
  bool step();
  bool read_start();
  bool read_reasoning();
  bool read_space();
  bool read_text();
  bool read_call_header();
  bool read_json();
  bool read_parameters();
  bool read_value();
  bool read_after_call();

  void start_call(std::string function, size_t length);
  bool end_json(std::string_view json, size_t length);
  void end_value(size_t value_length, size_t closer_length);
  void end_call(Kind kind, size_t length);

  ToolSchemas tools_;
  State state_ = State::kStart;
  bool is_thinking_;
  bool is_ended_ = false;
  std::string buffer_;  // what no event stands for yet, from begin_
  size_t begin_ = 0;
  std::vector<AnswerEvent>* events_ = nullptr;  // of the present push or finish

  // Markdown code in the text so far: calls shown there are examples.
  bool is_fenced_ = false;
  bool is_inline_code_ = false;
  bool is_line_blank_ = true;
  int ticks_ = 0;  // at the line's beginning

  // The call being read.
  std::string function_;
  bool is_wrapped_ = false;  // in <tool_call>
  std::string parameter_;
  std::set<std::string, std::less<>> given_;
  bool has_arguments_ = false;
  size_t scanned_ = 0;  // bytes of rest() that need no second look
  int depth_ = 0;       // of a JSON call
  bool is_string_ = false;
  bool is_escaped_ = false;
};

}  // namespace moray
