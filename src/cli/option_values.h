// Turns the text of one option into a checked value, or says what was found and expected.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "moray/text.h"

namespace moray {

// These throw CLI::ValidationError, which parse_options() turns into its one line.
int64_t parse_whole_number(const std::string& option, const std::string& text, int64_t low,
                           int64_t high);
uint64_t parse_seed(const std::string& option, const std::string& text);
double parse_decimal(const std::string& option, const std::string& text);
// As parse_decimal, within [low, high].
double parse_decimal_within(const std::string& option, const std::string& text, double low,
                            double high);
// "16GiB", "512MiB", "8GB": bytes, at least 1.
int64_t parse_bytes(const std::string& option, const std::string& text);
// "512,2048"
std::vector<int64_t> parse_whole_numbers(const std::string& option, const std::string& text,
                                         int64_t low, int64_t high);
// "17:-3.5"
std::pair<TokenId, float> parse_logit_bias(const std::string& option, const std::string& text);

}  // namespace moray
