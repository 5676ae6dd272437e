// Reading JSON fields with an error that says where, what was found and what was expected.
//
// Invariant: every function returns a Status instead of throwing (simdjson's error codes only) and
// treats a null field as an absent one, as `tokenizers` does. Used by tokenizer_file.cpp and
// tokenizer_vocabulary.cpp.
#pragma once

#include <simdjson.h>

#include <optional>
#include <string>
#include <string_view>

#include "src/base/status.h"

namespace moray {

using JsonElement = simdjson::dom::element;
using JsonObject = simdjson::dom::object;
using JsonArray = simdjson::dom::array;

// "WHERE: found FOUND, expected EXPECTED".
Status field_error(StatusCode code, std::string_view where, std::string_view found,
                   std::string_view expected);

// What an element is, for a message: its value if short, else its kind.
std::string describe_json(JsonElement element);
std::string describe_json(const std::optional<JsonElement>& element);

// The field, or nothing if it is absent or null.
std::optional<JsonElement> find_field(JsonObject object, std::string_view key);

// The required field of that kind; errors name `where`.`key`.
Result<JsonObject> object_field(JsonObject object, std::string_view where, std::string_view key);
Result<JsonArray> array_field(JsonObject object, std::string_view where, std::string_view key);
Result<std::string_view> string_field(JsonObject object, std::string_view where,
                                      std::string_view key);

// An optional bool field with its default.
Result<bool> bool_field(JsonObject object, std::string_view where, std::string_view key,
                        bool fallback);

// An element as a token id in [0, kTokenIdEnd).
Result<int32_t> token_id(JsonElement element, std::string_view where);

}  // namespace moray
