// str(), repr() and json.dumps() over template values. See jinja_print.h.
#include "src/text/jinja_print.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "src/text/python_text.h"
#include "src/text/utf8.h"

namespace moray::jinja {
namespace {

void append_scaffold(MarkedText& out, std::string_view text) {
  append(out, text, Mark::kScaffold);
}

void append_hex(std::string& out, char32_t c) {
  char buffer[16];
  const char* format = c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x";
  snprintf(buffer, sizeof buffer, format, static_cast<unsigned>(c));
  out += buffer;
}

// Python prefers single quotes and changes over only if that saves escapes.
void append_text_repr(MarkedText& out, const MarkedText& in) {
  const bool has_single = in.text.find('\'') != std::string::npos;
  const char quote = has_single && in.text.find('"') == std::string::npos ? '"' : '\'';
  append_scaffold(out, std::string_view(&quote, 1));
  for (size_t i = 0; i < in.text.size(); i += code_point_bytes(in.text, i)) {
    const char32_t c = code_point_at(in.text, i);
    std::string piece;
    if (c == '\n') {
      piece = "\\n";
    } else if (c == '\r') {
      piece = "\\r";
    } else if (c == '\t') {
      piece = "\\t";
    } else if (c == '\\' || c == static_cast<char32_t>(quote)) {
      piece = {'\\', static_cast<char>(c)};
    } else if (is_printable(c)) {
      append_character(piece, c);
    } else {
      append_hex(piece, c);
    }
    append(out, piece, mark_at(in, i));
  }
  append_scaffold(out, std::string_view(&quote, 1));
}

std::string scalar_repr(const Value& value) {
  if (value.is<None>()) return "None";
  if (value.is<bool>()) return value.as<bool>() ? "True" : "False";
  if (value.is<int64_t>()) return std::to_string(value.as<int64_t>());
  if (value.is<BigInteger>()) return *value.as<BigInteger>().digits;
  return float_repr(value.as<double>());
}

bool is_scalar(const Value& value) {
  return value.is<None>() || value.is_number() || value.is<BigInteger>();
}

Status append_repr(MarkedText& out, const Value& value, Budget& budget);

Status append_sequence_repr(MarkedText& out, const Sequence& sequence, Budget& budget) {
  static constexpr const char* kOpen[] = {
      "[", "(", "", "dict_items([", "dict_keys([", "dict_values(["};
  static constexpr const char* kClose[] = {"]", ")", "", "])", "])", "])"};
  if (sequence.kind == SequenceKind::kRange || sequence.kind == SequenceKind::kIterator) {
    return unsupported(sequence.kind == SequenceKind::kRange
                           ? "printing a range is not supported; use the list filter"
                           : "printing a generator is not supported; use the list or join filter");
  }
  const auto kind = static_cast<size_t>(sequence.kind);
  append_scaffold(out, kOpen[kind]);
  for (size_t i = 0; i < sequence.items.size(); ++i) {
    if (i > 0) append_scaffold(out, ", ");
    RETURN_IF_ERROR(append_repr(out, sequence.items[i], budget));
  }
  const bool is_single = sequence.kind == SequenceKind::kTuple && sequence.items.size() == 1;
  append_scaffold(out, is_single ? "," : "");
  append_scaffold(out, kClose[kind]);
  return Status();
}

Status append_repr(MarkedText& out, const Value& value, Budget& budget) {
  if (is_scalar(value)) {
    append_scaffold(out, scalar_repr(value));
    return Status();
  }
  if (value.is_undefined()) {
    append_scaffold(out, "Undefined");
    return Status();
  }
  if (value.is_text()) {
    if (value.as<Text>().is_safe) return unsupported("repr of a safe string is not supported");
    RETURN_IF_ERROR(budget.charge_text(*value.as<Text>().marked));
    append_text_repr(out, *value.as<Text>().marked);
    return Status();
  }
  if (value.is<SequenceRef>()) return append_sequence_repr(out, *value.as<SequenceRef>(), budget);
  if (!value.is<MapRef>()) {
    return unsupported(std::string("printing a ") + type_name(value) + " is not supported");
  }
  append_scaffold(out, "{");
  bool is_first = true;
  for (const auto& [key, item] : value.as<MapRef>()->entries) {
    if (!is_first) append_scaffold(out, ", ");
    is_first = false;
    append_text_repr(out, *key.marked);
    append_scaffold(out, ": ");
    RETURN_IF_ERROR(append_repr(out, item, budget));
  }
  append_scaffold(out, "}");
  return Status();
}

class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, Budget& budget) : style_(style), budget_(budget) {}

  Status write(const Value& value) {
    if (value.is_text()) {
      RETURN_IF_ERROR(
          budget_.charge_steps(static_cast<int64_t>(value.as<Text>().str().size() / 8)));
      RETURN_IF_ERROR(budget_.charge_text(*value.as<Text>().marked));
      write_text(*value.as<Text>().marked);
      return Status();
    }
    if (value.is<SequenceRef>()) return write_sequence(value, *value.as<SequenceRef>());
    if (value.is<MapRef>()) return write_map(*value.as<MapRef>());
    if (!is_scalar(value)) return cannot(value);
    if (value.is<None>()) {
      append_scaffold(out_, "null");
    } else if (value.is<bool>()) {
      append_scaffold(out_, value.as<bool>() ? "true" : "false");
    } else if (value.is<double>() && std::isnan(value.as<double>())) {
      append_scaffold(out_, "NaN");
    } else if (value.is<double>() && std::isinf(value.as<double>())) {
      append_scaffold(out_, value.as<double>() > 0 ? "Infinity" : "-Infinity");
    } else {
      append_scaffold(out_, scalar_repr(value));
    }
    return Status();
  }

