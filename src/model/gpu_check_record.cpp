#include "src/model/gpu_check_record.h"

#include <charconv>

#include "src/gpu/cubin_cache.h"

namespace moray {
namespace {

// First line of a record. Raised when a check becomes stricter or a group means something else.
constexpr std::string_view kVersion = "moray kernel check 1";

// Up to `end`, which is taken as well; nullopt if it never comes.
std::optional<std::string_view> take(std::string_view& text, char end) {
  const size_t at = text.find(end);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view part = text.substr(0, at);
  text.remove_prefix(at + 1);
  return part;
}

}  // namespace

GpuCheckRecord::GpuCheckRecord(std::string folder, const std::string& card,
                               const std::string& kernels)
    : folder_(std::move(folder)),
      key_(gpu::CacheKey().add(kVersion).add(card).add(kernels).hex()) {}

std::optional<std::vector<KernelFault>> GpuCheckRecord::load() const {
  const std::optional<std::string> bytes = gpu::CubinCache(folder_).load(key_);
  if (!bytes) return std::nullopt;
  std::string_view rest = *bytes;
  if (take(rest, '\n') != kVersion) return std::nullopt;
  std::vector<KernelFault> faults;
  while (!rest.empty()) {
    const auto group = take(rest, '\t');
    const auto kernel = take(rest, '\t');
    const auto what = take(rest, '\n');
    int number = -1;
    if (group) std::from_chars(group->data(), group->data() + group->size(), number);
    if (!what || number < 0 || number > int(KernelGroup::kWgmmaAttention)) return std::nullopt;
    faults.push_back({KernelGroup(number), std::string(*kernel), std::string(*what)});
  }
  return faults;
}

Status GpuCheckRecord::store(std::span<const KernelFault> faults) const {
  std::string text = std::string(kVersion) + '\n';
  for (const KernelFault& fault : faults) {
    text += std::to_string(int(fault.group)) + '\t' + fault.kernel + '\t' + fault.what + '\n';
  }
  return gpu::CubinCache(folder_).store(key_, text);
}

}  // namespace moray
