// Field access over simdjson's DOM.
#include "src/text/tokenizer_fields.h"

#include <fmt/format.h>

#include "src/text/token_table.h"
#include "src/text/utf8.h"

namespace moray {
namespace {

std::string join(std::string_view where, std::string_view key) {
  return where.empty() ? std::string(key) : fmt::format("{}.{}", where, key);
}

}  // namespace

Status field_error(StatusCode code, std::string_view where, std::string_view found,
                   std::string_view expected) {
  return Status(code, fmt::format("{}: found {}, expected {}", where, found, expected));
}

std::string describe_json(JsonElement element) {
  std::string_view text;
  int64_t integer = 0;
  double real = 0;
  bool truth = false;
  if (element.get(text) == simdjson::SUCCESS) return quote_bytes(text);
  if (element.get(integer) == simdjson::SUCCESS) return fmt::format("{}", integer);
  if (element.get(real) == simdjson::SUCCESS) return fmt::format("{}", real);
  if (element.get(truth) == simdjson::SUCCESS) return truth ? "true" : "false";
  if (element.is_array()) return "an array";
  if (element.is_object()) return "an object";
  return "null";
}

std::string describe_json(const std::optional<JsonElement>& element) {
  return element ? describe_json(*element) : "nothing";
}

std::optional<JsonElement> find_field(JsonObject object, std::string_view key) {
  JsonElement element;
  if (object.at_key(key).get(element) != simdjson::SUCCESS || element.is_null())
    return std::nullopt;
  return element;
}

template <typename T>
Result<T> required(JsonObject object, std::string_view where, std::string_view key,
                   std::string_view expected) {
  const auto element = find_field(object, key);
  T value;
  if (!element || element->get(value) != simdjson::SUCCESS) {
    return field_error(StatusCode::kInvalidFile, join(where, key), describe_json(element),
                       expected);
  }
  return value;
}

Result<JsonObject> object_field(JsonObject object, std::string_view where, std::string_view key) {
  return required<JsonObject>(object, where, key, "an object");
}

Result<JsonArray> array_field(JsonObject object, std::string_view where, std::string_view key) {
  return required<JsonArray>(object, where, key, "an array");
}

Result<std::string_view> string_field(JsonObject object, std::string_view where,
                                      std::string_view key) {
  return required<std::string_view>(object, where, key, "a string");
}

Result<bool> bool_field(JsonObject object, std::string_view where, std::string_view key,
                        bool fallback) {
  const auto element = find_field(object, key);
  bool value = fallback;
  if (element && element->get(value) != simdjson::SUCCESS) {
    return field_error(StatusCode::kInvalidFile, join(where, key), describe_json(element),
                       "true or false");
  }
  return value;
}

Result<int32_t> token_id(JsonElement element, std::string_view where) {
  int64_t id = 0;
  if (element.get(id) != simdjson::SUCCESS || id < 0 || id >= kTokenIdEnd) {
    return field_error(StatusCode::kInvalidFile, where, describe_json(element),
                       fmt::format("an id from 0 to {}", kTokenIdEnd - 1));
  }
  return static_cast<int32_t>(id);
}

}  // namespace moray
