// quantization_config and dtype of config.json: the block FP8 of the official repositories, or
// plain 16/32-bit weights. Whether a given tensor is FP8 is decided by the tensor itself
// (checkpoint.h); this only says what the folder claims and refuses schemes Moray does not read.
#include <fmt/format.h>

#include <utility>

#include "src/formats/model_config_parts.h"
#include "src/tensor/view.h"

namespace moray {
namespace {

void refuse(const JsonFields& fields, std::string_view name, const std::string& found,
            std::string_view expected) {
  fields.complaints().add_unsupported(
      fmt::format("{}: found {}, expected {}", fields.full_name(name), found, expected));
}

void read_block_fp8(const JsonFields& quantisation, ModelConfig& config) {
  const auto method = quantisation.string("quant_method");
  if (!method) {
    quantisation.complain("quant_method", "nothing", "'fp8'");
    return;
  }
  if (*method != "fp8") {
    refuse(quantisation, "quant_method", in_quotes(*method), "'fp8'");
    return;
  }
  config.block_fp8 = true;
  const std::string format = quantisation.string("fmt").value_or("e4m3");
  if (format != "e4m3") refuse(quantisation, "fmt", in_quotes(format), "'e4m3'");
  const std::string scheme = quantisation.string("activation_scheme").value_or("dynamic");
  if (scheme != "dynamic")
    refuse(quantisation, "activation_scheme", in_quotes(scheme), "'dynamic'");
  const std::string scale = quantisation.string("scale_fmt").value_or("float");
  if (scale != "float") refuse(quantisation, "scale_fmt", in_quotes(scale), "'float'");

  const auto block = quantisation.integers("weight_block_size", 1, 1 << 20);
  if (block != std::vector<int64_t>{kScaleBlock, kScaleBlock}) {
    refuse(quantisation, "weight_block_size", fmt::format("[{}]", fmt::join(block, ", ")),
           "[128, 128]");
  }
  for (std::string_view name : {"modules_to_not_convert", "ignored_layers"}) {
    for (std::string& module : quantisation.strings(name).value_or(std::vector<std::string>{})) {
      config.not_converted.push_back(std::move(module));
    }
  }
}

void read_dtype(const JsonFields& fields, ModelConfig& config) {
  const std::string_view name = fields.has("dtype") ? "dtype" : "torch_dtype";
  const auto dtype = fields.string(name);
  if (!dtype) return;
  if (*dtype == "bfloat16") {
    config.dtype = DType::kBF16;
  } else if (*dtype == "float16") {
    config.dtype = DType::kF16;
  } else if (*dtype == "float32") {
    config.dtype = DType::kF32;
  } else {
    refuse(fields, name, in_quotes(*dtype), "'bfloat16', 'float16' or 'float32'");
  }
}

}  // namespace

void read_quantisation(const JsonFields& top, const JsonFields& text, ModelConfig& config) {
  const JsonFields& holder = top.has("quantization_config") ? top : text;
  const auto quantisation = holder.object("quantization_config");
  if (quantisation) read_block_fp8(*quantisation, config);
  read_dtype(text.has("dtype") || text.has("torch_dtype") ? text : top, config);
}

}  // namespace moray
