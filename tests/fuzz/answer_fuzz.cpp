// Fuzz entry: an answer, read whole and byte by byte.
//
// Both readings must say the same, and the events' raw bytes must be the answer.
#include <string>
#include <string_view>
#include <vector>

#include "src/base/check.h"
#include "src/text/answer_parser.h"
#include "tests/fuzz/fuzz_entry.h"

namespace moray {
namespace {

const ToolSchemas& tools() {
  static const ToolSchemas schemas = *ToolSchemas::parse(
      R"([{"name":"list"},{"name":"write","parameters":{"properties":{"path":{"type":"string"},)"
      R"("level":{"type":["integer","null"]},"any":{}}}}])");
  return schemas;
}

// One string that two readings share: events with neighbours of one kind joined.
std::string read(std::string_view answer, size_t piece) {
  AnswerParser parser(tools(), AnswerParser::Opening::kAnswer);
  std::vector<AnswerEvent> events;
  for (size_t at = 0; at < answer.size(); at += piece)
    parser.push(answer.substr(at, piece), &events);
  parser.finish(&events);
  std::string shape, raw;
  for (const AnswerEvent& event : events) {
    shape += static_cast<char>('0' + static_cast<int>(event.kind)) + event.text;
    raw += event.raw;
  }
  CHECK(raw == answer);
  return shape;
}

}  // namespace

std::vector<std::string> fuzz_seeds() {
  return {
      "<think>\na</think>\n\nb\n<tool_call>\n<function=write>\n<parameter=path>\na\n"
      "</parameter>\n<parameter=level>\n1\n</parameter>\n</function>\n</tool_call>",
      "<tool_call>\n{\"name\":\"write\",\"arguments\":{\"any\":[1,\"}\"]}}\n</tool_call>",
      "`<function=list>`<function=list><parameter=any>{}</parameter></function>"};
}

}  // namespace moray

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view answer(reinterpret_cast<const char*>(data), size);
  CHECK(moray::read(answer, size + 1) == moray::read(answer, 1));
  return 0;
}
