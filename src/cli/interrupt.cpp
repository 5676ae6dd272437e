#include "src/cli/interrupt.h"

#include <csignal>

namespace moray {
namespace {

// A signal handler can reach nothing but a static object; it lives in this function alone.
std::atomic<bool>& flag() {
  static std::atomic<bool> is_set{false};
  return is_set;
}

void on_signal(int) {
  flag().store(true, std::memory_order_relaxed);
}

}  // namespace

void install_interrupt_handler() {
  flag().store(false);  // constructs it outside the handler
  struct sigaction action = {};
  action.sa_handler = on_signal;
  // Without SA_RESTART a read that waits for the keyboard returns, so that Ctrl-C is heard there.
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

const std::atomic<bool>& interrupt_flag() {
  return flag();
}

}  // namespace moray
