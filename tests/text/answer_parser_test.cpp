// B07 to B15: calls, thoughts and text, however the answer is cut, and nothing lost.
#include "src/text/answer_parser.h"

#include <gtest/gtest.h>

#include <random>

#include "src/text/tool_schema.h"

namespace moray {
namespace {

using Kind = AnswerEvent::Kind;
using Opening = AnswerParser::Opening;

constexpr std::string_view kTools = R"([
  {"type":"web_search"},
  {"type":"function","function":{"name":"write","parameters":{
    "$defs":{"Level":{"type":"integer"}},
    "properties":{"path":{"type":"string"},"content":{"type":"string"},
      "level":{"$ref":"#/$defs/Level"},"maybe":{"type":["integer","null"]},
      "note":{"anyOf":[{"type":"string"},{"type":"null"}]},
      "either":{"anyOf":[{"type":"object"},{"type":"array"}]},
      "ratio":{"type":"number"},"is_new":{"type":"boolean"},"any":{}}}}},
  {"name":"list"}])";

ToolSchemas tools() {
  auto schemas = ToolSchemas::parse(kTools);
  EXPECT_TRUE(schemas.ok()) << schemas.status().message();
  return *schemas;
}

// Neighbouring events of one kind joined, in one line each: "kind text".
struct Reading {
  std::vector<std::string> lines;
  std::string raw;
};

Reading read(std::string_view answer, const std::vector<size_t>& cuts, const ToolSchemas& schemas,
             Opening opening) {
  AnswerParser parser(schemas, opening);
  std::vector<AnswerEvent> events;
  size_t begin = 0;
  for (const size_t cut : cuts) {
    std::vector<AnswerEvent> some;  // as a caller does, so that nothing is joined across pushes
    parser.push(answer.substr(begin, cut - begin), &some);
    events.insert(events.end(), some.begin(), some.end());
    begin = cut;
  }
  parser.push(answer.substr(begin), &events);
  parser.finish(&events);
  constexpr std::string_view kNames[] = {"reason", "text", "start", "args",
                                         "end",    "cut",  "",      "warn"};
  Reading reading;
  Kind last = Kind::kCallEnd;
  for (const AnswerEvent& event : events) {
    reading.raw += event.raw;
    if (event.kind == Kind::kMarkup) continue;
    const bool is_joined = event.kind == last && event.kind != Kind::kWarning &&
                           event.kind != Kind::kCallStart && !reading.lines.empty();
    if (!is_joined) {
      reading.lines.push_back(std::string(kNames[static_cast<int>(event.kind)]) + " ");
    }
    reading.lines.back() += event.text;
    last = event.kind;
  }
  return reading;
}

// Reads `answer` whole, in pieces of one to three bytes and in random ones; all must agree.
std::vector<std::string> lines_of(std::string_view answer, const ToolSchemas& schemas = tools(),
                                  Opening opening = Opening::kAnswer) {
  const Reading whole = read(answer, {}, schemas, opening);
  EXPECT_EQ(whole.raw, answer);
  std::mt19937 random(std::random_device{}());
  for (int round = 1; round <= 12; ++round) {
    std::vector<size_t> cuts;
    std::uniform_int_distribution<size_t> step(1, 40);
    const size_t fixed = static_cast<size_t>(round);
    for (size_t at = 0; at < answer.size(); at += round <= 3 ? fixed : step(random))
      cuts.push_back(at);
    const Reading pieces = read(answer, cuts, schemas, opening);
    EXPECT_EQ(pieces.lines, whole.lines) << "round " << round << " of " << answer;
    EXPECT_EQ(pieces.raw, answer) << "round " << round;
  }
  return whole.lines;
}

using Lines = std::vector<std::string>;

std::string value_of(const std::string& parameter, const std::string& text) {
  const Lines lines = lines_of("<tool_call>\n<function=write>\n<parameter=" + parameter + ">\n" +
                               text + "\n</parameter>\n</function>\n</tool_call>");
  if (lines.size() != 3) return "lines " + std::to_string(lines.size());
  const std::string head = "args {\"" + parameter + "\":";
  return lines[1].substr(head.size(), lines[1].size() - head.size() - 1);
}

