// Reads a text that a user hands over, and refuses what is no text.
#pragma once

#include <string>

#include "src/base/status.h"
#include "src/cli/options.h"

namespace moray {

// A whole file or pipe. kNotFound, kIo; kInvalidFile for a directory, more than 256 MiB, or text
// that is not UTF-8 or holds a zero byte (the message names the byte offset); kCancelled on Ctrl-C.
Result<std::string> read_text_file(const std::string& path);

// The prompt of -p, -f or stdin; kInvalidArgument when it is empty or not text.
Result<std::string> read_prompt(const PromptSource& source);

}  // namespace moray
