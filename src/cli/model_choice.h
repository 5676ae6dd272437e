// From what the user typed to a model folder, and from there to a loaded engine.
#pragma once

#include <memory>
#include <string>

#include "moray/engine.h"
#include "src/cli/options.h"

namespace moray {

inline constexpr const char* kShippedModel = "moray-nano";

// The folder of the model that was asked for, or of the one that ships.
Result<std::string> find_model(const Options& options);

using RoutingObserver = decltype(EngineOptions::on_routing);

// Opens it with a progress bar (unless quiet).
Result<std::shared_ptr<const Engine>> open_engine(const Options& options,
                                                  RoutingObserver on_routing = {});

// As open_engine, for commands that need text: an error without a tokenizer.
Result<std::shared_ptr<const Engine>> open_text_engine(const Options& options,
                                                       RoutingObserver on_routing = {});

}  // namespace moray
