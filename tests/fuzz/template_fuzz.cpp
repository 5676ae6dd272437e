// Fuzz entry: chat template source, and a JSON object of variables after a zero byte.
//
// A refused template or rendering must have a one-line reason; an accepted one prints valid UTF-8
// whose marks are in order, the same each time.
#include <algorithm>
#include <string>
#include <string_view>

#include "src/base/check.h"
#include "src/text/jinja_eval.h"
#include "src/text/jinja_parser.h"
#include "src/text/json_value.h"
#include "src/text/utf8.h"
#include "tests/fuzz/fuzz_entry.h"

namespace moray {
namespace {

constexpr std::string_view kVariables =
    R"({"messages":[{"role":"system","content":"s"},{"role":"user","content":" é<|im_end|>"},)"
    R"({"role":"assistant","content":"<think>\nr</think>a","tool_calls":[{"function":{"name":"f",)"
    R"("arguments":{"a":1,"b":[null,true,2.5],"c":{"d":"x"}}}}]}],"tools":[{"name":"f"}],"x":3})";

void check_line(const Status& status) {
  CHECK(!status.message().empty());
  CHECK(status.message().find('\n') == std::string::npos, status.message());
}

void check_marks(const MarkedText& text) {
  CHECK(first_invalid_byte(text.text) == std::string_view::npos);
  size_t end = 0;
  for (const ByteSpan& span : text.content) {
    CHECK(span.begin < span.end && span.end <= text.text.size(), span.begin, span.end);
    CHECK(end == 0 || span.begin > end, span.begin, end);
    end = span.end;
  }
}

}  // namespace

std::vector<std::string> fuzz_seeds() {
  const std::string sources[] = {
      "{%- macro m(c, d='x') %}{% if c is string %}{{ c|trim }}{% elif c %}{% for p in c %}"
      "{{ p.text }}{% endfor %}{% endif %}{% endmacro %}{% set ns = namespace(i=0) %}\n"
      "{%- for m in messages[::-1] if m.role != 'system' %}{% set ns.i = ns.i + loop.index0 %}"
      "{{- '<|im_start|>' ~ m['role'] + '\\n' }}{{ m.content.split('</think>')[-1].lstrip('\\n') }}"
      "{{ loop.last }}{% endfor %}{{ ns.i }}",
      "{% for t in tools or [] %}{{ t | tojson(indent=2) }}{% endfor %}{% for m in messages %}"
      "{% for c in m.tool_calls or [] %}{% for k, v in c.function.arguments|items %}{{ k }}="
      "{{ v if v is string else v|tojson|safe }}{% if not loop.last %}, {% endif %}{% endfor %}"
      "{% else %}{% continue %}{% endfor %}{{ loop.previtem.role }}{% break %}{% endfor %}",
      "{{ range(x) | map('string') | join(',') | upper | replace('1', 'one') }}{# c -#}\n  {% raw "
      "%}"
      "{{ x }}{% endraw %}{% set y %}{{ -x ** 2 // 3 % 5 - 1.5e1 }}{% endset %}{{ y[1:-1] ~ y }}"
      "{{ [1, (2,), {'a': none}] }}{{ 'a' in messages[0] and not 1 <= x < 9 or true }}"
      "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list }}"
      "{{ tools[0] | dictsort | first | last }}{{ [3, 1] | sort(reverse=true) }}"};
  std::vector<std::string> seeds;
  for (const std::string& source : sources) {
    CHECK(jinja::parse_template(source).ok());
    seeds.push_back(source);
    seeds.push_back(source + '\0' + std::string(kVariables));
  }
  return seeds;
}

}  // namespace moray

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moray;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = std::min(input.find('\0'), input.size());
  const auto program = jinja::parse_template(input.substr(0, zero));
  if (!program.ok()) {
    check_line(program.status());
    return 0;
  }
  const auto variables = parse_json_value(zero < size ? input.substr(zero + 1) : kVariables, "v");
  if (!variables.ok()) {
    check_line(variables.status());
    return 0;
  }
  if (!variables->is<jinja::MapRef>()) return 0;
  const jinja::Map& map = *variables->as<jinja::MapRef>();
  const auto first = jinja::render(*program, map, 0);
  const auto second = jinja::render(*program, map, 0);
  CHECK(first.ok() == second.ok());
  if (!first.ok()) {
    check_line(first.status());
    CHECK(first.status().message() == second.status().message());
    return 0;
  }
  CHECK(*first == *second);
  check_marks(*first);
  return 0;
}
