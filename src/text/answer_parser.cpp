// A state machine over the text that is not understood yet. See answer_parser.h.
#include "src/text/answer_parser.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "src/text/tag_match.h"

namespace moray {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kThink = "<think>";
constexpr std::string_view kThinkEnd = "</think>";
constexpr std::string_view kCall = "<tool_call>";
constexpr std::string_view kCallEnd = "</tool_call>";
constexpr std::string_view kFunction = "<function=";
constexpr std::string_view kFunctionEnd = "</function>";
constexpr std::string_view kParameter = "<parameter=";
constexpr std::string_view kParameterEnd = "</parameter>";
constexpr int kJsonDepthMax = 100;

Match either(Match a, Match b) {
  return std::max(a, b);
}

// Space, then `tag`.
Match match_next(std::string_view text, std::string_view tag) {
  return match_tag(text.substr(space_length(text)), tag).match;
}

// What may follow a parameter in a well-formed call.
class Closers {
 public:
  Closers(const ToolSchemas& tools, std::string_view function, bool is_wrapped, bool is_ended)
      : tools_(tools), function_(function), is_wrapped_(is_wrapped), is_ended_(is_ended) {}

  // </parameter> and a legal next tag. Where the answer ended, a beginning of one suffices.
  Match parameter_end(std::string_view text) const {
    const TagMatch closer = match_tag(text, kParameterEnd);
    if (closer.match != Match::kYes) return closer.match;
    const std::string_view tail = text.substr(closer.length);
    const std::string_view next = tail.substr(space_length(tail));
    Match match = either(function_end(next), declared_parameter(next));
    if (is_wrapped_) match = either(match, match_tag(next, kCallEnd).match);
    return match == Match::kPartial && is_ended_ ? Match::kYes : match;
  }
  // </function> and, in <tool_call>, that one's end.
  Match function_end(std::string_view text) const {
    const TagMatch closer = match_tag(text, kFunctionEnd);
    if (closer.match != Match::kYes || !is_wrapped_) return closer.match;
    const std::string_view tail = text.substr(closer.length);
    const std::string_view next = tail.substr(space_length(tail));
    const TagMatch second = match_named_tag(next, kFunction);
    const bool is_foreign = second.match == Match::kYes && !tools_.has(second.name);
    return either(match_next(tail, kCallEnd), is_foreign ? Match::kNo : second.match);
  }
  Match declared_parameter(std::string_view text) const {
    const TagMatch tag = match_named_tag(text, kParameter);
    const bool is_foreign = tag.match == Match::kYes && !tools_.has(function_, tag.name);
    return is_foreign ? Match::kNo : tag.match;
  }

 private:
  const ToolSchemas& tools_;
  std::string_view function_;
  bool is_wrapped_;
  bool is_ended_;
};

// The arguments of a JSON call as an object's text; empty if they are not an object.
std::string json_arguments(const Json& call) {
  const auto found = call.find("arguments");
  if (found == call.end() || found->is_null()) return "{}";
  if (found->is_object()) return found->dump(-1, ' ', false, Json::error_handler_t::replace);
  if (!found->is_string()) return {};
  const auto& text = found->get_ref<const std::string&>();
  if (text.empty()) return "{}";
  const size_t first = text.find_first_not_of(" \t\r\n");
  const bool is_object = first != text.npos && text[first] == '{' && Json::accept(text);
  return is_object ? text : std::string();
}

}  // namespace

AnswerParser::AnswerParser(ToolSchemas tools, Opening opening)
    : tools_(std::move(tools)), is_thinking_(opening == Opening::kReasoning) {}

void AnswerParser::push(std::string_view piece, std::vector<AnswerEvent>* events) {
  buffer_.erase(0, begin_);
  begin_ = 0;
  buffer_ += piece;
  events_ = events;
  run();
}

void AnswerParser::finish(std::vector<AnswerEvent>* events) {
  is_ended_ = true;
  events_ = events;
  run();
  if (state_ == State::kParameters || state_ == State::kValue) end_call(Kind::kCallCut, 0);
}

void AnswerParser::run() {
  while (begin_ < buffer_.size() && step()) {
  }
}

void AnswerParser::emit(Kind kind, size_t length, std::string text) {
  std::string raw(rest().substr(0, length));
  begin_ += length;
  scanned_ = 0;
  const bool is_joined = kind == Kind::kReasoning || kind == Kind::kText || kind == Kind::kMarkup;
  if (is_joined && !events_->empty() && events_->back().kind == kind) {
    events_->back().text += text;
    events_->back().raw += raw;
  } else {
    events_->push_back({kind, std::move(text), std::move(raw)});
  }
}

void AnswerParser::emit_text(size_t length) {
  const std::string_view text = rest().substr(0, length);
  for (const char c : text) {
    if (c == '\n') {
      is_line_blank_ = true;
      is_inline_code_ = false;
      ticks_ = 0;
    } else if (c == '`') {
      is_inline_code_ = !is_inline_code_;
      if (is_line_blank_ && ++ticks_ == 3) is_fenced_ = !is_fenced_;
    } else if (c != ' ') {
      is_line_blank_ = false;
    }
  }
  emit(Kind::kText, length, std::string(text));
}

