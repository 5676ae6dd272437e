// The values a chat template computes with: Python's types, as far as templates use them.
//
// Lists, maps and strings are immutable once built and shared by reference; only namespaces change.
// Central invariant: nesting is bounded by kMaxValueDepth at construction, so every recursive walk
// (printing, equality, destruction) is too. A value may hold another one many times, so a walk can
// still be long: value_weight() is its cost, known beforehand, and whoever walks charges it to the
// budget. Namespaces break the chain: values hold plain pointers to them and the evaluator owns
// them. Printing is in jinja_print.h, operators in jinja_operators.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "src/base/status.h"
#include "src/text/marked_text.h"

namespace moray::jinja {

inline constexpr int kMaxValueDepth = 128;

struct Value;
struct Stmt;       // jinja_ast.h; a macro is its definition
struct LoopState;  // jinja_eval.h

// A missing variable or attribute; `what` says which, for the error if it is used.
struct Undefined {
  std::shared_ptr<const std::string> what;
};
struct None {};
// An integer of the request beyond 64 bits: printed as written, not computed with.
struct BigInteger {
  std::shared_ptr<const std::string> digits;
};
struct Text {
  std::shared_ptr<const MarkedText> marked;
  bool is_safe = false;  // passed through the `safe` filter: `+` escapes what is joined to it
  const std::string& str() const { return marked->text; }
};

// kIterator is consumed by its first walk, as Python's generators are; what went wrong in making
// its items is reported only then.
enum class SequenceKind { kList, kTuple, kRange, kItems, kKeys, kValues, kIterator };
struct Sequence {
  SequenceKind kind = SequenceKind::kList;
  std::vector<Value> items;
  int depth = 1;
  int64_t weight = 1;
  mutable size_t consumed = 0;  // kIterator: items already handed out
  Status error;                 // kIterator: what walking it gives instead
};
using SequenceRef = std::shared_ptr<const Sequence>;

struct Map;
using MapRef = std::shared_ptr<const Map>;

// A method taken from a value but not called yet ("text.split").
struct Method {
  std::shared_ptr<const Value> receiver;
  std::string name;
};
enum class GlobalFunction { kRange, kDict, kNamespace, kRaiseException, kStrftimeNow };
struct Namespace;

struct Value {
  std::variant<Undefined, None, bool, int64_t, BigInteger, double, Text, SequenceRef, MapRef,
               Method, GlobalFunction, Namespace*, const Stmt*, std::shared_ptr<LoopState>>
      data;

  template <typename T>
  bool is() const {
    return std::holds_alternative<T>(data);
  }
  template <typename T>
  const T& as() const {
    return std::get<T>(data);
  }
  bool is_undefined() const { return is<Undefined>(); }
  bool is_text() const { return is<Text>(); }
  // bool, 64-bit integer or float; Python counts bools as integers.
  bool is_number() const { return is<bool>() || is<int64_t>() || is<double>(); }
  bool is_integer() const { return is<bool>() || is<int64_t>(); }
};

// Insertion-ordered, keys are strings; setting a key again keeps its place, as in Python.
struct Map {
  std::vector<std::pair<Text, Value>> entries;
  std::unordered_map<std::string_view, size_t> index;  // of entries, once there are many
  int depth = 1;
  int64_t weight = 1;

  const Value* find(std::string_view key) const;
  void set(Text key, Value value);
};

// Mutable attributes of `namespace(...)`.
struct Namespace {
  Map attributes;
};

Value undefined(std::string what);
Value text_value(MarkedText text);
Value text_value(std::string text, Mark mark);
// Nesting levels of lists and maps, 0 for scalars.
int value_depth(const Value& value);
// Steps a whole walk over the value takes (saturating): one a node, one more each 32 bytes of text.
int64_t value_weight(const Value& value);
// Errors: kExhausted beyond kMaxValueDepth.
Result<Value> sequence_value(SequenceKind kind, std::vector<Value> items);
Result<Value> map_value(Map map);
// A generator that fails with `error` when it is walked.
Value failed_iterator(Status error);

// The type as Python names it, for messages: "str", "dict", "NoneType", "int", ...
const char* type_name(const Value& value);
// Python truth.
bool is_true(const Value& value);
// Whether Python could use the value as a key: lists, maps and views of them cannot be looked up.
bool is_hashable(const Value& value);
// bool, int and float as a number; only for is_integer() or is_number() values.
int64_t to_integer(const Value& value);
double to_double(const Value& value);
// Python's ==. Never fails; cost is the smaller value_weight().
bool equals(const Value& left, const Value& right);

// Error of a template's own doing, without its line (the evaluator adds that).
Status template_error(std::string message);
// Well-formed, but outside the subset: names the construct.
Status unsupported(std::string message);

}  // namespace moray::jinja
