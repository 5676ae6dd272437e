// moray: parse, run one command, report. The only place that turns a Status into an exit code.
#include <csignal>
#include <new>

#include "src/base/mapped_file.h"
#include "src/cli/command.h"
#include "src/cli/interrupt.h"

namespace moray {
namespace {

Status dispatch(const Options& options, Output& output) {
  switch (options.command) {
    case Command::kRun:
      return run_command(options, output);
    case Command::kComplete:
      return complete_command(options, output);
    case Command::kInfo:
      return info_command(options, output);
    case Command::kList:
      return list_command(options, output);
    case Command::kTokenize:
      return tokenize_command(options, output);
    case Command::kEval:
      return eval_command(options, output);
    case Command::kBench:
      return bench_command(options, output);
  }
  return Status();
}

Status dispatch_guarded(const Options& options, Output& output) {
  try {
    return dispatch(options, output);
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kExhausted, "memory: found none left, expected more");
  }
}

// A parsed text (help, version) or a refused command line.
ExitCode show_text(const ParsedOptions& parsed, Output& output) {
  if (parsed.exit_code != ExitCode::kOk) {
    print_note(parsed.text);
    return parsed.exit_code;
  }
  output.write(parsed.text);
  const Status status = output.finish();
  if (status.ok() || output.is_closed()) return ExitCode::kOk;
  print_error_line(status);
  return exit_code_of(status.code());
}

ExitCode moray_main(int argc, const char* const* argv) {
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is an error of write(), handled in output.cpp
  install_shrink_guard(static_cast<int>(ExitCode::kBadFile));
  Output output = Output::standard();
  const ParsedOptions parsed = parse_options(argc, argv);
  if (!parsed.options) return show_text(parsed, output);
  install_interrupt_handler();
  Status status = dispatch_guarded(*parsed.options, output);
  const Status written = output.finish();
  if (output.is_closed()) return ExitCode::kOk;
  if (!written.ok()) status = written;
  if (is_interrupted()) return ExitCode::kInterrupted;
  if (status.ok()) return ExitCode::kOk;
  print_error_line(status);
  return exit_code_of(status.code());
}

}  // namespace
}  // namespace moray

int main(int argc, char** argv) {
  return static_cast<int>(moray::moray_main(argc, argv));
}
