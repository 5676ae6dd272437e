// What run and complete share: sampling flags over the model's defaults, streaming, statistics.
#pragma once

#include <memory>
#include <vector>

#include "src/cli/options.h"
#include "src/cli/output.h"

namespace moray {

// `base` with everything the user gave put over it.
SamplingOptions apply_flags(SamplingOptions base, const SamplingFlags& flags);

// Samples after `prompt`, writes the text as it comes, then statistics to stderr unless quiet.
// Ctrl-C ends it early with kCancelled, after the statistics.
Status generate_to(const Engine& engine, const std::vector<TokenId>& prompt,
                   GenerateOptions generate, const Options& options, Output& output);

}  // namespace moray
