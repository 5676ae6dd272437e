// A SAX handler that builds template values without an intermediate tree. See json_value.h.
#include "src/text/json_value.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace moray {
namespace {

using jinja::Map;
using jinja::SequenceKind;
using jinja::Text;
using jinja::Value;

// Less than kMaxValueDepth, so that a template may still wrap what it is given.
constexpr size_t kMaxJsonDepth = 100;

class Builder {
 public:
  using number_integer_t = nlohmann::json::number_integer_t;
  using number_unsigned_t = nlohmann::json::number_unsigned_t;
  using number_float_t = nlohmann::json::number_float_t;

  bool null() { return add({jinja::None{}}); }
  bool boolean(bool value) { return add({value}); }
  bool number_integer(number_integer_t value) { return add({int64_t{value}}); }
  bool number_unsigned(number_unsigned_t value) {
    if (value <= static_cast<number_unsigned_t>(INT64_MAX))
      return add({static_cast<int64_t>(value)});
    return big_integer(std::to_string(value));
  }
  bool number_float(number_float_t value, const std::string& digits) {
    if (digits.find_first_of(".eE") == std::string::npos) return big_integer(digits);
    return add({value});
  }
  bool string(std::string& value) {
    return add(jinja::text_value(std::move(value), Mark::kContent));
  }
  bool binary(nlohmann::json::binary_t&) { return false; }
  bool key(std::string& name) {
    open_.back().key =
        Text{std::make_shared<const MarkedText>(marked(std::move(name), Mark::kContent))};
    return true;
  }
  bool start_object(size_t) { return open(true); }
  bool start_array(size_t) { return open(false); }
  bool end_object() {
    Result<Value> map = jinja::map_value(std::move(open_.back().map));
    return close(std::move(map));
  }
  bool end_array() {
    Result<Value> list = jinja::sequence_value(SequenceKind::kList, std::move(open_.back().items));
    return close(std::move(list));
  }
  bool parse_error(size_t byte, const std::string&, const nlohmann::json::exception&) {
    error_ = "not valid JSON at byte " + std::to_string(byte);
    return false;
  }

  const std::string& error() const { return error_; }
  Value take() { return std::move(root_); }

 private:
  struct Level {
    bool is_map = false;
    Map map;
    Text key;
    std::vector<Value> items;
  };

  bool big_integer(std::string digits) {
    return add({jinja::BigInteger{std::make_shared<const std::string>(std::move(digits))}});
  }
  bool open(bool is_map) {
    if (open_.size() >= kMaxJsonDepth) {
      error_ = "JSON nests deeper than " + std::to_string(kMaxJsonDepth) + " levels";
      return false;
    }
    open_.push_back(Level{});
    open_.back().is_map = is_map;
    return true;
  }
  bool close(Result<Value> value) {
    if (!value.ok()) {
      error_ = value.status().message();
      return false;
    }
    open_.pop_back();
    return add(std::move(*value));
  }
  bool add(Value value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (open_.back().is_map) {
      open_.back().map.set(std::move(open_.back().key), std::move(value));
    } else {
      open_.back().items.push_back(std::move(value));
    }
    return true;
  }

  std::vector<Level> open_;
  Value root_;
  std::string error_;
};

}  // namespace

Result<Value> parse_json_value(std::string_view json, std::string_view what) {
  Builder builder;
  bool is_complete = false;
  try {
    is_complete = nlohmann::json::sax_parse(json.begin(), json.end(), &builder);
  } catch (const std::exception& e) {  // the parser's own buffers may fail to grow
    return Status(StatusCode::kInvalidArgument, std::string(what) + ": " + e.what());
  }
  if (is_complete) return builder.take();
  return Status(StatusCode::kInvalidArgument, std::string(what) + ": " + builder.error());
}

}  // namespace moray
