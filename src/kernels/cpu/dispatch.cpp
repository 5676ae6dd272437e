#include "src/kernels/cpu/dispatch.h"

#include <string>

#include "src/kernels/cpu/kernels.h"
#include "src/kernels/cpu/tables.h"

namespace moray::cpu {

namespace {

struct Feature {
  bool present;
  std::string_view name;
};

// Names the absent ones, "a, b"; empty if the machine has all.
template <size_t count>
std::string missing_features(const Feature (&features)[count]) {
  std::string missing;
  for (const Feature& feature : features) {
    if (feature.present) continue;
    if (!missing.empty()) missing += ", ";
    missing += feature.name;
  }
  return missing;
}

// The builtin also asks the operating system whether it saves the wide registers.
std::string missing_for_avx2() {
  return missing_features({{__builtin_cpu_supports("avx2") != 0, "AVX2"},
                           {__builtin_cpu_supports("fma") != 0, "FMA"},
                           {__builtin_cpu_supports("f16c") != 0, "F16C"},
                           {__builtin_cpu_supports("bmi") != 0, "BMI1"},
                           {__builtin_cpu_supports("bmi2") != 0, "BMI2"}});
}

std::string missing_for_avx512() {
  return missing_features({{__builtin_cpu_supports("avx512f") != 0, "AVX512F"},
                           {__builtin_cpu_supports("avx512bw") != 0, "AVX512BW"},
                           {__builtin_cpu_supports("avx512vl") != 0, "AVX512VL"},
                           {__builtin_cpu_supports("avx512dq") != 0, "AVX512DQ"}});
}

Kernels make_avx2_kernels() {
  Kernels table{};
  table.level = Level::kAvx2;
  fill_elementwise_avx2(table);
  fill_linear_avx2(table);
  fill_gdn_avx2(table);
  fill_attention_avx2(table);
  return table;
}

Kernels make_avx512_kernels() {
  Kernels table{};
  table.level = Level::kAvx512;
  fill_elementwise_avx512(table);
  fill_linear_avx512(table);
  fill_gdn_avx512(table);
  fill_attention_avx512(table);
  if (__builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi")) {
    fill_linear_avx512_bf16(table);
  }
  return table;
}

}  // namespace

std::string_view level_name(Level level) {
  return level == Level::kAvx2 ? "avx2" : "avx512";
}

Result<Level> cpu_level() {
  const std::string missing = missing_for_avx2();
  if (!missing.empty()) {
    return Status(StatusCode::kUnsupported,
                  "cpu: found no " + missing + ", expected x86-64-v3 (Haswell, Zen or newer)");
  }
  return missing_for_avx512().empty() ? Level::kAvx512 : Level::kAvx2;
}

Result<const Kernels*> kernels_for(std::optional<Level> level) {
  ASSIGN_OR_RETURN(const Level best, cpu_level());
  const Level chosen = level.value_or(best);
  if (chosen == Level::kAvx512 && best != Level::kAvx512) {
    return Status(StatusCode::kUnsupported,
                  "cpu: found no " + missing_for_avx512() + ", expected them for level avx512");
  }
  if (chosen == Level::kAvx2) {
    static const Kernels avx2 = make_avx2_kernels();
    return &avx2;
  }
  static const Kernels avx512 = make_avx512_kernels();
  return &avx512;
}

const Kernels& best_kernels() {
  static const Kernels& best = *kernels_for(std::nullopt).value();
  return best;
}

}  // namespace moray::cpu
