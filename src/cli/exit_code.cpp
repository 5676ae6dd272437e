#include "src/cli/exit_code.h"

#include <fmt/core.h>

#include <array>

namespace moray {
namespace {

struct Row {
  ExitCode code;
  const char* meaning;
};

constexpr std::array<Row, 8> kRows = {{
    {ExitCode::kOk, "done; also when the reader of the output has closed it (moray ... | head)"},
    {ExitCode::kUsage, "an option, a prompt or a request is wrong"},
    {ExitCode::kBadFile, "a model or text file is damaged, inconsistent or not what it should be"},
    {ExitCode::kNotFound, "a model or file does not exist"},
    {ExitCode::kUnsupported, "the model or this machine is outside what this build does"},
    {ExitCode::kExhausted, "memory, context or disk space does not suffice"},
    {ExitCode::kIo, "the operating system refused to read or write"},
    {ExitCode::kInterrupted, "stopped by Ctrl-C; what was printed is incomplete"},
}};

}  // namespace

ExitCode exit_code_of(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return ExitCode::kOk;
    case StatusCode::kInvalidArgument:
      return ExitCode::kUsage;
    case StatusCode::kInvalidFile:
      return ExitCode::kBadFile;
    case StatusCode::kNotFound:
      return ExitCode::kNotFound;
    case StatusCode::kUnsupported:
      return ExitCode::kUnsupported;
    case StatusCode::kExhausted:
      return ExitCode::kExhausted;
    case StatusCode::kIo:
      return ExitCode::kIo;
    case StatusCode::kCancelled:
      return ExitCode::kInterrupted;
  }
  return ExitCode::kIo;
}

std::string exit_code_table() {
  std::string table;
  for (const Row& row : kRows) {
    table += fmt::format("  {:>3}  {}\n", static_cast<int>(row.code), row.meaning);
  }
  return table;
}

}  // namespace moray
