#include "src/formats/json_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace moray {
namespace dom = simdjson::dom;

namespace {

// 1.0 must not read as the integer that was expected.
std::string describe_double(double value) {
  std::string text = fmt::to_string(value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

}  // namespace

Result<std::unique_ptr<JsonDocument>> parse_json_object(std::string_view text,
                                                        const std::string& path, size_t depth_max) {
  auto document = std::make_unique<JsonDocument>();
  simdjson::error_code error = document->parser.allocate(text.size(), depth_max);
  simdjson::dom::element root;
  if (!error) error = document->parser.parse(text.data(), text.size()).get(root);
  if (error == simdjson::MEMALLOC) {
    return Status(StatusCode::kExhausted,
                  fmt::format("{}: found {} bytes of JSON, expected memory to parse them", path,
                              text.size()));
  }
  if (error) {
    return Status(StatusCode::kInvalidFile,
                  fmt::format("{}: found no valid JSON ({}), expected a JSON object", path,
                              simdjson::error_message(error)));
  }
  if (root.get_object().get(document->root)) {
    return Status(StatusCode::kInvalidFile,
                  fmt::format("{}: found {}, expected a JSON object", path, describe(root)));
  }
  return document;
}

std::string describe(dom::element element) {
  switch (element.type()) {
    case dom::element_type::ARRAY:
      return "an array";
    case dom::element_type::OBJECT:
      return "an object";
    case dom::element_type::INT64:
      return fmt::to_string(element.get_int64().value_unsafe());
    case dom::element_type::UINT64:
      return fmt::to_string(element.get_uint64().value_unsafe());
    case dom::element_type::DOUBLE:
      return describe_double(element.get_double().value_unsafe());
    case dom::element_type::STRING:
      return in_quotes(element.get_string().value_unsafe());
    case dom::element_type::BOOL:
      return element.get_bool().value_unsafe() ? "true" : "false";
    case dom::element_type::NULL_VALUE:
      return "null";
  }
  return "something unknown";
}

JsonFields::JsonFields(dom::object object, std::string prefix, Complaints& complaints)
    : object_(object), prefix_(std::move(prefix)), complaints_(&complaints) {
  std::vector<std::string_view> names;
  for (auto field : object_) names.push_back(field.key);
  std::sort(names.begin(), names.end());
  const auto repeated = std::adjacent_find(names.begin(), names.end());
  if (repeated != names.end()) {
    complaints.add(fmt::format("{}{}: found twice, expected once", prefix_, in_quotes(*repeated)));
  }
}

void JsonFields::complain(std::string_view name, const std::string& found,
                          const std::string& expected) const {
  complaints_->add(fmt::format("{}{}: found {}, expected {}", prefix_, name, found, expected));
}

std::optional<dom::element> JsonFields::find(std::string_view name) const {
  dom::element element;
  if (object_.at_key(name).get(element) || element.is_null()) return std::nullopt;
  return element;
}

std::optional<int64_t> JsonFields::integer(std::string_view name, int64_t minimum,
                                           int64_t maximum) const {
  const auto element = find(name);
  if (!element) return std::nullopt;
  int64_t value = 0;
  if (element->get_int64().get(value) || value < minimum || value > maximum) {
    complain(name, describe(*element), fmt::format("an integer {}..{}", minimum, maximum));
    return std::nullopt;
  }
  return value;
}

std::optional<double> JsonFields::number(std::string_view name, double minimum,
                                         double maximum) const {
  const auto element = find(name);
  if (!element) return std::nullopt;
  double value = 0;
  if (element->get_double().get(value) || !(value >= minimum && value <= maximum)) {
    complain(name, describe(*element), fmt::format("a number {}..{}", minimum, maximum));
    return std::nullopt;
  }
  return value;
}

std::optional<bool> JsonFields::boolean(std::string_view name) const {
  const auto element = find(name);
  if (!element) return std::nullopt;
  bool value = false;
  if (element->get_bool().get(value)) {
    complain(name, describe(*element), "true or false");
    return std::nullopt;
  }
  return value;
}

std::optional<std::string> JsonFields::string(std::string_view name) const {
  const auto element = find(name);
  if (!element) return std::nullopt;
  std::string_view value;
  if (element->get_string().get(value)) {
    complain(name, describe(*element), "a string");
    return std::nullopt;
  }
  return std::string(value);
}

std::optional<std::vector<std::string>> JsonFields::strings(std::string_view name) const {
  const auto element = find(name);
  if (!element) return std::nullopt;
  dom::array array;
  if (element->get_array().get(array)) {
    complain(name, describe(*element), "a list of strings");
    return std::nullopt;
  }
  std::vector<std::string> values;
  for (dom::element item : array) {
    std::string_view value;
    if (item.get_string().get(value)) {
      complain(fmt::format("{}[{}]", name, values.size()), describe(item), "a string");
      return std::nullopt;
    }
    values.emplace_back(value);
  }
  return values;
}

std::optional<JsonFields> JsonFields::object(std::string_view name) const {
  const auto element = find(name);
  if (!element) return std::nullopt;
  dom::object object;
  if (element->get_object().get(object)) {
    complain(name, describe(*element), "an object");
    return std::nullopt;
  }
  return JsonFields(object, full_name(name) + ".", *complaints_);
}

std::vector<int64_t> JsonFields::integers(std::string_view name, int64_t minimum,
                                          int64_t maximum) const {
  const auto element = find(name);
  if (!element) return {};
  dom::array array;
  if (element->get_array().get(array)) {
    const auto value = integer(name, minimum, maximum);
    return value ? std::vector<int64_t>{*value} : std::vector<int64_t>{};
  }
  std::vector<int64_t> values;
  for (dom::element item : array) {
    int64_t value = 0;
    if (item.get_int64().get(value) || value < minimum || value > maximum) {
      complain(fmt::format("{}[{}]", name, values.size()), describe(item),
               fmt::format("an integer {}..{}", minimum, maximum));
      return {};
    }
    values.push_back(value);
  }
  return values;
}

int64_t JsonFields::required_integer(std::string_view name, int64_t minimum,
                                     int64_t maximum) const {
  if (!has(name)) {
    complain(name, "nothing", fmt::format("an integer {}..{}", minimum, maximum));
    return minimum;
  }
  return integer(name, minimum, maximum).value_or(minimum);
}

double JsonFields::required_number(std::string_view name, double minimum, double maximum) const {
  if (!has(name)) {
    complain(name, "nothing", fmt::format("a number {}..{}", minimum, maximum));
    return minimum;
  }
  return number(name, minimum, maximum).value_or(minimum);
}

}  // namespace moray