void AnswerParser::warn(std::string text) {
  emit(Kind::kWarning, 0, std::move(text));
}

bool AnswerParser::step() {
  switch (state_) {
    case State::kStart:
      return read_start();
    case State::kReasoning:
      return read_reasoning();
    case State::kSpace:
      return read_space();
    case State::kText:
      return read_text();
    case State::kJson:
      return read_json();
    case State::kParameters:
      return read_parameters();
    case State::kValue:
      return read_value();
    case State::kAfterCall:
      return read_after_call();
  }
  return false;
}

bool AnswerParser::read_start() {
  const size_t space = space_length(rest());
  const TagMatch tag = match_tag(rest().substr(space), kThink);
  if (tag.match == Match::kPartial && !is_ended_) return false;
  if (tag.match == Match::kYes) emit(Kind::kMarkup, space + tag.length);
  state_ = is_thinking_ || tag.match == Match::kYes ? State::kReasoning : State::kText;
  return true;
}

bool AnswerParser::read_reasoning() {
  const size_t place = std::min(rest().find('<'), rest().size());
  if (place > 0) {
    emit(Kind::kReasoning, place, std::string(rest().substr(0, place)));
    return true;
  }
  const TagMatch tag = match_tag(rest(), kThinkEnd);
  if (tag.match == Match::kPartial && !is_ended_) return false;
  if (tag.match == Match::kYes) {
    emit(Kind::kMarkup, tag.length);
    state_ = State::kSpace;
  } else {
    emit(Kind::kReasoning, 1, "<");
  }
  return true;
}

bool AnswerParser::read_space() {
  const size_t length = space_length(rest());
  if (length > 0) emit(Kind::kMarkup, length);
  if (length == 0) state_ = State::kText;
  return true;
}

bool AnswerParser::read_text() {
  const size_t place = std::min(rest().find('<'), rest().size());
  if (place > 0) {
    emit_text(place);
    return true;
  }
  if (!tools_.empty() && !is_fenced_ && !is_inline_code_) return read_call_header();
  emit_text(1);
  return true;
}

// <tool_call>, <function=name>, or both; <tool_call> and a JSON object.
bool AnswerParser::read_call_header() {
  const TagMatch call = match_tag(rest(), kCall);
  is_wrapped_ = call.match == Match::kYes;
  const size_t space = is_wrapped_ ? space_length(rest().substr(call.length)) : 0;
  const size_t before = call.length + space;
  const std::string_view tail = rest().substr(before);
  if (is_wrapped_ && tail.starts_with('{')) {
    state_ = State::kJson;
    scanned_ = before;
    depth_ = 0;
    is_string_ = is_escaped_ = false;
    return true;
  }
  const TagMatch function = match_named_tag(tail, kFunction);
  const Match match = is_wrapped_ ? function.match : either(call.match, function.match);
  if (match == Match::kPartial && !is_ended_) return false;
  if (match != Match::kYes) {
    emit_text(1);
  } else if (!tools_.has(function.name)) {
    warn("tool call: found function '" + std::string(function.name) + "', expected a declared one");
    emit_text(before + function.length);
  } else {
    start_call(std::string(function.name), before + function.length);
    state_ = State::kParameters;
  }
  return true;
}

void AnswerParser::start_call(std::string function, size_t length) {
  function_ = std::move(function);
  given_.clear();
  has_arguments_ = false;
  emit(Kind::kCallStart, length, function_);
}

// Finds the object's end; the header is still part of rest(), in case all of it is text.
bool AnswerParser::read_json() {
  size_t at = scanned_;
  const size_t bound = std::min(rest().size(), kCallBytesMax);
  for (; at < bound; ++at) {
    const char c = rest()[at];
    if (is_string_) {
      if (!is_escaped_ && c == '"') is_string_ = false;
      is_escaped_ = !is_escaped_ && c == '\\';
      continue;
    }
    if (c == '"') is_string_ = true;
    if (c == '{' || c == '[') ++depth_;
    if (c == '}' || c == ']') --depth_;
    if (depth_ == 0 || depth_ > kJsonDepthMax) break;
  }
  scanned_ = at;
  const bool is_whole = at < bound && depth_ == 0;
  if (is_whole) {
    const size_t start = rest().find('{');
    if (end_json(rest().substr(start, at + 1 - start), at + 1)) return true;
  }
  if (at == rest().size() && at < kCallBytesMax && !is_ended_) return false;
  warn("tool call: found no whole JSON object with a declared 'name', expected one");
  emit_text(is_whole ? at + 1 : at);
  state_ = State::kText;
  return true;
}

bool AnswerParser::end_json(std::string_view json, size_t length) {
  const Json call = Json::parse(json.begin(), json.end(), nullptr, /*allow_exceptions=*/false);
  if (!call.is_object()) return false;
  const auto name = call.find("name");
  if (name == call.end() || !name->is_string()) return false;
  if (!tools_.has(name->get_ref<const std::string&>())) return false;
  std::string arguments = json_arguments(call);
  if (arguments.empty()) return false;
  start_call(name->get<std::string>(), length);
  emit(Kind::kArguments, 0, std::move(arguments));
  emit(Kind::kCallEnd, 0);
  state_ = State::kAfterCall;
  return true;
}

