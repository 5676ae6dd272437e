// Ctrl-C: the first asks the running command to stop cleanly, the second kills.
#pragma once

#include <atomic>

namespace moray {

// Installs the handler for SIGINT and SIGTERM. After the first signal the default action is back.
void install_interrupt_handler();

// Set by the handler; handed to the engine as GenerateOptions::cancel.
const std::atomic<bool>& interrupt_flag();
inline bool is_interrupted() {
  return interrupt_flag().load(std::memory_order_relaxed);
}

}  // namespace moray
