// ChatTemplate: finds a checkpoint's template, gives it the variables transformers gives it, and
// turns what it prints into text or token ids.
//
// Invariant: everything that comes from a request is marked as content, everything that comes from
// the checkpoint's files as scaffold. The interpreter is in jinja_eval.h.
#include <simdjson.h>

#include <ctime>

#include "moray/text.h"
#include "src/base/mapped_file.h"
#include "src/text/jinja_eval.h"
#include "src/text/jinja_parser.h"
#include "src/text/json_value.h"
#include "src/text/marked_encode.h"
#include "src/text/utf8.h"

namespace moray {
namespace {

using jinja::Map;
using jinja::SequenceKind;
using jinja::SequenceRef;
using jinja::Value;

// Fifty times the largest published template.
constexpr size_t kTemplateBytesMax = size_t{1} << 20;

Value scaffold(std::string_view text) {
  return jinja::text_value(std::string(text), Mark::kScaffold);
}
Value content(std::string_view text) {
  return jinja::text_value(std::string(text), Mark::kContent);
}
void set(Map& map, std::string_view name, Value value) {
  map.set(scaffold(name).as<jinja::Text>(), std::move(value));
}

// Messages as the maps a client would have sent.
Result<Value> message_list(const std::vector<ChatMessage>& messages) {
  std::vector<Value> items;
  for (const ChatMessage& message : messages) {
    for (const std::string* part : {&message.role, &message.content, &message.reasoning}) {
      if (const size_t bad = first_invalid_byte(*part); bad != std::string::npos) {
        return Status(StatusCode::kInvalidArgument, "message " + std::to_string(items.size()) +
                                                        ": byte " + std::to_string(bad) +
                                                        " is not valid UTF-8");
      }
    }
    Map map;
    set(map, "role", content(message.role));
    set(map, "content", content(message.content));
    if (!message.reasoning.empty()) set(map, "reasoning_content", content(message.reasoning));
    ASSIGN_OR_RETURN(Value item, jinja::map_value(std::move(map)));
    items.push_back(std::move(item));
  }
  return jinja::sequence_value(SequenceKind::kList, std::move(items));
}

Result<Value> list_of_objects(std::string_view json, const std::string& name) {
  ASSIGN_OR_RETURN(Value list, parse_json_value(json, name));
  if (!list.is<SequenceRef>()) {
    return Status(StatusCode::kInvalidArgument,
                  name + ": expected an array, found a value of type " + type_name(list));
  }
  size_t index = 0;
  for (const Value& item : list.as<SequenceRef>()->items) {
    if (!item.is<jinja::MapRef>()) {
      return Status(StatusCode::kInvalidArgument,
                    name + "[" + std::to_string(index) +
                        "]: expected an object, found a value of type " + type_name(item));
    }
    ++index;
  }
  return list;
}

// Adds the request's own template variables over those set before.
Status add_arguments(std::string_view json, Map& variables) {
  if (json.empty()) return Status();
  ASSIGN_OR_RETURN(const Value arguments, parse_json_value(json, "template arguments"));
  if (!arguments.is<jinja::MapRef>()) {
    return Status(StatusCode::kInvalidArgument,
                  std::string("template arguments: expected an object, found a value of type ") +
                      type_name(arguments));
  }
  for (const auto& [name, value] : arguments.as<jinja::MapRef>()->entries) {
    for (std::string_view reserved : {"messages", "tools", "documents", "add_generation_prompt"}) {
      if (name.str() == reserved) {
        return Status(StatusCode::kInvalidArgument,
                      "template arguments: '" + name.str() + "' cannot be set there");
      }
    }
    variables.set(name, value);
  }
  return Status();
}

// The string of a special token, which tokenizer_config.json gives plainly or as an object.
std::optional<std::string_view> token_text(simdjson::dom::element field) {
  std::string_view text;
  if (field.get(text) == simdjson::SUCCESS) return text;
  if (field["content"].get(text) == simdjson::SUCCESS) return text;
  return std::nullopt;
}

// bos_token and the other named tokens, which transformers hands to templates.
Result<Map> special_tokens(simdjson::dom::object config) {
  Map map;
  for (std::string_view name : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
                                "cls_token", "mask_token"}) {
    simdjson::dom::element field;
    if (config[name].get(field) != simdjson::SUCCESS) continue;
    if (const auto text = token_text(field)) set(map, name, scaffold(*text));
  }
  simdjson::dom::array more;
  if (config["additional_special_tokens"].get(more) == simdjson::SUCCESS) {
    std::vector<Value> items;
    for (simdjson::dom::element field : more) {
      if (const auto text = token_text(field)) items.push_back(scaffold(*text));
    }
    ASSIGN_OR_RETURN(Value list, jinja::sequence_value(SequenceKind::kList, std::move(items)));
    set(map, "additional_special_tokens", std::move(list));
  }
  return map;
}

Status parse_config(std::string_view json, simdjson::dom::parser& parser,
                    simdjson::dom::object& config) {
  const auto error = parser.parse(simdjson::padded_string(json)).get(config);
  if (error == simdjson::SUCCESS) return Status();
  return Status(StatusCode::kInvalidFile,
                std::string("tokenizer_config.json: expected a JSON object, found: ") +
                    simdjson::error_message(error));
}

// The template inside tokenizer_config.json: a string, or a list of named ones with a "default".
Result<std::string> embedded_template(std::string_view config_json) {
  simdjson::dom::parser parser;
  simdjson::dom::object config;
  RETURN_IF_ERROR(parse_config(config_json, parser, config));
  simdjson::dom::element field;
  std::string_view source;
  simdjson::dom::array variants;
  if (config["chat_template"].get(field) == simdjson::SUCCESS) {
    if (field.get(source) == simdjson::SUCCESS) return std::string(source);
    if (field.get(variants) == simdjson::SUCCESS) {
      for (simdjson::dom::element variant : variants) {
        std::string_view name;
        if (variant["name"].get(name) == simdjson::SUCCESS && name == "default" &&
            variant["template"].get(source) == simdjson::SUCCESS) {
          return std::string(source);
        }
      }
    }
    if (!field.is_null()) {
      return Status(StatusCode::kInvalidFile,
                    "tokenizer_config.json: chat_template is neither a string nor a list with a "
                    "template named default");
    }
  }
  return Status(StatusCode::kNotFound,
                "no chat template: found neither chat_template.jinja nor chat_template in "
                "tokenizer_config.json");
}

Result<std::string> read_text(const std::string& path) {
  ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
  return std::string(reinterpret_cast<const char*>(file.data().data()), file.data().size());
}

class JinjaChatTemplate final : public ChatTemplate {
 public:
  JinjaChatTemplate(jinja::Block program, Map special)
      : program_(std::move(program)), special_tokens_(std::move(special)) {}

