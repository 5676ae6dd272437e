#include "src/formats/model_card.h"

namespace moray {
namespace {

std::string_view trimmed(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

std::string_view take_line(std::string_view& rest) {
  const size_t end = rest.find('\n');
  const std::string_view line = rest.substr(0, end);
  rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  return line;
}

// A plain or quoted scalar without its comment; the first item of "[a, b]" or of "- a".
std::string_view scalar(std::string_view text) {
  text = trimmed(text);
  if (text.starts_with("- ")) text = trimmed(text.substr(2));
  if (text.starts_with("[")) text = trimmed(text.substr(1, text.find_first_of(",]") - 1));
  if (text.starts_with("'") || text.starts_with("\"")) {
    return text.substr(1, text.find(text.front(), 1) - 1);
  }
  return trimmed(text.substr(0, text.find(" #")));
}

// Value of a top-level `key` in YAML lines; a list under the key gives its first item.
std::string_view top_level_value(std::string_view yaml, std::string_view key) {
  while (!yaml.empty()) {
    const std::string_view line = take_line(yaml);
    const bool is_key =
        line.size() > key.size() && line.starts_with(key) && line[key.size()] == ':';
    if (!is_key) continue;
    const std::string_view value = scalar(line.substr(key.size() + 1));
    if (!value.empty()) return value;
    const std::string_view next = trimmed(take_line(yaml));
    return next.starts_with("- ") ? scalar(next) : std::string_view();
  }
  return {};
}

}  // namespace

std::string card_licence(std::string_view card) {
  if (trimmed(take_line(card)) != "---") return "";
  const size_t end = card.find("\n---");
  if (end == std::string_view::npos) return "";
  const std::string_view yaml = card.substr(0, end);
  const std::string_view licence = top_level_value(yaml, "license");
  const std::string_view name = top_level_value(yaml, "license_name");
  return std::string(licence == "other" && !name.empty() ? name : licence);
}

}  // namespace moray
