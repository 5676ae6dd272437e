// Flattens JSON schemas into ordered lists of types. See tool_schema.h.
#include "src/text/tool_schema.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

namespace moray {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kDepthMax = 100;
constexpr int kVisitsMax =
    256;  // schemas looked at for a parameter: $ref may form a cycle, and branch

std::optional<JsonType> type_named(std::string_view name) {
  constexpr std::pair<std::string_view, JsonType> kNames[] = {
      {"string", JsonType::kString},   {"null", JsonType::kNull},
      {"boolean", JsonType::kBoolean}, {"integer", JsonType::kInteger},
      {"number", JsonType::kNumber},   {"object", JsonType::kObject},
      {"array", JsonType::kArray}};
  for (const auto& [known, type] : kNames) {
    if (known == name) return type;
  }
  return std::nullopt;
}

const Json* member(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() ? nullptr : &*found;
}

// "#/$defs/Name" within `root`; null for what is elsewhere or missing.
const Json* resolve(const Json& root, const std::string& reference) {
  if (!reference.starts_with("#")) return nullptr;
  try {
    const Json::json_pointer place(reference.substr(1));
    return root.contains(place) ? &root.at(place) : nullptr;
  } catch (const Json::exception&) {  // not a JSON pointer
    return nullptr;
  }
}

void append_types(const Json& schema, const Json& root, int& visits, std::vector<JsonType>& types) {
  if (++visits > kVisitsMax) return;
  const auto add = [&types](const Json& name) {
    if (!name.is_string()) return;
    if (const auto type = type_named(name.get_ref<const std::string&>())) types.push_back(*type);
  };
  if (const Json* reference = member(schema, "$ref"); reference && reference->is_string()) {
    const Json* target = resolve(root, reference->get_ref<const std::string&>());
    if (target) append_types(*target, root, visits, types);
  }
  if (const Json* type = member(schema, "type")) {
    if (!type->is_array()) add(*type);
    if (type->is_array()) std::for_each(type->begin(), type->end(), add);
  }
  for (const char* key : {"anyOf", "oneOf"}) {
    const Json* choices = member(schema, key);
    if (!choices || !choices->is_array()) continue;
    for (const Json& choice : *choices) append_types(choice, root, visits, types);
  }
}

// The type of `text` if it is one JSON value.
std::optional<JsonType> spelled_type(std::string_view text) {
  if (text.empty() || !Json::accept(text.begin(), text.end())) return std::nullopt;
  switch (text.front()) {
    case '"':
      return JsonType::kString;
    case '{':
      return JsonType::kObject;
    case '[':
      return JsonType::kArray;
    case 'n':
      return JsonType::kNull;
    case 't':
    case 'f':
      return JsonType::kBoolean;
    default:
      return text.find_first_of(".eE") == text.npos ? JsonType::kInteger : JsonType::kNumber;
  }
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t first = text.find_first_not_of(kSpace);
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

Status bad(const std::string& what) {
  return Status(StatusCode::kInvalidArgument, "tools: " + what);
}

Result<Json> parse_bounded(std::string_view text) {
  bool is_too_deep = false;
  const auto bound = [&is_too_deep](int depth, Json::parse_event_t, Json&) {
    is_too_deep |= depth > kDepthMax;
    return !is_too_deep;
  };
  Json json = Json::parse(text.begin(), text.end(), bound, /*allow_exceptions=*/false);
  if (is_too_deep) return bad("found JSON nested deeper than 100 levels, expected less");
  if (!json.is_array()) return bad("found no JSON array, expected a list of tool definitions");
  return json;
}

}  // namespace

Result<ToolSchemas> ToolSchemas::parse(std::string_view tools) {
  ToolSchemas schemas;
  if (trimmed(tools).empty()) return schemas;
  Result<Json> list = parse_bounded(tools);
  if (!list.ok()) return list.status();
  for (const Json& tool : *list) {
    const Json* type = member(tool, "type");
    if (type && *type != "function") continue;
    const Json* inner = member(tool, "function");
    const Json& function = inner ? *inner : tool;
    const Json* name = member(function, "name");
    if (!name || !name->is_string()) return bad("found a function without a name, expected one");
    auto& parameters = schemas.functions_[name->get<std::string>()];
    const Json* root = member(function, "parameters");
    const Json* properties = root ? member(*root, "properties") : nullptr;
    if (!properties || !properties->is_object()) continue;
    for (const auto& [key, schema] : properties->items()) {
      int visits = 0;
      append_types(schema, *root, visits, parameters[key]);
    }
  }
  return schemas;
}

bool ToolSchemas::has(std::string_view function, std::string_view parameter) const {
  const auto found = functions_.find(function);
  return found != functions_.end() && found->second.contains(parameter);
}

std::string ToolSchemas::to_json(std::string_view function, std::string_view parameter,
                                 std::string_view text) const {
  const std::string_view value = trimmed(text);
  const std::optional<JsonType> spelled = spelled_type(value);
  const auto found = functions_.find(function);
  const bool is_declared = has(function, parameter);
  const Types types = is_declared ? found->second.find(parameter)->second : Types();
  for (const JsonType type : types) {
    if (type == JsonType::kString) return quote_json(text);
    const bool is_whole_number = type == JsonType::kNumber && spelled == JsonType::kInteger;
    if (spelled == type || is_whole_number) return std::string(value);
  }
  const bool is_container = spelled == JsonType::kObject || spelled == JsonType::kArray;
  return types.empty() && is_container ? std::string(value) : quote_json(text);
}

std::string quote_json(std::string_view text) {
  return Json(std::string(text)).dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace moray
