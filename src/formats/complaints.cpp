#include "src/formats/complaints.h"

#include <fmt/format.h>

#include <utility>

namespace moray {
namespace {
constexpr size_t kLinesMax = 20;
constexpr size_t kQuotedBytesMax = 80;
}  // namespace

void Complaints::add(std::string line) {
  only_unsupported_ = false;
  if (count_++ < kLinesMax) lines_.push_back(std::move(line));
}

void Complaints::add_unsupported(std::string line) {
  if (count_++ < kLinesMax) lines_.push_back(std::move(line));
}

Status Complaints::status(const std::string& subject) const {
  if (empty()) return Status();
  const size_t untold = count_ - lines_.size();
  std::string tail = untold > 0 ? fmt::format("; and {} more", untold) : "";
  return Status(only_unsupported_ ? StatusCode::kUnsupported : StatusCode::kInvalidFile,
                fmt::format("{}: {}{}", subject, fmt::join(lines_, "; "), tail));
}

std::string in_quotes(std::string_view text) {
  std::string out = "'";
  for (size_t index = 0; index < text.size() && index < kQuotedBytesMax; ++index) {
    const unsigned char byte = static_cast<unsigned char>(text[index]);
    const bool plain = byte >= 0x20 && byte < 0x7f;
    out += plain ? std::string(1, text[index]) : fmt::format("\\x{:02x}", byte);
  }
  out += text.size() > kQuotedBytesMax ? "...'" : "'";
  return out;
}

}  // namespace moray
