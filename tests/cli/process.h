// Runs a program as a user does: arguments, stdin, signals; and looks at what came out.
//
// Every wait has a bound: a program that hangs is killed after kSecondsMax and the test fails.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

namespace moray {

inline constexpr int kSecondsMax = 60;

struct ProcessResult {
  int exit_code = -1;  // 128 + signal when killed by one
  std::string out;
  std::string err;
};

struct ProcessRequest {
  std::vector<std::string> arguments;    // the program first
  std::string input;                     // given to stdin, which is then closed
  std::string stdout_path;               // stdout goes there instead of into `out`
  std::vector<std::string> environment;  // "NAME=value", besides PATH
  std::string folder;                    // to start in
  int64_t address_space_bytes = 0;       // ulimit -v; 0: none
  // Called with the pid after each piece of output; may signal it. False closes the reading end.
  std::function<bool(pid_t, const std::string& out)> on_output;
};

namespace process_detail {

[[noreturn]] inline void become(const ProcessRequest& request, const int in[2], const int out[2],
                                const int err[2]) {
  dup2(in[0], 0);
  if (request.stdout_path.empty()) {
    dup2(out[1], 1);
  } else {
    dup2(open(request.stdout_path.c_str(), O_WRONLY), 1);
  }
  dup2(err[1], 2);
  for (int descriptor = 3; descriptor < 64; ++descriptor) close(descriptor);
  if (!request.folder.empty() && chdir(request.folder.c_str()) != 0) _exit(126);
  if (request.address_space_bytes > 0) {
    const auto bytes = static_cast<rlim_t>(request.address_space_bytes);
    const rlimit limit = {bytes, bytes};
    setrlimit(RLIMIT_AS, &limit);
  }
  signal(SIGPIPE, SIG_DFL);
  std::vector<char*> arguments;
  for (const std::string& argument : request.arguments) {
    arguments.push_back(const_cast<char*>(argument.c_str()));
  }
  arguments.push_back(nullptr);
  std::vector<char*> environment = {const_cast<char*>("PATH=/usr/bin:/bin")};
  for (const std::string& entry : request.environment) {
    environment.push_back(const_cast<char*>(entry.c_str()));
  }
  environment.push_back(nullptr);
  execve(arguments[0], arguments.data(), environment.data());
  _exit(127);
}

inline bool read_some(int descriptor, std::string* text) {
  char buffer[4096];
  const ssize_t count = read(descriptor, buffer, sizeof(buffer));
  if (count > 0) text->append(buffer, static_cast<size_t>(count));
  return count > 0;
}

}  // namespace process_detail

inline ProcessResult run_process(const ProcessRequest& request) {
  namespace detail = process_detail;
  int in[2], out[2], err[2];
  if (pipe(in) != 0 || pipe(out) != 0 || pipe(err) != 0) return {};
  signal(SIGPIPE, SIG_IGN);
  const pid_t pid = fork();
  if (pid == 0) detail::become(request, in, out, err);
  close(in[0]);
  close(out[1]);
  close(err[1]);
  size_t sent = 0;
  ProcessResult result;
  // Inputs of tests fit a pipe's buffer, so writing cannot block.
  sent += static_cast<size_t>(
      std::max<ssize_t>(0, write(in[1], request.input.data(), request.input.size())));
  EXPECT_EQ(sent, request.input.size());
  close(in[1]);
  bool is_out_open = true, is_err_open = true;
  const time_t deadline = time(nullptr) + kSecondsMax;
  while (is_out_open || is_err_open) {
    pollfd polled[2] = {{is_out_open ? out[0] : -1, POLLIN, 0},
                        {is_err_open ? err[0] : -1, POLLIN, 0}};
    poll(polled, 2, 1000);
    if (time(nullptr) > deadline) {
      ADD_FAILURE() << "still running after " << kSecondsMax << " s";
      kill(pid, SIGKILL);
      break;
    }
    if (polled[1].revents != 0) is_err_open = detail::read_some(err[0], &result.err);
    if (polled[0].revents == 0) continue;
    is_out_open = detail::read_some(out[0], &result.out);
    if (is_out_open && request.on_output && !request.on_output(pid, result.out)) {
      close(out[0]);
      is_out_open = false;
      out[0] = -1;
    }
  }
  if (out[0] >= 0) close(out[0]);
  close(err[0]);
  int status = 0;
  waitpid(pid, &status, 0);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

}  // namespace moray
