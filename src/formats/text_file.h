// Whole small text files (config.json and its neighbours) as strings.
#pragma once

#include <cstddef>
#include <string>

#include "src/base/status.h"

namespace moray {

// The bytes of `path`. Errors as MappedFile::open, and kInvalidFile beyond `bytes_max`, checked
// before anything is allocated.
Result<std::string> read_text_file(const std::string& path, size_t bytes_max);

}  // namespace moray
