// commit.h is written at every build by write_commit.cmake and changes only when the commit does.
#include "src/cli/version.h"

#include "generated/commit.h"

namespace moray {

std::string version_line() {
  return "moray " MORAY_VERSION " (commit " MORAY_COMMIT ", " MORAY_BUILD_TYPE ", " MORAY_COMPILER
         ")";
}

std::string commit_id() {
  return MORAY_COMMIT;
}

}  // namespace moray
