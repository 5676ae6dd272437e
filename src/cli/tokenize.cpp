// moray tokenize: how a text is cut into tokens. Needs the tokenizer only, not the weights.
#include <fmt/core.h>

#include "moray/text.h"
#include "src/cli/command.h"
#include "src/cli/input.h"
#include "src/cli/model_choice.h"

namespace moray {
namespace {

// Bytes as a quoted string on one line: printable text as it is, the rest escaped. A token may hold
// part of a character, so what is not valid UTF-8 is shown byte by byte.
std::string quoted_piece(std::string_view bytes) {
  const bool is_text = first_invalid_byte(bytes) == std::string_view::npos;
  std::string out = "\"";
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c == '\r') {
      out += "\\r";
    } else if (byte < 0x20 || byte == 0x7F || (byte >= 0x80 && !is_text)) {
      out += fmt::format("\\x{:02X}", byte);
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string listing(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  std::string text;
  for (const TokenId id : ids) {
    text += fmt::format("{:>7}  {}\n", id, quoted_piece(tokenizer.token_bytes(id)));
  }
  return text;
}

std::string id_line(const std::vector<TokenId>& ids) {
  std::string text;
  for (const TokenId id : ids) {
    if (!text.empty()) text += ' ';
    text += std::to_string(id);
  }
  return text + '\n';
}

}  // namespace

Status tokenize_command(const Options& options, Output& output) {
  ASSIGN_OR_RETURN(const std::string text, read_prompt(options.prompt));
  ASSIGN_OR_RETURN(const std::string folder, find_model(options));
  ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::load(folder));
  ASSIGN_OR_RETURN(const auto ids, tokenizer->encode(text, options.prompt.allows_control_tokens
                                                               ? ControlTokens::kAllow
                                                               : ControlTokens::kAsText));
  if (options.count_only) {
    output.write(std::to_string(ids.size()) + '\n');
    return output.status();
  }
  output.write(options.ids_only ? id_line(ids) : listing(*tokenizer, ids));
  RETURN_IF_ERROR(output.status());
  if (!options.common.is_quiet) {
    print_note(fmt::format("{} tokens, {} bytes ({:.2f} bytes a token)", ids.size(), text.size(),
                           static_cast<double>(text.size()) / static_cast<double>(ids.size())));
  }
  return Status();
}

}  // namespace moray
