// moray info and moray list: what a model holds, and which there are.
#include <fmt/core.h>

#include <algorithm>

#include "moray/tools.h"
#include "src/cli/command.h"
#include "src/cli/model_choice.h"

namespace moray {
namespace {

std::string count_text(int64_t count) {
  const double number = static_cast<double>(count);
  if (number >= 1e9) return fmt::format("{:.2f} B", number / 1e9);
  if (number >= 1e6) return fmt::format("{:.2f} M", number / 1e6);
  return fmt::format("{:.1f} k", number / 1e3);
}

std::string bytes_text(int64_t bytes) {
  const double number = static_cast<double>(bytes);
  if (number >= 1 << 30) return fmt::format("{:.2f} GiB", number / (1 << 30));
  if (number >= 1 << 20) return fmt::format("{:.2f} MiB", number / (1 << 20));
  return fmt::format("{:.1f} KiB", number / (1 << 10));
}

std::string dimensions(const ModelInfo& m) {
  std::string text = fmt::format(
      "layers      {} ({} gated delta, {} full attention), hidden {}\n"
      "attention   {} heads, {} key-value heads of {}, {} rotary\n",
      m.layers, m.delta_layers, m.layers - m.delta_layers, m.hidden, m.heads, m.kv_heads,
      m.head_dim, m.rotary_dim);
  if (m.delta_layers > 0) {
    text += fmt::format("delta net   {} key heads of {}, {} value heads of {}\n", m.delta_key_heads,
                        m.delta_key_dim, m.delta_value_heads, m.delta_value_dim);
  }
  text += fmt::format("experts     {} of {}, {} a token", m.experts, m.expert_dim, m.top_k);
  if (m.shared_expert_dim > 0) text += fmt::format(", shared expert of {}", m.shared_expert_dim);
  return text + fmt::format("\nvocabulary  {} rows{}\ncontext     {} tokens\n", m.vocab_rows,
                            m.tied_embeddings ? ", tied" : "", m.context);
}

std::string parameters(const ModelInfo& m) {
  std::string text = fmt::format("parameters  {} total, {} active a token",
                                 count_text(m.parameters_total), count_text(m.parameters_active));
  if (m.parameters_mtp > 0) text += fmt::format("; MTP head {}", count_text(m.parameters_mtp));
  text += '\n';
  if (m.parameters_stored != m.parameters_total) {
    text += fmt::format("stored      {} parameters; config.json promises {}\n", m.parameters_stored,
                        m.parameters_total);
  }
  if (m.parameters_stored_mtp != m.parameters_mtp) {
    text += fmt::format("stored      {} parameters of the MTP head; config.json promises {}\n",
                        m.parameters_stored_mtp, m.parameters_mtp);
  }
  return text;
}

std::string parts_table(const ModelInfo& m) {
  std::string text = fmt::format("\n{:<18} {:<8} {:>8} {:>10} {:>12}\n", "part", "dtype", "tensors",
                                 "parameters", "bytes");
  for (const ModelPart& part : m.parts) {
    text += fmt::format("{:<18} {:<8} {:>8} {:>10} {:>12}\n", part.part, part.dtype, part.tensors,
                        count_text(part.parameters), bytes_text(part.bytes));
  }
  return text + fmt::format("{:<18} {:<8} {:>8} {:>10} {:>12}\n", "all", "", m.tensors, "",
                            bytes_text(m.bytes));
}

// Whether the model fits this machine's GPUs, or the reason why there is nothing to say.
std::string gpu_lines(const std::string& folder) {
  const auto fits = device_fits(folder);
  if (!fits.ok()) return fmt::format("\ngpu         none: {}\n", one_line(fits.status().message()));
  std::string text = "\n";
  for (const DeviceFit& fit : *fits) {
    text += fmt::format(
        "gpu         {}, {} of {} free; {}\n", fit.name, bytes_text(fit.free_bytes),
        bytes_text(fit.memory_bytes),
        fit.refusal.empty() ? "weights of " + bytes_text(fit.weight_bytes) + " fit" : fit.refusal);
  }
  return text;
}

}  // namespace

Status info_command(const Options& options, Output& output) {
  ASSIGN_OR_RETURN(const std::string folder, find_model(options));
  ASSIGN_OR_RETURN(const ModelInfo info, model_info(folder));
  output.write(fmt::format(
      "folder      {}\nfamily      {}\nlicence     {}\nweights     {}\n", info.folder,
      info.model_type, info.licence.empty() ? "not stated" : info.licence,
      info.block_fp8 ? "FP8 in blocks of 128x128, the rest 16 or 32 bits" : "16 or 32 bits"));
  output.write(dimensions(info) + parameters(info) + parts_table(info) + gpu_lines(folder));
  return output.status();
}

Status list_command(const Options& options, Output& output) {
  const std::vector<FoundModel> models = list_models(options.places);
  if (models.empty()) {
    std::string places;
    for (const auto* folders : {&options.places.model_folders, &options.places.hub_folders}) {
      for (const std::string& folder : *folders) places += (places.empty() ? "" : ", ") + folder;
    }
    return Status(StatusCode::kNotFound,
                  fmt::format("models: found none, expected some in {}",
                              places.empty() ? "a folder named models" : places));
  }
  size_t width = 0;
  for (const FoundModel& model : models) width = std::max(width, model.name.size());
  for (const FoundModel& model : models) {
    output.write(fmt::format("{:<{}}  {}{}\n", model.name, width, model.folder,
                             model.name == kShippedModel ? "  (default)" : ""));
  }
  return output.status();
}

}  // namespace moray
