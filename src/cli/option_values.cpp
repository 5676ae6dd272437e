#include "src/cli/option_values.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <limits>
#include <string_view>

namespace moray {
namespace {

[[noreturn]] void refuse(const std::string& option, const std::string& found,
                         const std::string& expected) {
  throw CLI::ValidationError(option, fmt::format("found '{}', expected {}", found, expected));
}

template <typename Number>
bool parse_all(const std::string& text, Number* number) {
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, *number);
  return !text.empty() && result.ec == std::errc() && result.ptr == end;
}

}  // namespace

int64_t parse_whole_number(const std::string& option, const std::string& text, int64_t low,
                           int64_t high) {
  int64_t number = 0;
  if (parse_all(text, &number) && number >= low && number <= high) return number;
  refuse(option, text,
         high == std::numeric_limits<int64_t>::max()
             ? fmt::format("a whole number of {} or more", low)
             : fmt::format("a whole number of {} to {}", low, high));
}

uint64_t parse_seed(const std::string& option, const std::string& text) {
  uint64_t number = 0;
  if (parse_all(text, &number)) return number;
  refuse(option, text, "a whole number of 0 to 18446744073709551615");
}

double parse_decimal(const std::string& option, const std::string& text) {
  double number = 0;
  if (parse_all(text, &number)) return number;
  refuse(option, text, "a number");
}

double parse_decimal_within(const std::string& option, const std::string& text, double low,
                            double high) {
  double number = 0;
  if (parse_all(text, &number) && number >= low && number <= high) return number;
  refuse(option, text, fmt::format("a number of {} to {}", low, high));
}

int64_t parse_bytes(const std::string& option, const std::string& text) {
  constexpr double kBytesMax = 1e15;
  constexpr std::pair<std::string_view, double> kUnits[] = {
      {"GiB", 0x1p30}, {"MiB", 0x1p20}, {"GB", 1e9}, {"MB", 1e6}};
  for (const auto& [unit, bytes] : kUnits) {
    if (!text.ends_with(unit)) continue;
    double number = 0;
    const std::string digits = text.substr(0, text.size() - unit.size());
    if (!parse_all(digits, &number) || !(number * bytes >= 1 && number * bytes <= kBytesMax)) break;
    return static_cast<int64_t>(number * bytes);
  }
  refuse(option, text, "a size such as 16GiB, 512MiB, 16GB or 512MB");
}

std::vector<int64_t> parse_whole_numbers(const std::string& option, const std::string& text,
                                         int64_t low, int64_t high) {
  std::vector<int64_t> numbers;
  size_t begin = 0;
  while (begin <= text.size()) {
    const size_t comma = std::min(text.find(',', begin), text.size());
    numbers.push_back(parse_whole_number(option, text.substr(begin, comma - begin), low, high));
    begin = comma + 1;
  }
  return numbers;
}

std::pair<TokenId, float> parse_logit_bias(const std::string& option, const std::string& text) {
  const size_t colon = text.find(':');
  if (colon == std::string::npos) refuse(option, text, "TOKEN:BIAS, for example 17:-100");
  const int64_t id =
      parse_whole_number(option, text.substr(0, colon), 0, std::numeric_limits<TokenId>::max());
  const double bias = parse_decimal(option, text.substr(colon + 1));
  return {static_cast<TokenId>(id), static_cast<float>(bias)};
}

}  // namespace moray
