// The component side of tokenizer.json: which normalizer, pre-tokenizer, decoder and model it asks
// for, and a refusal by name of all that is not byte-level BPE as the Qwen families use it.
#include "src/text/tokenizer_file.h"

#include <fmt/format.h>

#include "src/text/tokenizer_fields.h"
#include "src/text/tokenizer_vocabulary.h"
#include "src/text/utf8.h"

namespace moray {
namespace {

constexpr std::string_view kPreTokenizerForm =
    "Sequence of Split(Regex, Isolated) and ByteLevel(add_prefix_space and use_regex false)";

Status unsupported(std::string_view where, std::string_view found, std::string_view expected) {
  return field_error(StatusCode::kUnsupported, where, found, expected);
}

Status in_file(std::string_view file, const Status& status) {
  if (status.ok()) return status;
  return Status(status.code(), fmt::format("{}: {}", file, status.message()));
}

// The "type" of a component, for refusing it by name.
std::string type_of(const std::optional<JsonElement>& component) {
  JsonObject object;
  if (!component || component->get(object) != simdjson::SUCCESS) return describe_json(component);
  const auto type = find_field(object, "type");
  return type ? describe_json(*type) : "no type";
}

bool has_type(const std::optional<JsonElement>& component, std::string_view type) {
  return type_of(component) == quote_bytes(type);
}

// The members of a Sequence, or the component itself as the only member.
std::vector<JsonElement> members_of(const std::optional<JsonElement>& component,
                                    std::string_view list_key) {
  std::vector<JsonElement> members;
  JsonArray list;
  if (has_type(component, "Sequence") &&
      component->at_key(list_key).get(list) == simdjson::SUCCESS) {
    for (const JsonElement member : list) members.push_back(member);
  } else if (component) {
    members.push_back(*component);
  }
  return members;
}

Status read_normalizer(JsonObject root, TokenizerFile& file) {
  for (const JsonElement member : members_of(find_field(root, "normalizer"), "normalizers")) {
    if (!has_type(member, "NFC")) return unsupported("normalizer", type_of(member), "NFC or null");
    file.normalizes_nfc = true;
  }
  return Status();
}

Status read_split(JsonElement element, TokenizerFile& file) {
  const std::string_view where = "pre_tokenizer.Split";
  JsonObject split;
  if (!has_type(element, "Split") || element.get(split) != simdjson::SUCCESS) {
    return unsupported("pre_tokenizer", type_of(element), kPreTokenizerForm);
  }
  ASSIGN_OR_RETURN(const std::string_view behavior, string_field(split, where, "behavior"));
  ASSIGN_OR_RETURN(const bool is_inverted, bool_field(split, where, "invert", false));
  if (behavior != "Isolated" || is_inverted) {
    return unsupported(where,
                       fmt::format("behavior {}, invert {}", quote_bytes(behavior), is_inverted),
                       "behavior \"Isolated\", invert false");
  }
  ASSIGN_OR_RETURN(const JsonObject pattern, object_field(split, where, "pattern"));
  const auto regex = find_field(pattern, "Regex");
  std::string_view text;
  if (!regex || regex->get(text) != simdjson::SUCCESS) {
    return unsupported("pre_tokenizer.Split.pattern", "no Regex", "a Regex");
  }
  const auto known = find_word_pattern(text);
  if (!known) {
    return unsupported("pre_tokenizer.Split.pattern.Regex",
                       "an unknown pattern " + quote_bytes(text),
                       "the pattern of Qwen2/Qwen3 or of Qwen3.5");
  }
  file.pattern = *known;
  return Status();
}

Status read_pre_tokenizer(JsonObject root, TokenizerFile& file) {
  const auto component = find_field(root, "pre_tokenizer");
  const std::vector<JsonElement> members = members_of(component, "pretokenizers");
  if (members.size() != 2) {
    const std::string found = has_type(component, "Sequence")
                                  ? fmt::format("a Sequence of {}", members.size())
                                  : type_of(component);
    return unsupported("pre_tokenizer", found, kPreTokenizerForm);
  }
  RETURN_IF_ERROR(read_split(members[0], file));
  JsonObject byte_level;
  if (!has_type(members[1], "ByteLevel") || members[1].get(byte_level) != simdjson::SUCCESS) {
    return unsupported("pre_tokenizer", type_of(members[1]), kPreTokenizerForm);
  }
  const std::string_view where = "pre_tokenizer.ByteLevel";
  ASSIGN_OR_RETURN(const bool has_prefix, bool_field(byte_level, where, "add_prefix_space", true));
  ASSIGN_OR_RETURN(const bool has_regex, bool_field(byte_level, where, "use_regex", true));
  if (has_prefix || has_regex) {
    return unsupported(where,
                       fmt::format("add_prefix_space {}, use_regex {}", has_prefix, has_regex),
                       "both false");
  }
  return Status();
}

Status check_decoder_and_post_processor(JsonObject root) {
  const auto decoder = find_field(root, "decoder");
  if (!has_type(decoder, "ByteLevel")) {
    return unsupported("decoder", type_of(decoder), "ByteLevel");
  }
  const auto post_processor = find_field(root, "post_processor");
  if (post_processor && !has_type(post_processor, "ByteLevel")) {
    return unsupported("post_processor", type_of(post_processor), "ByteLevel or null");
  }
  return Status();
}

// Model options that would change ids. unk_token and fuse_unk cannot: every byte has a token.
Status check_model_options(JsonObject model, TokenizerFile& file) {
  const auto type = find_field(model, "type");
  if (type && describe_json(*type) != quote_bytes("BPE")) {
    return unsupported("model.type", describe_json(*type), "\"BPE\"");
  }
  const auto dropout = find_field(model, "dropout");
  double rate = 0;
  if (dropout && (dropout->get(rate) != simdjson::SUCCESS || rate != 0)) {
    return unsupported("model.dropout", describe_json(*dropout), "null or 0");
  }
  for (const std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const auto affix = find_field(model, key);
    if (affix && describe_json(*affix) != quote_bytes("")) {
      return unsupported(fmt::format("model.{}", key), describe_json(*affix), "null or \"\"");
    }
  }
  ASSIGN_OR_RETURN(const bool falls_back, bool_field(model, "model", "byte_fallback", false));
  if (falls_back) return unsupported("model.byte_fallback", "true", "false");
  ASSIGN_OR_RETURN(file.ignores_merges, bool_field(model, "model", "ignore_merges", false));
  return Status();
}

Result<JsonObject> parse_root(simdjson::dom::parser& parser, const simdjson::padded_string& json) {
  JsonElement element;
  if (const auto error = parser.parse(json).get(element); error != simdjson::SUCCESS) {
    return Status(StatusCode::kInvalidFile, fmt::format("not JSON: found {}, expected an object",
                                                        simdjson::error_message(error)));
  }
  JsonObject root;
  if (element.get(root) != simdjson::SUCCESS) {
    return Status(StatusCode::kInvalidFile,
                  fmt::format("found {}, expected an object", describe_json(element)));
  }
  return root;
}

Status read_tokenizer_json(JsonObject root, std::string_view config_json, TokenizerFile& file) {
  const std::string_view name = "tokenizer.json";
  RETURN_IF_ERROR(in_file(name, read_normalizer(root, file)));
  RETURN_IF_ERROR(in_file(name, read_pre_tokenizer(root, file)));
  RETURN_IF_ERROR(in_file(name, check_decoder_and_post_processor(root)));
  auto model = object_field(root, "", "model");
  RETURN_IF_ERROR(in_file(name, model.status()));
  RETURN_IF_ERROR(in_file(name, check_model_options(*model, file)));
  if (find_field(root, "added_tokens")) {
    auto added = array_field(root, "", "added_tokens");
    RETURN_IF_ERROR(in_file(name, added.status()));
    RETURN_IF_ERROR(in_file(name, read_added_tokens(*added, file)));
  }
  if (!config_json.empty()) {
    const std::string_view config_name = "tokenizer_config.json";
    simdjson::dom::parser parser;
    const simdjson::padded_string padded(config_json);
    auto config = parse_root(parser, padded);
    RETURN_IF_ERROR(in_file(config_name, config.status()));
    if (find_field(*config, "added_tokens_decoder")) {
      auto decoder = object_field(*config, "", "added_tokens_decoder");
      RETURN_IF_ERROR(in_file(config_name, decoder.status()));
      RETURN_IF_ERROR(in_file(config_name, read_added_tokens_decoder(*decoder, file)));
    }
  }
  auto vocabulary = object_field(*model, "model", "vocab");
  RETURN_IF_ERROR(in_file(name, vocabulary.status()));
  TokenIndex index;
  RETURN_IF_ERROR(in_file(name, read_vocabulary(*vocabulary, file, index)));
  auto merges = array_field(*model, "model", "merges");
  RETURN_IF_ERROR(in_file(name, merges.status()));
  RETURN_IF_ERROR(in_file(name, read_merges(*merges, index, file)));
  return Status();
}

}  // namespace

Result<TokenizerFile> parse_tokenizer_file(std::string_view tokenizer_json,
                                           std::string_view config_json) {
  simdjson::dom::parser parser;
  const simdjson::padded_string padded(tokenizer_json);
  auto root = parse_root(parser, padded);
  RETURN_IF_ERROR(in_file("tokenizer.json", root.status()));
  TokenizerFile file;
  RETURN_IF_ERROR(read_tokenizer_json(*root, config_json, file));
  return file;
}

}  // namespace moray
