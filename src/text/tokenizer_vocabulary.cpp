// Added tokens, vocabulary and merges, each checked against the others.
#include "src/text/tokenizer_vocabulary.h"

#include <fmt/format.h>

#include <charconv>
#include <unordered_map>
#include <unordered_set>

#include "src/text/byte_alphabet.h"
#include "src/text/utf8.h"

namespace moray {
namespace {

// Longest text of an added token: bounds the look-ahead at each byte of text and the matcher's
// memory. The longest known is under 100 bytes.
constexpr size_t kAddedTokenBytesMax = 4096;

Status invalid(std::string_view where, std::string_view found, std::string_view expected) {
  return field_error(StatusCode::kInvalidFile, where, found, expected);
}

Result<AddedToken> read_added_token(JsonObject object, TokenId id, std::string_view where) {
  AddedToken token;
  token.id = id;
  ASSIGN_OR_RETURN(const std::string_view text, string_field(object, where, "content"));
  if (text.empty() || text.size() > kAddedTokenBytesMax) {
    return invalid(fmt::format("{}.content", where), fmt::format("{} bytes", text.size()),
                   fmt::format("1 to {} bytes", kAddedTokenBytesMax));
  }
  token.text = text;
  ASSIGN_OR_RETURN(token.is_special, bool_field(object, where, "special", false));
  ASSIGN_OR_RETURN(token.is_normalized, bool_field(object, where, "normalized", false));
  ASSIGN_OR_RETURN(token.is_single_word, bool_field(object, where, "single_word", false));
  ASSIGN_OR_RETURN(token.strips_left, bool_field(object, where, "lstrip", false));
  ASSIGN_OR_RETURN(token.strips_right, bool_field(object, where, "rstrip", false));
  return token;
}

// Where each added token is, by text and by id.
struct AddedLookup {
  std::unordered_map<std::string_view, size_t> by_text;
  std::unordered_map<TokenId, size_t> by_id;

