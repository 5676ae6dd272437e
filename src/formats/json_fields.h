// Typed, range-checked reading of JSON objects whose complaints are collected, not thrown.
//
// Invariant: a field that is absent or null reads as nullopt without complaint; a field of the
// wrong kind, outside its range or given twice reads as nullopt with one complaint that carries its
// full dotted name. Private to src/formats: simdjson types stay behind this header's users.
#pragma once

#include <simdjson.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"
#include "src/formats/complaints.h"

namespace moray {

// Owns the parsed text; elements and strings read from `root` live as long as it does.
struct JsonDocument {
  simdjson::dom::parser parser;
  simdjson::dom::object root;
};

// Parses `text`, which must be an object nested at most `depth_max` deep and valid UTF-8.
// kInvalidFile "PATH: found ..., expected a JSON object". Cost: about ten times the text in memory.
Result<std::unique_ptr<JsonDocument>> parse_json_object(std::string_view text,
                                                        const std::string& path, size_t depth_max);

// "12", "'text'", "an array", ... for messages.
std::string describe(simdjson::dom::element element);

class JsonFields {
 public:
  // `prefix` goes before each name in messages ("text_config."). `complaints` must outlive this.
  JsonFields(simdjson::dom::object object, std::string prefix, Complaints& complaints);

  bool has(std::string_view name) const { return find(name).has_value(); }
  // Present and not null.
  std::optional<simdjson::dom::element> find(std::string_view name) const;

  std::optional<int64_t> integer(std::string_view name, int64_t minimum, int64_t maximum) const;
  std::optional<double> number(std::string_view name, double minimum, double maximum) const;
  std::optional<bool> boolean(std::string_view name) const;
  std::optional<std::string> string(std::string_view name) const;
  std::optional<std::vector<std::string>> strings(std::string_view name) const;
  std::optional<JsonFields> object(std::string_view name) const;
  // One integer or a list of them, as eos_token_id is written.
  std::vector<int64_t> integers(std::string_view name, int64_t minimum, int64_t maximum) const;

  // As integer(), but absence is a complaint; gives `minimum` after any complaint.
  int64_t required_integer(std::string_view name, int64_t minimum, int64_t maximum) const;
  double required_number(std::string_view name, double minimum, double maximum) const;

  std::string full_name(std::string_view name) const { return prefix_ + std::string(name); }
  void complain(std::string_view name, const std::string& found, const std::string& expected) const;
  Complaints& complaints() const { return *complaints_; }

 private:
  simdjson::dom::object object_;
  std::string prefix_;
  Complaints* complaints_;
};

}  // namespace moray