  Result<std::vector<TokenId>> render(const Tokenizer& tokenizer,
                                      const std::vector<ChatMessage>& messages,
                                      const ChatOptions& options) const override {
    ASSIGN_OR_RETURN(const MarkedText text, render_messages(messages, options));
    return encode_marked(tokenizer, text);
  }
  Result<std::vector<TokenId>> render(const Tokenizer& tokenizer, const ChatRequest& request,
                                      const ChatOptions& options) const override {
    ASSIGN_OR_RETURN(const MarkedText text, render_request(request, options));
    return encode_marked(tokenizer, text);
  }
  Result<std::string> render_text(const std::vector<ChatMessage>& messages,
                                  const ChatOptions& options) const override {
    ASSIGN_OR_RETURN(MarkedText text, render_messages(messages, options));
    return std::move(text.text);
  }
  Result<std::string> render_text(const ChatRequest& request,
                                  const ChatOptions& options) const override {
    ASSIGN_OR_RETURN(MarkedText text, render_request(request, options));
    return std::move(text.text);
  }

 private:
  Result<MarkedText> render_messages(const std::vector<ChatMessage>& messages,
                                     const ChatOptions& options) const {
    ASSIGN_OR_RETURN(Value list, message_list(messages));
    return run(std::move(list), {jinja::None{}}, "", options);
  }

  Result<MarkedText> render_request(const ChatRequest& request, const ChatOptions& options) const {
    ASSIGN_OR_RETURN(Value messages, list_of_objects(request.messages, "messages"));
    Value tools{jinja::None{}};
    if (!request.tools.empty()) {
      ASSIGN_OR_RETURN(tools, list_of_objects(request.tools, "tools"));
    }
    return run(std::move(messages), std::move(tools), request.arguments, options);
  }

  Result<MarkedText> run(Value messages, Value tools, std::string_view arguments,
                         const ChatOptions& options) const {
    Map variables;
    for (const auto& [name, value] : special_tokens_.entries) variables.set(name, value);
    set(variables, "enable_thinking", {options.enable_thinking});
    RETURN_IF_ERROR(add_arguments(arguments, variables));
    set(variables, "messages", std::move(messages));
    set(variables, "tools", std::move(tools));
    set(variables, "documents", {jinja::None{}});
    set(variables, "add_generation_prompt", {options.add_generation_prompt});
    return jinja::render(program_, variables, static_cast<int64_t>(std::time(nullptr)));
  }

  jinja::Block program_;
  Map special_tokens_;
};

}  // namespace

Result<std::shared_ptr<const ChatTemplate>> ChatTemplate::parse(std::string_view source,
                                                                std::string_view tokenizer_config) {
  if (source.size() > kTemplateBytesMax) {
    return Status(StatusCode::kInvalidFile,
                  "chat template: found " + std::to_string(source.size()) +
                      " bytes, expected at most " + std::to_string(kTemplateBytesMax));
  }
  ASSIGN_OR_RETURN(jinja::Block program, jinja::parse_template(source));
  Map special;
  if (!tokenizer_config.empty()) {
    simdjson::dom::parser parser;
    simdjson::dom::object config;
    RETURN_IF_ERROR(parse_config(tokenizer_config, parser, config));
    ASSIGN_OR_RETURN(special, special_tokens(config));
  }
  return std::shared_ptr<const ChatTemplate>(
      std::make_shared<JinjaChatTemplate>(std::move(program), std::move(special)));
}

Result<std::shared_ptr<const ChatTemplate>> ChatTemplate::load(const std::string& folder) {
  Result<std::string> config = read_text(folder + "/tokenizer_config.json");
  if (!config.ok() && config.status().code() != StatusCode::kNotFound) return config.status();
  const std::string config_json = config.ok() ? *config : std::string();
  Result<std::string> source = read_text(folder + "/chat_template.jinja");
  if (!source.ok() && source.status().code() == StatusCode::kNotFound) {
    source = embedded_template(config_json.empty() ? "{}" : config_json);
  }
  Result<std::shared_ptr<const ChatTemplate>> loaded =
      source.ok() ? parse(*source, config_json)
                  : Result<std::shared_ptr<const ChatTemplate>>(source.status());
  if (loaded.ok()) return loaded;
  return Status(loaded.status().code(), folder + ": " + loaded.status().message());
}

}  // namespace moray
