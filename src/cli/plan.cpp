// moray plan: where every byte of a model would lie, and how fast that would be.
#include <fmt/core.h>

#include "moray/tools.h"
#include "src/cli/command.h"
#include "src/cli/model_choice.h"

namespace moray {
namespace {

std::string table(const MemoryPlan& plan) {
  std::string text = fmt::format("{:<6} {:<46} {:>12}\n", "place", "what", "MiB");
  for (const PlannedBytes& row : plan.rows) {
    text += fmt::format("{:<6} {:<46} {:>12.1f}\n", row.place, row.what,
                        static_cast<double>(row.bytes) / (1 << 20));
  }
  return text;
}

std::string prediction(const MemoryPlan& plan, const PlanQuestion& question) {
  std::string text = fmt::format(
      "\na token   {:.1f} MB at the full context, {:.1f} MB of them routed experts\n"
      "rates     VRAM {} GB/s, link {} GB/s, disk {} GB/s, products {} TFLOP/s\n",
      static_cast<double>(plan.decode_bytes) / 1e6, static_cast<double>(plan.routed_bytes) / 1e6,
      question.vram_gbps, question.link_gbps, question.disk_gbps, question.tflops);
  if (!plan.fits) return text;
  return text +
         fmt::format(
             "hit rate  {:.3f}{}\n"
             "decode    {:.1f} tokens/s predicted, one sequence, no drafts, nothing overlapped\n"
             "prefill   {:.0f} tokens/s predicted\n",
             plan.hit_rate,
             plan.slots == plan.experts || question.hit_rate ? "" : " (LRU on a made-up trace)",
             plan.decode_tokens_per_s, plan.prefill_tokens_per_s);
}

}  // namespace

Status plan_command(const Options& options, Output& output) {
  ASSIGN_OR_RETURN(const std::string folder, find_model(options));
  ASSIGN_OR_RETURN(const MemoryPlan plan, plan_memory(folder, options.plan));
  std::string text = table(plan) + prediction(plan, options.plan) + "\nverdict   " + plan.verdict;
  for (const std::string& setting : plan.nearest) text += "\nnearest   " + setting;
  if (plan.fits && !plan.is_resident) {
    text += "\nnote      this build runs a model on a GPU only with all of it in VRAM";
  }
  output.write(text + "\n");
  return output.status();
}

}  // namespace moray
