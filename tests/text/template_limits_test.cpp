// Hostile and broken templates and requests: one clear line, soon, whatever the input.
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "src/text/jinja_eval.h"
#include "src/text/jinja_parser.h"
#include "src/text/json_value.h"

namespace moray {
namespace {

Result<MarkedText> render(const std::string& source, const std::string& variables_json = "{}") {
  ASSIGN_OR_RETURN(const jinja::Block program, jinja::parse_template(source));
  ASSIGN_OR_RETURN(const jinja::Value variables, parse_json_value(variables_json, "variables"));
  return jinja::render(program, *variables.as<jinja::MapRef>(), 0);
}

std::string error_of(const std::string& source, const std::string& variables_json = "{}") {
  const auto result = render(source, variables_json);
  return result.ok() ? "printed: " + result->text.substr(0, 100) : result.status().message();
}

std::string repeat(const std::string& text, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

TEST(TemplateErrors, NameTheConstructAndTheLine) {
  const auto expect = [](const std::string& source, const std::string& message) {
    EXPECT_EQ(error_of(source), "chat template line " + message) << source;
  };
  expect("a\n{{ x.y }}", "2: 'x' is undefined");
  expect("\n\n{{ {'a': 1}.b.c }}", "3: a dict has no attribute or key 'b'");
  expect("{% for x in [1] %}\n{{ x | frobnicate }}{% endfor %}",
         "2: filter 'frobnicate' is not supported");
  expect("{{ 1 is sane }}", "1: test 'sane' is not supported");
  expect("{# a\nb #}{% import 'x' as y %}", "2: tag 'import' is not supported");
  expect("{{ 'a'.swapcase() }}", "1: method str.swapcase() is not supported");
  expect("{{ [1].append(2) }}", "1: method list.append() is not supported");
  expect("{% if x %}\n{{ 1 }}", "2: expected '{% endif %}', found the end of the template");
  expect("{{ 1 + }}", "1: expected an expression, found '}}'");
  expect("{{ 'a }}", "1: a string is not closed");
  expect("{{ 1", "1: a tag is not closed by }}");
  expect("{% endif %}", "1: tag 'endif' closes nothing that was opened");
  expect("{{ (1 }}", "1: '}' closes nothing that was opened");
  expect("x\n{{ raise_exception('No\nsuch role') }}",
         "2: the template refuses this conversation: No such role");
  expect("{% macro m() %}\n{{ 1 + 'a' }}{% endmacro %}\n\n{{ m() }}",
         "2: '+' does not work between int and str");
}

TEST(TemplateErrors, QuoteNoControlCharactersAndStayShort) {
  const std::string message = error_of("{{ raise_exception(x) }}",
                                       R"({"x": "\u001b[31m\r\n)" + std::string(5000, 'y') + "\"}");
  EXPECT_LT(message.size(), 500u);
  for (const char c : message) EXPECT_GE(static_cast<uint8_t>(c), 0x20);
}

TEST(TemplateErrors, RefuseInvalidUtf8) {
  EXPECT_EQ(error_of("ab\xFF"), "chat template: byte 2 is not valid UTF-8");
  EXPECT_EQ(error_of("{{ '\\ud83d' }}"),
            "chat template line 1: a string escape is not a Unicode character");
}

// Each of these would take minutes, gigabytes or the stack without its bound.
TEST(TemplateBounds, HostileTemplatesEndSoon) {
  const std::string kNs = "{% set n = namespace(x='ab', l=[1]) %}{% for i in range(100000) %}";
  const std::string cases[] = {
      repeat("{% for a in range(99999) %}", 4) + "x" + repeat("{% endfor %}", 4),
      "{{ range(1000000000) }}",
      "{{ 'a' * 1000000000000 }}",
      "{{ [0] * 1000000000000 }}",
      "{{ 'a' * 9223372036854775807 }}",
      "{{ ('a' * 1000000) * 1000000 }}",
      kNs + "{% set n.x = n.x ~ n.x %}{% endfor %}",
      kNs + "{% set n.x = n.x + n.x %}{% endfor %}",
      kNs + "{% set n.x = n.x | replace('a', 'aa') | replace('b', 'bb') %}{% endfor %}",
      kNs + "{% set n.x = n.x | tojson %}{% endfor %}",
      kNs + "{% set n.l = n.l + n.l %}{% endfor %}",
      kNs + "{% set n.l = [n.l, n.l] %}{% endfor %}",
      kNs + "{% set n.l = {'k': n.l} %}{% endfor %}",
      kNs +
          "{% set n.l = [n.l, n.l] %}{% if i == 100 %}{{ n.l == [n.l] }}{{ n.l }}{% endif %}{% "
          "endfor %}",
      kNs + "{% set n.l = [n.l, n.l] %}{% if i == 100 %}{{ n.l | tojson }}{% endif %}{% endfor %}",
      kNs + "{% set n.x %}{{ n.x }}{{ n.x }}{% endset %}{% endfor %}",
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{% macro m(a) %}{{ m(a ~ a) }}{{ m(a) }}{% endmacro %}{{ m('x') }}",
      "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
      "{{ " + repeat("(", 100000) + "1" + repeat(")", 100000) + " }}",
      "{{ " + repeat("[", 100000) + repeat("]", 100000) + " }}",
      "{{ " + repeat("not ", 100000) + "1 }}",
      "{{ " + repeat("-", 100000) + "1 }}",
      "{{ 1" + repeat(" + 1", 100000) + " }}",
      "{{ 1" + repeat(" if 1 else 1", 100000) + " }}",
      "{{ x" + repeat(".y", 100000) + " }}",
      "{{ x" + repeat("|trim", 100000) + " }}",
      "{{ x" + repeat("(1", 100000) + repeat(")", 100000) + " }}",
      repeat("{% if 1 %}", 100000) + repeat("{% endif %}", 100000),
      repeat("{% for x in [1] %}", 60) + repeat("{% endfor %}", 60),
      "{% set s = 'ab' * 100000 %}{% for i in range(1000) %}{{ s[::-1] }}{% endfor %}",
      "{% set s = 'ab' * 100000 %}{% for i in range(99999) %}{{ s | length ~ s.count('a') }}{% "
      "endfor %}",
      "{% set s = 'ab' * 10000000 %}{% for c in s %}{% endfor %}",
      "{{ 'a' | map(" + repeat("'map', ", 5000) + "'upper') | list }}",
      "{{ range(99999) | list | unique | list | length }}",
      "{{ 'a' * 100000 | tojson(indent=1000000000) }}",
      "{{ ['a'] | tojson(indent=1000000000) }}",
      "{{ 'a\n' * 100000 | indent(100000) }}{{ ('a\n' * 100000) | indent(100000) }}",
      "{{ (',' * 10000000).split(',') | length }}{{ (',' * 10000000).split(',') | length }}",
      "{{ 2 ** 9223372036854775807 }}",
      "{{ (2 ** 62) * 4 }}{{ -9223372036854775807 - 2 }}",
      "{{ -9223372036854775807 // -1 }}{{ (-9223372036854775807 - 1) // -1 }}",
  };
  for (const std::string& source : cases) {
    const auto start = std::chrono::steady_clock::now();
    const auto result = render(source);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    EXPECT_FALSE(result.ok()) << source.substr(0, 200);
    // The bounds hold about 2 s of work at -O2; sanitizers and a loaded machine take a multiple.
    EXPECT_LT(seconds.count(), 60) << source.substr(0, 200);
  }
}

// Values that could be destroyed or printed only by deep recursion, or that refer to themselves.
TEST(TemplateBounds, ChainsAndCyclesAreFreed) {
  const std::string cases[] = {
      "{% set n = namespace(x=1) %}{% set n.n = n %}{{ n.n.n.n.x }}",
      "{% set h = namespace(tail=namespace()) %}{% for i in range(50000) %}{% set t = h.tail %}"
      "{% set m = namespace() %}{% set t.next = m %}{% set h.tail = m %}{% endfor %}1",
      "{% set n = namespace(l=0) %}{% for i in range(50000) %}{% set n.l = loop %}{% endfor %}1",
      "{% set n = namespace(l=[1]) %}{% for i in range(5000) %}{% for j in n.l %}"
      "{% set n.l = [loop] %}{% endfor %}{% endfor %}1",
      "{% set n = namespace() %}{% macro m() %}1{% endmacro %}{% set n.m = m %}{{ n.m() }}",
      "{% set n = namespace(a=namespace()) %}{% set a = n.a %}{% set a.l = [n, [a]] %}1"};
  for (const std::string& source : cases) EXPECT_EQ(error_of(source), "printed: 1") << source;
}

TEST(TemplateBounds, ALoopObjectEndsWithItsLoop) {
  EXPECT_EQ(error_of("{% set n = namespace() %}{% for i in [1, 2] if i %}{% set n.l = loop %}"
                     "{% endfor %}{{ n.l.last }}"),
            "chat template line 1: 'loop' is used after its loop has ended");
  EXPECT_EQ(error_of("{% set n = namespace() %}{% for i in [1] %}{% set n.l = loop %}{% endfor %}"
                     "{{ n.l.cycle(1) }}"),
            "chat template line 1: 'loop' is used after its loop has ended");
}

TEST(TemplateBounds, LargeHonestConversationsPass) {
  std::string messages;
  for (int i = 0; i < 1000; ++i) {
    messages += std::string(i ? "," : "") + R"({"role": "user", "content": ")" +
                std::string(4000, 'x') + "\"}";
  }
  const auto text = render(
      "{% for m in messages %}<{{ m.role }}>{{ (m.content | trim) + '\n' }}"
      "{{ m | tojson | length }}{% endfor %}",
      "{\"messages\": [" + messages + "]}");
  ASSERT_TRUE(text.ok()) << text.status().message();
  EXPECT_GT(text->text.size(), 4'000'000u);
}

TEST(TemplateRequests, BadJsonIsRefusedByName) {
  const auto expect = [](const std::string& json, const std::string& message) {
    const auto value = parse_json_value(json, "messages");
    ASSERT_FALSE(value.ok()) << json;
    EXPECT_EQ(value.status().message(), "messages: " + message) << json;
  };
  expect("", "not valid JSON at byte 1");
  expect("[1,", "not valid JSON at byte 4");
  expect("[\"\\ud83d\"]", "not valid JSON at byte 9");
  expect("[\"\xC0\x80\"]", "not valid JSON at byte 3");
  expect("[NaN]", "not valid JSON at byte 2");
  expect(repeat("[", 100000), "JSON nests deeper than 100 levels");
  expect(repeat("{\"a\":", 101), "JSON nests deeper than 100 levels");
}

}  // namespace
}  // namespace moray
