// A GPU as a backend.
#include "src/generate/backend.h"

namespace moray {

Result<Backend> open_gpu_backend(const ModelSource&, const EngineOptions&, int,
                                 std::span<const TokenId>) {
  return Status(StatusCode::kUnsupported, "cuda: this build has no GPU runtime");
}

}  // namespace moray