bool AnswerParser::read_parameters() {
  const size_t space = space_length(rest());
  if (space > 0) {
    emit(Kind::kMarkup, space);
    return true;
  }
  const TagMatch parameter = match_named_tag(rest(), kParameter);
  const TagMatch function_end = match_tag(rest(), kFunctionEnd);
  const TagMatch call_end = match_tag(rest(), kCallEnd);
  if (parameter.match == Match::kYes) {
    parameter_ = parameter.name;
    emit(Kind::kMarkup, parameter.length);
    state_ = State::kValue;
    return true;
  }
  const bool is_call_end = is_wrapped_ && call_end.match == Match::kYes;
  if (function_end.match == Match::kYes || is_call_end) {
    end_call(Kind::kCallEnd, function_end.length);
    return true;
  }
  const Match match = either(parameter.match, either(function_end.match, call_end.match));
  if (match == Match::kPartial && !is_ended_) return false;
  if (match == Match::kPartial) {
    emit(Kind::kMarkup, rest().size());
    return true;
  }
  warn("tool call: found text between parameters of '" + function_ + "', expected a tag");
  end_call(Kind::kCallCut, 0);
  return true;
}

// A closer inside a value is told from the value's end by where it stands and what follows: after a
// value that began on its own line it must begin a line, too, and a legal tag must come next.
bool AnswerParser::read_value() {
  const std::string_view text = rest();
  const bool is_block = text.front() == '\n' || text.starts_with("\r\n");
  const Closers closers(tools_, function_, is_wrapped_, is_ended_);
  for (size_t at = text.find('<', scanned_); at < std::min(text.size(), kCallBytesMax);
       at = text.find('<', at + 1)) {
    const std::string_view tail = text.substr(at);
    const bool begins_line = at > 0 && text[at - 1] == '\n';
    const Match closer = begins_line || !is_block ? closers.parameter_end(tail) : Match::kNo;
    const Match unclosed =
        begins_line ? either(closers.function_end(tail), closers.declared_parameter(tail))
                    : Match::kNo;
    if (closer == Match::kYes) {
      end_value(at, kParameterEnd.size());
      return true;
    }
    if (unclosed == Match::kYes) {
      const std::string_view next = match_named_tag(tail, kParameter).name;
      const bool is_repeat = next == parameter_ || given_.contains(next);
      if (!is_repeat) {
        warn("tool call: found parameter '" + parameter_ + "' unclosed, expected </parameter>");
        end_value(at, 0);
        return true;
      }
    } else if (either(closer, unclosed) == Match::kPartial && !is_ended_) {
      scanned_ = at;
      return false;
    }
  }
  scanned_ = text.size();
  if (!is_ended_ && text.size() < kCallBytesMax) return false;
  emit(Kind::kMarkup, std::min(text.size(), kCallBytesMax));
  end_call(Kind::kCallCut, 0);
  return true;
}

void AnswerParser::end_value(size_t value_length, size_t closer_length) {
  std::string_view value = rest().substr(0, value_length);
  if (value.starts_with("\r\n")) value.remove_prefix(1);
  if (value.starts_with('\n')) {
    value.remove_prefix(1);
    if (value.ends_with('\n')) value.remove_suffix(1);
  }
  const size_t length = value_length + closer_length;
  state_ = State::kParameters;
  if (!given_.insert(parameter_).second) {
    warn("tool call: found parameter '" + parameter_ + "' twice, expected once; kept the first");
    emit(Kind::kMarkup, length);
    return;
  }
  std::string json = (has_arguments_ ? "," : "{") + quote_json(parameter_) + ":";
  json += tools_.to_json(function_, parameter_, value);
  has_arguments_ = true;
  emit(Kind::kArguments, length, std::move(json));
}

void AnswerParser::end_call(Kind kind, size_t length) {
  emit(Kind::kArguments, 0, has_arguments_ ? "}" : "{}");
  emit(kind, length);
  state_ = kind == Kind::kCallEnd ? State::kAfterCall : State::kText;
}

// </tool_call>, or a second call inside it.
bool AnswerParser::read_after_call() {
  const size_t space = space_length(rest());
  if (space > 0) {
    emit(Kind::kMarkup, space);
    return true;
  }
  const TagMatch end = match_tag(rest(), kCallEnd);
  if (is_wrapped_ && end.match == Match::kPartial && !is_ended_) return false;
  if (is_wrapped_ && end.match == Match::kYes) {
    emit(Kind::kMarkup, end.length);
    state_ = State::kSpace;
    return true;
  }
  const TagMatch function = match_named_tag(rest(), kFunction);
  if (is_wrapped_ && function.match == Match::kPartial && !is_ended_) return false;
  if (is_wrapped_ && function.match == Match::kYes && tools_.has(function.name)) {
    start_call(std::string(function.name), function.length);
    state_ = State::kParameters;
    return true;
  }
  state_ = State::kText;
  return true;
}

}  // namespace moray