TEST(AnswerParser, ThoughtsOpenedByModelOrPromptAreApart) {
  EXPECT_EQ(lines_of("<think>\na < b</think>\n\nyes"), (Lines{"reason \na < b", "text yes"}));
  EXPECT_EQ(lines_of("why</thinker></think>x", tools(), Opening::kReasoning),
            (Lines{"reason why</thinker>", "text x"}));
  EXPECT_EQ(lines_of("<think>cut", tools(), Opening::kReasoning), (Lines{"reason cut"}));
  EXPECT_EQ(lines_of("a <think> b"), (Lines{"text a <think> b"}));
}

TEST(AnswerParser, ClosersInsideAValueStayInIt) {  // B07
  EXPECT_EQ(value_of("content",
                     "see </parameter>, </tool_call> and <parameter=x>1</parameter>\n"
                     "</parameter>\nif (a<b) x<y>z;\n</function>\nend"),
            R"("see </parameter>, </tool_call> and <parameter=x>1</parameter>\n</parameter>\n)"
            R"(if (a<b) x<y>z;\n</function>\nend")");
  EXPECT_EQ(value_of("content", "\n<parameter=content>\n"), R"("\n<parameter=content>\n")");
}

TEST(AnswerParser, SeveralCallsKeepTheirOrderAndTheTextBetween) {  // B10
  EXPECT_EQ(lines_of("one\n<tool_call>\n<function=list>\n</function>\n</tool_call>\ntwo"
                     "<tool_call>\n<function=list></function>\n<function=write>\n"
                     "<parameter=path>a</parameter><parameter=level>3</parameter></function>\n"
                     "</tool_call>"),
            (Lines{"text one\n", "start list", "args {}", "end ", "text two", "start list",
                   "args {}", "end ", "start write", R"(args {"path":"a","level":3})", "end "}));
}

TEST(AnswerParser, JsonCallsAreRead) {
  EXPECT_EQ(
      lines_of("<tool_call>\n{\"name\": \"write\", \"arguments\": {\"path\": \"}\\\"{\"}}\n"
               "</tool_call>\n<tool_call>{\"name\":\"list\"}</tool_call>"),
      (Lines{"start write", R"(args {"path":"}\"{"})", "end ", "start list", "args {}", "end "}));
  const Lines cut = lines_of("<tool_call>{\"name\": \"write\", \"argu");
  ASSERT_EQ(cut.size(), 2u);
  EXPECT_EQ(cut[1], "text <tool_call>{\"name\": \"write\", \"argu");
}

TEST(AnswerParser, TypesComeFromTheSchema) {  // B11
  for (const std::string text : {"{\"a\":1}", "123", "true", "null", " 007 "}) {
    EXPECT_EQ(value_of("content", text), quote_json(text));
  }
  EXPECT_EQ(value_of("level", "7"), "7");
  EXPECT_EQ(value_of("level", "seven"), "\"seven\"");
  EXPECT_EQ(value_of("maybe", "null"), "null");
  EXPECT_EQ(value_of("note", "null"), "\"null\"");
  EXPECT_EQ(value_of("either", "[1, 2]"), "[1, 2]");
  EXPECT_EQ(value_of("ratio", "2"), "2");
  EXPECT_EQ(value_of("is_new", "true"), "true");
  EXPECT_EQ(value_of("any", "{\"b\": 2}"), "{\"b\": 2}");
  EXPECT_EQ(value_of("any", "12"), "\"12\"");
  EXPECT_EQ(value_of("content", "a\xFF"), "\"a\xEF\xBF\xBD\"");
}

