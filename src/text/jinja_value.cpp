// Construction, truth and equality of template values. See jinja_value.h.
#include "src/text/jinja_value.h"

#include <algorithm>

namespace moray::jinja {
namespace {

// Below this a scan over the entries is cheaper than a hash table.
constexpr size_t kIndexFrom = 9;
constexpr int64_t kMaxWeight = int64_t{1} << 60;

int64_t add_weight(int64_t sum, int64_t more) {
  return std::min(sum + more, kMaxWeight);
}

bool equal_sequences(const Sequence& left, const Sequence& right) {
  if (left.kind != right.kind || left.kind == SequenceKind::kIterator) return &left == &right;
  if (left.kind == SequenceKind::kValues) return &left == &right;
  return std::equal(left.items.begin(), left.items.end(), right.items.begin(), right.items.end(),
                    equals);
}

bool equal_maps(const Map& left, const Map& right) {
  if (left.entries.size() != right.entries.size()) return false;
  return std::all_of(left.entries.begin(), left.entries.end(), [&](const auto& entry) {
    const Value* other = right.find(entry.first.str());
    return other != nullptr && equals(entry.second, *other);
  });
}

bool equal_numbers(const Value& left, const Value& right) {
  if (left.is_integer() && right.is_integer()) return to_integer(left) == to_integer(right);
  if (left.is<double>() && right.is<double>()) return left.as<double>() == right.as<double>();
  // An integer and a float: equal only if the float holds exactly that integer.
  const int64_t integer = to_integer(left.is<double>() ? right : left);
  const double real = left.is<double>() ? left.as<double>() : right.as<double>();
  return real >= -0x1p63 && real < 0x1p63 &&
         static_cast<double>(static_cast<int64_t>(real)) == real &&
         static_cast<int64_t>(real) == integer;
}

}  // namespace

const Value* Map::find(std::string_view key) const {
  if (!index.empty()) {
    const auto found = index.find(key);
    return found == index.end() ? nullptr : &entries[found->second].second;
  }
  for (const auto& [name, value] : entries) {
    if (name.str() == key) return &value;
  }
  return nullptr;
}

void Map::set(Text key, Value value) {
  depth = std::max(depth, 1 + value_depth(value));
  weight = add_weight(weight, 1 + value_weight(value));
  if (const Value* old = find(key.str())) {
    *const_cast<Value*>(old) = std::move(value);  // `entries` is ours and not const here
    return;
  }
  entries.emplace_back(std::move(key), std::move(value));
  if (entries.size() == kIndexFrom) {
    for (size_t i = 0; i < entries.size(); ++i) index.emplace(entries[i].first.str(), i);
  } else if (entries.size() > kIndexFrom) {
    index.emplace(entries.back().first.str(), entries.size() - 1);
  }
}

Value undefined(std::string what) {
  return {Undefined{std::make_shared<const std::string>(std::move(what))}};
}

Value text_value(MarkedText text) {
  return {Text{std::make_shared<const MarkedText>(std::move(text))}};
}

Value text_value(std::string text, Mark mark) {
  return text_value(marked(std::move(text), mark));
}

int value_depth(const Value& value) {
  if (value.is<SequenceRef>()) return value.as<SequenceRef>()->depth;
  if (value.is<MapRef>()) return value.as<MapRef>()->depth;
  if (value.is<Method>()) return 1 + value_depth(*value.as<Method>().receiver);
  return 0;
}

int64_t value_weight(const Value& value) {
  if (value.is<SequenceRef>()) return value.as<SequenceRef>()->weight;
  if (value.is<MapRef>()) return value.as<MapRef>()->weight;
  if (value.is<Method>()) return add_weight(value_weight(*value.as<Method>().receiver), 1);
  if (value.is_text()) return 1 + static_cast<int64_t>(value.as<Text>().str().size() / 32);
  return 1;
}

Result<Value> sequence_value(SequenceKind kind, std::vector<Value> items) {
  int depth = 1;
  int64_t weight = 1;
  for (const Value& item : items) {
    depth = std::max(depth, 1 + value_depth(item));
    weight = add_weight(weight, value_weight(item));
  }
  if (depth > kMaxValueDepth) {
    return Status(StatusCode::kExhausted, "lists and maps nest deeper than the limit of " +
                                              std::to_string(kMaxValueDepth) + " levels");
  }
  auto sequence = std::make_shared<Sequence>();
  sequence->kind = kind;
  sequence->items = std::move(items);
  sequence->depth = depth;
  sequence->weight = weight;
  return Value{SequenceRef(std::move(sequence))};
}

Result<Value> map_value(Map map) {
  if (map.depth > kMaxValueDepth) {
    return Status(StatusCode::kExhausted, "lists and maps nest deeper than the limit of " +
                                              std::to_string(kMaxValueDepth) + " levels");
  }
  return Value{MapRef(std::make_shared<const Map>(std::move(map)))};
}

Value failed_iterator(Status error) {
  auto sequence = std::make_shared<Sequence>();
  sequence->kind = SequenceKind::kIterator;
  sequence->error = std::move(error);
  return {SequenceRef(std::move(sequence))};
}

const char* type_name(const Value& value) {
  struct Namer {
    const char* operator()(const Undefined&) const { return "undefined"; }
    const char* operator()(const None&) const { return "NoneType"; }
    const char* operator()(bool) const { return "bool"; }
    const char* operator()(int64_t) const { return "int"; }
    const char* operator()(const BigInteger&) const { return "int"; }
    const char* operator()(double) const { return "float"; }
    const char* operator()(const Text&) const { return "str"; }
    const char* operator()(const SequenceRef& sequence) const {
      constexpr const char* kNames[] = {"list",      "tuple",       "range",    "dict_items",
                                        "dict_keys", "dict_values", "generator"};
      return kNames[static_cast<int>(sequence->kind)];
    }
    const char* operator()(const MapRef&) const { return "dict"; }
    const char* operator()(const Method&) const { return "method"; }
    const char* operator()(GlobalFunction) const { return "function"; }
    const char* operator()(Namespace*) const { return "namespace"; }
    const char* operator()(const Stmt*) const { return "macro"; }
    const char* operator()(const std::shared_ptr<LoopState>&) const { return "loop"; }
  };
  return std::visit(Namer{}, value.data);
}

bool is_true(const Value& value) {
  if (value.is_undefined() || value.is<None>()) return false;
  if (value.is_integer()) return to_integer(value) != 0;
  if (value.is<double>()) return value.as<double>() != 0;
  if (value.is_text()) return !value.as<Text>().str().empty();
  if (value.is<MapRef>()) return !value.as<MapRef>()->entries.empty();
  if (value.is<SequenceRef>()) {
    const Sequence& sequence = *value.as<SequenceRef>();
    return sequence.kind == SequenceKind::kIterator || !sequence.items.empty();
  }
  return true;
}

bool is_hashable(const Value& value) {
  if (value.is<MapRef>()) return false;
  if (!value.is<SequenceRef>()) return true;
  const Sequence& sequence = *value.as<SequenceRef>();
  if (sequence.kind == SequenceKind::kTuple) {
    return std::all_of(sequence.items.begin(), sequence.items.end(), is_hashable);
  }
  return sequence.kind == SequenceKind::kRange || sequence.kind >= SequenceKind::kValues;
}

int64_t to_integer(const Value& value) {
  return value.is<bool>() ? (value.as<bool>() ? 1 : 0) : value.as<int64_t>();
}

double to_double(const Value& value) {
  return value.is<double>() ? value.as<double>() : static_cast<double>(to_integer(value));
}

bool equals(const Value& left, const Value& right) {
  if (left.is_number() && right.is_number()) return equal_numbers(left, right);
  if (left.data.index() != right.data.index()) return false;
  if (left.is_text()) return left.as<Text>().str() == right.as<Text>().str();
  if (left.is<SequenceRef>()) {
    return equal_sequences(*left.as<SequenceRef>(), *right.as<SequenceRef>());
  }
  if (left.is<MapRef>()) return equal_maps(*left.as<MapRef>(), *right.as<MapRef>());
  if (left.is<BigInteger>()) return *left.as<BigInteger>().digits == *right.as<BigInteger>().digits;
  if (left.is<Namespace*>()) return left.as<Namespace*>() == right.as<Namespace*>();
  if (left.is<const Stmt*>()) return left.as<const Stmt*>() == right.as<const Stmt*>();
  if (left.is<GlobalFunction>()) return left.as<GlobalFunction>() == right.as<GlobalFunction>();
  if (left.is<std::shared_ptr<LoopState>>()) {
    return left.as<std::shared_ptr<LoopState>>() == right.as<std::shared_ptr<LoopState>>();
  }
  if (left.is<Method>()) {
    return left.as<Method>().name == right.as<Method>().name &&
           equals(*left.as<Method>().receiver, *right.as<Method>().receiver);
  }
  return true;  // None and None, undefined and undefined
}

Status template_error(std::string message) {
  return Status(StatusCode::kInvalidArgument, std::move(message));
}

Status unsupported(std::string message) {
  return Status(StatusCode::kUnsupported, std::move(message));
}

}  // namespace moray::jinja
