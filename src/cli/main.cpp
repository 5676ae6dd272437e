// moray: parse, run one command, report. The only place that turns a Status into an exit code.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
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
    case Command::kSelftest:
      return selftest_command(options, output);
    case Command::kPlan:
      return plan_command(options, output);
    case Command::kSimulate:
      return simulate_command(options, output);
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

// A file opened while stdout or stderr is closed would get its number, and the text meant for the
// stream. What stands in here refuses to be used, so that the loss is still an error.
void occupy_closed_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) != -1 || errno != EBADF) continue;
    // open() takes the lowest free number: this stream's.
    if (open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY) != stream) return;
  }
}

ExitCode moray_main(int argc, const char* const* argv) {
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is an error of write(), handled in output.cpp
  std::signal(SIGXFSZ, SIG_IGN);  // so is a file at its size limit
  occupy_closed_streams();
  install_shrink_guard(static_cast<int>(ExitCode::kBadFile));
  Output output = Output::standard();
  const ParsedOptions parsed = parse_options(argc, argv);
  if (!parsed.options) return show_text(parsed, output);
  install_interrupt_handler();
  Status status = dispatch_guarded(*parsed.options, output);
  const Status written = output.finish();
  if (output.is_closed()) return ExitCode::kOk;
  if (!written.ok()) status = written;
  if (status.ok()) return ExitCode::kOk;
  if (is_interrupted()) {
    print_note("interrupted: what was printed is incomplete");
    return ExitCode::kInterrupted;
  }
  print_error_line(status);
  return exit_code_of(status.code());
}

}  // namespace
}  // namespace moray

int main(int argc, char** argv) {
  return static_cast<int>(moray::moray_main(argc, argv));
}