TEST(AnswerParser, UnclosedParametersEndByStructure) {  // B13
  const std::string head = "<function=write>\n<parameter=path>\na.md";
  const Lines bare = lines_of(head + "\n<parameter=level>\n2\n</function>");
  ASSERT_EQ(bare.size(), 6u);
  EXPECT_EQ(bare[2], R"(args {"path":"a.md")");
  EXPECT_EQ(bare[4], R"(args ,"level":2})");
  EXPECT_EQ(bare[5].substr(0, 4), "end ");
}

TEST(AnswerParser, CutCallsAreMarkedAndHoldWholeParametersOnly) {  // B13
  const std::string answer =
      "<tool_call>\n<function=write>\n<parameter=path>\na.md\n</parameter>\n<parameter=content>\nx";
  EXPECT_EQ(lines_of(answer), (Lines{"start write", R"(args {"path":"a.md"})", "cut "}));
  EXPECT_EQ(lines_of(answer + "\n</parameter>\n</func"),
            (Lines{"start write", R"(args {"path":"a.md","content":"x"})", "cut "}));
}

TEST(AnswerParser, CallsShownInProseAreText) {  // B15
  const std::string call = "<tool_call>\n<function=list>\n</function>\n</tool_call>";
  EXPECT_EQ(lines_of(call, ToolSchemas()), (Lines{"text " + call}));
  for (const std::string& text :
       {"```xml\n" + call + "\n```", std::string("write `<function=list>` so")}) {
    EXPECT_EQ(lines_of(text), (Lines{"text " + text}));
  }
  EXPECT_EQ(lines_of("<think>" + call + "</think>"), (Lines{"reason " + call}));
  const Lines unknown = lines_of("<tool_call><function=rm></function></tool_call>");
  ASSERT_EQ(unknown.size(), 2u);
  EXPECT_EQ(unknown[0].substr(0, 5), "warn ");
  EXPECT_EQ(unknown[1], "text <tool_call><function=rm></function></tool_call>");
}

TEST(AnswerParser, AnyMixOfTagsReadsTheSameInPieces) {  // B08
  const std::string parts[] = {"<tool_call>",
                               "</tool_call>",
                               "<function=write>",
                               "</function>",
                               "<parameter=path>",
                               "<parameter=x>",
                               "</parameter>",
                               "\n",
                               "\n\n",
                               " ",
                               "<think>",
                               "</think>",
                               "<",
                               "</",
                               "a",
                               "`",
                               "```",
                               "{",
                               "}",
                               "\"",
                               "{\"name\":\"list\"}",
                               "\xFF",
                               "\r\n",
                               "é"};
  std::mt19937 random(std::random_device{}());
  std::uniform_int_distribution<size_t> pick(0, std::size(parts) - 1);
  for (int round = 0; round < 3000 && !testing::Test::HasFailure(); ++round) {
    std::string answer;
    for (int i = 0; i < 24; ++i) answer += parts[pick(random)];
    lines_of(answer);
  }
}

TEST(ToolSchemas, BadToolsGetOneMessage) {
  for (const std::string text : {"{", "{}", "[{\"type\":\"function\"}]", "[1]"}) {
    const auto schemas = ToolSchemas::parse(text);
    ASSERT_FALSE(schemas.ok()) << text;
    EXPECT_TRUE(schemas.status().message().starts_with("tools: found ")) << text;
  }
  EXPECT_FALSE(ToolSchemas::parse(std::string(5000, '[')).ok());
  const auto cycle = ToolSchemas::parse(
      R"([{"name":"f","parameters":{"properties":{"p":{"$ref":"#/properties/p"}}}}])");
  ASSERT_TRUE(cycle.ok());
  EXPECT_EQ(cycle->to_json("f", "p", "1"), "\"1\"");
  std::string branches;
  for (int i = 0; i < 20; ++i) branches += R"({"$ref":"#/properties/p"},)";
  const auto bush =
      ToolSchemas::parse(R"([{"name":"f","parameters":{"properties":{"p":{"anyOf":[)" + branches +
                         R"({"type":"null"}]}}}}])");
  EXPECT_TRUE(bush.ok());  // and soon: each reference would branch again
}

}  // namespace
}  // namespace moray
