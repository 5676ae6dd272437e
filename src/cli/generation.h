// What run and complete share: sampling flags over the model's defaults, streaming, statistics.
#pragma once

#include <memory>
#include <vector>

#include "src/cli/options.h"
#include "src/cli/output.h"

namespace moray {

// Sampling flags that no model would accept, refused before one is loaded.
Status check_flags(const SamplingFlags& flags);

// `base` with everything the user gave put over it.
SamplingOptions apply_flags(SamplingOptions base, const SamplingFlags& flags);

// What computed, what was loaded and what a user should know about it: lines for stderr.
std::string engine_lines(const Engine& engine);

// Samples after `prompt`, writes the text as it comes, then statistics to stderr unless quiet.
// Ctrl-C ends it early with kCancelled, after the statistics.
Status generate_to(const Engine& engine, const std::vector<TokenId>& prompt,
                   GenerateOptions generate, const Options& options, Output& output);

}  // namespace moray