  explicit AddedLookup(const std::vector<AddedToken>& added) {
    for (size_t i = 0; i < added.size(); ++i) {
      by_text.emplace(added[i].text, i);
      by_id.emplace(added[i].id, i);
    }
  }
};

Status check_unique(const std::vector<AddedToken>& added) {
  std::unordered_set<std::string_view> texts;
  std::unordered_set<TokenId> ids;
  for (const AddedToken& token : added) {
    if (!texts.insert(token.text).second) {
      return invalid("added_tokens", fmt::format("{} twice", quote_bytes(token.text)),
                     "each token once");
    }
    if (!ids.insert(token.id).second) {
      return invalid(
          "added_tokens",
          fmt::format("id {} twice, the second for {}", token.id, quote_bytes(token.text)),
          "each id once");
    }
  }
  return Status();
}

// A vocabulary entry that is also an added token must agree with it in text and id.
Status check_against_added(const AddedLookup& lookup, const std::vector<AddedToken>& added,
                           std::string_view text, TokenId id) {
  const auto same_text = lookup.by_text.find(text);
  if (same_text != lookup.by_text.end() && added[same_text->second].id != id) {
    return invalid("model.vocab", fmt::format("{} with id {}", quote_bytes(text), id),
                   fmt::format("id {} as in added_tokens", added[same_text->second].id));
  }
  const auto same_id = lookup.by_id.find(id);
  if (same_id != lookup.by_id.end() && added[same_id->second].text != text) {
    return invalid("model.vocab", fmt::format("id {} for {}", id, quote_bytes(text)),
                   fmt::format("{} as in added_tokens", quote_bytes(added[same_id->second].text)));
  }
  return Status();
}

Status find_byte_tokens(const TokenIndex& index, TokenizerFile& file) {
  for (size_t byte = 0; byte < 256; ++byte) {
    const char bytes[1] = {static_cast<char>(byte)};
    file.byte_tokens[byte] = index.find(file.tokens, std::string_view(bytes, 1));
    if (file.byte_tokens[byte] == kNoToken) {
      return invalid("model.vocab", fmt::format("no token for byte 0x{:02X}", byte),
                     "one for each of the 256 bytes");
    }
  }
  return Status();
}

// The token a part of a merge names.
Result<TokenId> find_part(std::string_view part, size_t rank, const TokenIndex& index,
                          const TokenTable& tokens, std::string& bytes) {
  if (part.empty()) {
    return invalid(fmt::format("model.merges[{}]", rank), "an empty part",
                   "two tokens (a merge that yields its own part never ends)");
  }
  const auto spelled = bytes_of_alphabet(part);
  const TokenId id = spelled ? index.find(tokens, *spelled) : kNoToken;
  if (id == kNoToken) {
    return invalid(fmt::format("model.merges[{}]", rank), fmt::format("part {}", quote_bytes(part)),
                   "a token of model.vocab");
  }
  bytes += *spelled;
  return id;
}

struct MergeParts {
  std::string_view left, right;
};

Result<MergeParts> split_merge(JsonElement element, size_t rank) {
  std::string_view text;
  if (element.get(text) == simdjson::SUCCESS) {
    const size_t blank = text.find(' ');
    if (blank != std::string_view::npos && text.find(' ', blank + 1) == std::string_view::npos) {
      return MergeParts{text.substr(0, blank), text.substr(blank + 1)};
    }
  }
  JsonArray pair;
  MergeParts parts;
  if (element.get(pair) == simdjson::SUCCESS && pair.size() == 2 &&
      pair.at(0).get(parts.left) == simdjson::SUCCESS &&
      pair.at(1).get(parts.right) == simdjson::SUCCESS) {
    return parts;
  }
  return invalid(fmt::format("model.merges[{}]", rank), describe_json(element),
                 "two tokens, as \"left right\" or [\"left\", \"right\"]");
}

}  // namespace

Status read_added_tokens(JsonArray array, TokenizerFile& file) {
  size_t position = 0;
  for (const JsonElement element : array) {
    const std::string where = fmt::format("added_tokens[{}]", position++);
    JsonObject object;
    if (element.get(object) != simdjson::SUCCESS) {
      return invalid(where, describe_json(element), "an object");
    }
    const auto id_element = find_field(object, "id");
    if (!id_element) return invalid(where + ".id", "nothing", "an id");
    ASSIGN_OR_RETURN(const TokenId id, token_id(*id_element, where + ".id"));
    ASSIGN_OR_RETURN(AddedToken token, read_added_token(object, id, where));
    file.added.push_back(std::move(token));
  }
  return check_unique(file.added);
}

Status read_added_tokens_decoder(JsonObject decoder, TokenizerFile& file) {
  const std::vector<AddedToken> known = file.added;
  const AddedLookup lookup(known);
  for (const auto [key, element] : decoder) {
    const std::string where = fmt::format("added_tokens_decoder[{}]", quote_bytes(key));
    TokenId id = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    JsonObject object;
    if (error != std::errc() || end != key.data() + key.size() || id < 0 || id >= kTokenIdEnd) {
      return invalid(where, quote_bytes(key), fmt::format("an id from 0 to {}", kTokenIdEnd - 1));
    }
    if (element.get(object) != simdjson::SUCCESS) {
      return invalid(where, describe_json(element), "an object");
    }
    ASSIGN_OR_RETURN(AddedToken token, read_added_token(object, id, where));
    const auto same_id = lookup.by_id.find(id);
    if (same_id == lookup.by_id.end()) {
      file.added.push_back(std::move(token));
    } else if (known[same_id->second].text != token.text) {
      return invalid(
          where, quote_bytes(token.text),
          fmt::format("{} as in tokenizer.json", quote_bytes(known[same_id->second].text)));
    } else {
      file.added[same_id->second] = std::move(token);
    }
  }
  return check_unique(file.added);
}

Status read_vocabulary(JsonObject vocabulary, TokenizerFile& file, TokenIndex& index) {
  const AddedLookup lookup(file.added);
  std::unordered_set<std::string_view> outside_alphabet;
  // simdjson saturates size() at 2^24 - 1 entries; there are fewer ids than that.
  if (vocabulary.size() > static_cast<size_t>(kTokenIdEnd)) {
    return invalid("model.vocab", fmt::format("{} tokens", vocabulary.size()),
                   fmt::format("at most {}", kTokenIdEnd));
  }
  index.reset(vocabulary.size());
  for (const auto [text, element] : vocabulary) {
    if (text.empty()) return invalid("model.vocab", "an empty token", "at least one byte");
    ASSIGN_OR_RETURN(const TokenId id,
                     token_id(element, fmt::format("model.vocab[{}]", quote_bytes(text))));
    RETURN_IF_ERROR(check_against_added(lookup, file.added, text, id));
    if (!file.tokens.bytes(id).empty()) {
      return invalid("model.vocab",
                     fmt::format("id {} twice, the second for {}", id, quote_bytes(text)),
                     "each id once");
    }
    // A token outside the byte alphabet cannot come from text, only from the model or as an added
    // token; `tokenizers` decodes it as it is written.
    const auto bytes = bytes_of_alphabet(text);
    file.tokens.set(id, bytes ? std::string_view(*bytes) : text);
    if (bytes) file.model_ids.push_back(id);
    if (bytes ? !index.add(file.tokens, id) : !outside_alphabet.insert(text).second) {
      return invalid("model.vocab", fmt::format("{} twice", quote_bytes(text)), "each token once");
    }
  }
  for (const AddedToken& token : file.added) {
    const std::string_view spelled = file.tokens.bytes(token.id);
    if (!spelled.empty() && spelled != token.text) {
      return invalid("model.vocab",
                     fmt::format("added token {} as {} in the byte alphabet",
                                 quote_bytes(token.text), quote_bytes(spelled)),
                     "the same bytes");
    }
    file.tokens.set(token.id, token.text);
  }
  return find_byte_tokens(index, file);
}

Status read_merges(JsonArray merges, const TokenIndex& index, TokenizerFile& file) {
  std::string bytes;
  size_t rank = 0;
  for (const JsonElement element : merges) {
    bytes.clear();
    ASSIGN_OR_RETURN(const MergeParts parts, split_merge(element, rank));
    ASSIGN_OR_RETURN(const TokenId left, find_part(parts.left, rank, index, file.tokens, bytes));
    ASSIGN_OR_RETURN(const TokenId right, find_part(parts.right, rank, index, file.tokens, bytes));
    const TokenId result = index.find(file.tokens, bytes);
    if (result == kNoToken) {
      return invalid(fmt::format("model.merges[{}]", rank),
                     fmt::format("{} and {}, whose joint token is missing", quote_bytes(parts.left),
                                 quote_bytes(parts.right)),
                     "their joint token in model.vocab");
    }
    file.merges.push_back({left, right, result});
    ++rank;
  }
  // Official files leave a few hundred tokens without a merge; a cut list leaves most of them.
  if (!file.ignores_merges && 2 * (rank + 256) < file.model_ids.size()) {
    return invalid("model.merges", fmt::format("{} merges", rank),
                   fmt::format("about one for each of {} tokens", file.model_ids.size()));
  }
  return Status();
}

}  // namespace moray
