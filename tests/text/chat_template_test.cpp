// ChatTemplate: where a checkpoint's template is found, what it is given, and what is refused.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "moray/text.h"

namespace moray {
namespace {

namespace fs = std::filesystem;

class ChatTemplateTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("moray_template_" + std::to_string(getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }
  // What the loaded template prints for one user message, or the error without the folder.
  std::string print() const {
    const auto loaded = ChatTemplate::load(folder_.string());
    if (!loaded.ok()) return loaded.status().message().substr(folder_.string().size() + 2);
    const auto text = (*loaded)->render_text({{"user", "hi", ""}}, {});
    return text.ok() ? *text : text.status().message();
  }
  fs::path folder_;
};

std::string print_request(const std::string& source, const ChatRequest& request,
                          const ChatOptions& options = {}) {
  const auto loaded = ChatTemplate::parse(source);
  if (!loaded.ok()) return loaded.status().message();
  const auto text = (*loaded)->render_text(request, options);
  return text.ok() ? *text : text.status().message();
}

TEST_F(ChatTemplateTest, IsFoundInItsFileFirst) {
  write("tokenizer_config.json", R"({"chat_template": "config {{ messages[0].content }}"})");
  EXPECT_EQ(print(), "config hi");
  write("chat_template.jinja", "file {{ messages[0].content }}\n");
  EXPECT_EQ(print(), "file hi");
}

TEST_F(ChatTemplateTest, TakesTheDefaultOfSeveral) {
  write("tokenizer_config.json", R"({"chat_template": [{"name": "tool_use", "template": "t"},
                                     {"name": "default", "template": "d"}]})");
  EXPECT_EQ(print(), "d");
  write("tokenizer_config.json", R"({"chat_template": [{"name": "tool_use", "template": "t"}]})");
  EXPECT_EQ(print(),
            "tokenizer_config.json: chat_template is neither a string nor a list with a "
            "template named default");
}

TEST_F(ChatTemplateTest, IsReportedWhenMissingOrBroken) {
  EXPECT_EQ(ChatTemplate::load(folder_.string()).status().code(), StatusCode::kNotFound);
  write("tokenizer_config.json", R"({"chat_template": null})");
  EXPECT_EQ(ChatTemplate::load(folder_.string()).status().code(), StatusCode::kNotFound);
  write("tokenizer_config.json", "[1]");
  EXPECT_EQ(print().substr(0, 53), "tokenizer_config.json: expected a JSON object, found:");
  write("tokenizer_config.json", "{}");
  write("chat_template.jinja", "{% for %}");
  EXPECT_EQ(print(), "chat template line 1: expected an expression, found '%}'");
}

TEST_F(ChatTemplateTest, SeesTheNamedTokensOfTheTokenizer) {
  write("tokenizer_config.json", R"({"bos_token": null, "eos_token": "<e>",
      "pad_token": {"content": "<p>", "special": true}, "additional_special_tokens": ["<a>"]})");
  write("chat_template.jinja",
        "{{ bos_token is defined }}{{ eos_token }}{{ pad_token }}{{ additional_special_tokens }}");
  EXPECT_EQ(print(), "False<e><p>['<a>']");
}

TEST(ChatTemplateVariables, AreThoseOfTransformers) {
  const std::string source =
      "{{ tools is none }}{{ documents is none }}{{ add_generation_prompt }}{{ enable_thinking }}"
      "{{ messages | length }}";
  EXPECT_EQ(print_request(source, {"[]", "", ""}), "TrueTrueTrueFalse0");
  EXPECT_EQ(print_request(source, {"[{}]", "[{}]", ""},
                          {.add_generation_prompt = false, .enable_thinking = true}),
            "FalseTrueFalseTrue1");
  EXPECT_EQ(print_request("{{ enable_thinking }}{{ n }}", {"[]", "", R"({"enable_thinking": true,
            "n": [1.50, "x"]})"}),
            "True[1.5, 'x']");
}

TEST(ChatTemplateVariables, KeepTheOrderOfKeys) {
  EXPECT_EQ(print_request("{{ tools[0] | tojson }}", {"[]", R"([{"z": 1, "a": {"y": 2, "b": 1e3},
            "z": 3, "m": 12345678901234567890123}])",
                                                      ""}),
            R"({"z": 3, "a": {"y": 2, "b": 1000.0}, "m": 12345678901234567890123})");
}

TEST(ChatTemplateVariables, BadRequestsAreRefusedByName) {
  EXPECT_EQ(print_request("", {"{}", "", ""}),
            "messages: expected an array, found a value of type dict");
  EXPECT_EQ(print_request("", {"[{}, 1]", "", ""}),
            "messages[1]: expected an object, found a value of type int");
  EXPECT_EQ(print_request("", {"[]", "[null]", ""}),
            "tools[0]: expected an object, found a value of type NoneType");
  EXPECT_EQ(print_request("", {"[]", "", "[]"}),
            "template arguments: expected an object, found a value of type list");
  EXPECT_EQ(print_request("", {"[]", "", R"({"messages": []})"}),
            "template arguments: 'messages' cannot be set there");
  const auto loaded = ChatTemplate::parse("{{ messages }}");
  ASSERT_TRUE(loaded.ok());
  EXPECT_EQ(
      (*loaded)->render_text({{"user", "a", ""}, {"user", "b\xFF", ""}}, {}).status().message(),
      "message 1: byte 1 is not valid UTF-8");
}

TEST(ChatTemplateVariables, ReasoningIsAFieldOfItsOwn) {
  const auto loaded = ChatTemplate::parse(
      "{% for m in messages %}{{ m.reasoning_content is defined }}{{ m.reasoning_content }}{% "
      "endfor %}");
  ASSERT_TRUE(loaded.ok());
  EXPECT_EQ(*(*loaded)->render_text({{"assistant", "a", "why"}, {"assistant", "b", ""}}, {}),
            "TruewhyFalse");
}

TEST(ChatTemplateVariables, StrftimeNowPrintsADate) {
  EXPECT_EQ(print_request("{{ strftime_now('%Y-%m-%d') | length }}{{ strftime_now('') }}",
                          {"[]", "", ""}),
            "10");
}

}  // namespace
}  // namespace moray
