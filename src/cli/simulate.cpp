// moray simulate: a routing trace decoded with some experts in VRAM, by arithmetic alone.
#include <fmt/core.h>

#include "moray/tools.h"
#include "src/cli/command.h"
#include "src/cli/interrupt.h"
#include "src/cli/model_choice.h"

namespace moray {
namespace {

Result<RoutingTrace> find_trace(const Options& options, const MemoryPlan& plan, int64_t top_k) {
  if (options.trace.empty()) {
    RoutingTrace made = make_routing_trace({.tokens = options.made_tokens,
                                            .layers = plan.layers,
                                            .experts = plan.experts,
                                            .top_k = top_k,
                                            .cancel = &interrupt_flag()},
                                           options.made_seed);
    if (is_interrupted()) return Status(StatusCode::kCancelled, "interrupted");
    return made;
  }
  ASSIGN_OR_RETURN(RoutingTrace trace, read_routing_trace(options.trace));
  if (trace.layers == plan.layers && trace.experts == plan.experts && trace.top_k == top_k) {
    return trace;
  }
  return Status(StatusCode::kInvalidFile,
                fmt::format("{}: found {} layers, {} experts, top-{}, expected {}, {}, top-{} (the "
                            "model's)",
                            options.trace, trace.layers, trace.experts, trace.top_k, plan.layers,
                            plan.experts, top_k));
}

std::string report(const RoutingTrace& trace, const SimulatedRun& run) {
  const ReuseStatistics reuse = measure_reuse(trace);
  std::string text = fmt::format(
      "trace     {} tokens, {} layers, {} experts, top-{}\n"
      "reuse     {:.1f} % on the next token, {:.1f} % within 8, median distance {}\n"
      "hits      {:.2f} % ({} hits, {} misses)\n",
      trace.tokens(), trace.layers, trace.experts, trace.top_k, 100 * reuse.repeats,
      100 * reuse.within_8, reuse.median_distance, 100 * run.hit_rate(), run.hits, run.misses);
  if (run.seconds > 0) {
    text += fmt::format("stall     {:.1f} % of the time\ndecode    {:.1f} tokens/s\n",
                        100 * run.stall_seconds / run.seconds,
                        static_cast<double>(run.tokens) / run.seconds);
  }
  return text + fmt::format("requests  {} ({} failed), {} reads repeated\n", run.requests,
                            run.failed_requests, run.retries);
}

}  // namespace

Status simulate_command(const Options& options, Output& output) {
  ASSIGN_OR_RETURN(const std::string folder, find_model(options));
  ASSIGN_OR_RETURN(const MemoryPlan plan, plan_memory(folder, {.context = 1}));
  const int64_t top_k = plan.routed_bytes / (plan.expert_bytes * plan.layers);
  ASSIGN_OR_RETURN(const RoutingTrace trace, find_trace(options, plan, top_k));
  SlotSimulation simulation = options.simulation;
  simulation.cancel = &interrupt_flag();
  simulation.expert_bytes = plan.expert_bytes;
  simulation.other_bytes = plan.decode_bytes - plan.routed_bytes;
  ASSIGN_OR_RETURN(const SimulatedRun run, simulate_slots(trace, simulation));
  output.write(report(trace, run));
  return output.status();
}

}  // namespace moray
