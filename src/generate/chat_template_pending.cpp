// Stands in for ChatTemplate::load until src/text has it; then this file goes.
#include "moray/text.h"

namespace moray {

Result<std::shared_ptr<const ChatTemplate>> ChatTemplate::load(const std::string& folder) {
  return Status(StatusCode::kNotFound, folder + ": chat templates are not in this build");
}

}  // namespace moray
