// Renders templates read from stdin: Moray's side of tools/make_template_fixtures.py --compare.
//
// In: a JSON array of objects {"template", "variables"} whose values are strings; variables is
// itself JSON text of an object. Out: a JSON array, for each case {"text": ...} or {"error": ...}.
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "src/text/jinja_eval.h"
#include "src/text/jinja_parser.h"
#include "src/text/json_value.h"

namespace {

moray::Result<std::string> render(const std::string& source, const std::string& variables_json) {
  ASSIGN_OR_RETURN(const moray::jinja::Block program, moray::jinja::parse_template(source));
  ASSIGN_OR_RETURN(const moray::jinja::Value variables,
                   moray::parse_json_value(variables_json, "variables"));
  ASSIGN_OR_RETURN(moray::MarkedText text,
                   moray::jinja::render(program, *variables.as<moray::jinja::MapRef>(), 0));
  return std::move(text.text);
}

}  // namespace

int main() {
  const std::string input((std::istreambuf_iterator<char>(std::cin)), {});
  nlohmann::json results = nlohmann::json::array();
  for (const auto& item : nlohmann::json::parse(input)) {
    const auto text = render(item["template"], item["variables"]);
    results.push_back(text.ok() ? nlohmann::json{{"text", *text}}
                                : nlohmann::json{{"error", text.status().message()}});
  }
  std::cout << results.dump() << "\n";
}