  MarkedText take() { return std::move(out_); }

 private:
  static Status cannot(const Value& value) {
    const std::string what = value.is_undefined() && value.as<Undefined>().what
                                 ? ": " + *value.as<Undefined>().what
                                 : std::string();
    return template_error(std::string("tojson cannot write a value of type ") + type_name(value) +
                          what);
  }

  void break_line() {
    if (!style_.indent) return;
    append_scaffold(out_, "\n");
    for (int i = 0; i < level_; ++i) append_scaffold(out_, *style_.indent);
  }

  Status write_sequence(const Value& value, const Sequence& sequence) {
    if (sequence.kind != SequenceKind::kList && sequence.kind != SequenceKind::kTuple) {
      return cannot(value);
    }
    append_scaffold(out_, "[");
    ++level_;
    for (size_t i = 0; i < sequence.items.size(); ++i) {
      if (i > 0) append_scaffold(out_, style_.item_separator);
      break_line();
      RETURN_IF_ERROR(write(sequence.items[i]));
    }
    --level_;
    if (!sequence.items.empty()) break_line();
    append_scaffold(out_, "]");
    return budget_.charge_bytes(static_cast<int64_t>(sequence.items.size()) * indent_bytes());
  }

  Status write_map(const Map& map) {
    std::vector<const std::pair<Text, Value>*> entries;
    for (const auto& entry : map.entries) entries.push_back(&entry);
    if (style_.sort_keys) {
      std::sort(entries.begin(), entries.end(),
                [](auto* a, auto* b) { return a->first.str() < b->first.str(); });
    }
    append_scaffold(out_, "{");
    ++level_;
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) append_scaffold(out_, style_.item_separator);
      break_line();
      write_text(*entries[i]->first.marked);
      append_scaffold(out_, style_.key_separator);
      RETURN_IF_ERROR(write(entries[i]->second));
    }
    --level_;
    if (!entries.empty()) break_line();
    append_scaffold(out_, "}");
    return budget_.charge_bytes(static_cast<int64_t>(entries.size()) * indent_bytes());
  }

  // Bound on what one element adds besides its own text.
  int64_t indent_bytes() const {
    const size_t indent = style_.indent ? style_.indent->size() : 0;
    return static_cast<int64_t>(indent * static_cast<size_t>(level_ + 1) +
                                style_.item_separator.size() + style_.key_separator.size() + 8);
  }

  void write_text(const MarkedText& in) {
    append_scaffold(out_, "\"");
    size_t start = 0;  // of the run that needs no escape
    for (size_t i = 0; i < in.text.size();) {
      const size_t bytes = code_point_bytes(in.text, i);
      const char32_t c = code_point_at(in.text, i);
      if (c < 0x20 || c == '"' || c == '\\' || (style_.ensure_ascii && c >= 0x7F)) {
        append(out_, in, start, i);
        append(out_, escape_of(c), mark_at(in, i));
        start = i + bytes;
      }
      i += bytes;
    }
    append(out_, in, start, in.text.size());
    append_scaffold(out_, "\"");
  }

  static std::string escape_of(char32_t c) {
    switch (c) {
      case '"':
        return "\\\"";
      case '\\':
        return "\\\\";
      case '\n':
        return "\\n";
      case '\r':
        return "\\r";
      case '\t':
        return "\\t";
      case '\b':
        return "\\b";
      case '\f':
        return "\\f";
      default:
        break;
    }
    char buffer[16];
    if (c < 0x10000) {
      snprintf(buffer, sizeof buffer, "\\u%04x", static_cast<unsigned>(c));
    } else {
      snprintf(buffer, sizeof buffer, "\\u%04x\\u%04x",
               static_cast<unsigned>(0xD800 + ((c - 0x10000) >> 10)),
               static_cast<unsigned>(0xDC00 + (c & 0x3FF)));
    }
    return buffer;
  }

  const JsonStyle& style_;
  Budget& budget_;
  MarkedText out_;
  int level_ = 0;
};

}  // namespace

Result<Text> to_text(const Value& value, Budget& budget) {
  if (value.is_text()) return value.as<Text>();
  MarkedText out;
  if (!value.is_undefined()) {
    RETURN_IF_ERROR(budget.charge_steps(value_weight(value)));
    RETURN_IF_ERROR(append_repr(out, value, budget));
  }
  RETURN_IF_ERROR(budget.charge_text(out));
  return Text{std::make_shared<const MarkedText>(std::move(out))};
}

Result<MarkedText> to_json(const Value& value, const JsonStyle& style, Budget& budget) {
  RETURN_IF_ERROR(budget.charge_steps(value_weight(value)));
  JsonWriter writer(style, budget);
  RETURN_IF_ERROR(writer.write(value));
  return writer.take();
}

}  // namespace moray::jinja
