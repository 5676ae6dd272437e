// Checks of attention: steps of every width, and blocks by mma.sync and on warpgroup products.
#include "src/kernels/check/attention_sequence.h"
#include "src/kernels/check/checks.h"

namespace moray::check {
namespace {

using attention::DeviceSequence;
using attention::Sequence;

// Outputs of all tokens, each alone and their root mean square, then the cache.
void compare_run(Checker& checker, std::string_view kernel, std::string_view cache_kernel,
                 const Sequence& s, const std::vector<uint16_t>& out,
                 const DeviceSequence& on_device, bool weights_round) {
  const auto found = floats_of(out);
  checker.compare(kernel, "an output", int64_t(found.size()), 1, [&](int64_t i, Worst& w) {
    w.take(found[size_t(i)], s.out[size_t(i)], attention::element_bound(s.out[size_t(i)]));
  });
  checker.compare(kernel, "the outputs' error", 1, 1, [&](int64_t, Worst& w) {
    double squares = 0, errors = 0;
    for (size_t i = 0; i < found.size(); ++i) {
      squares += double{s.out[i]} * s.out[i];
      errors += std::pow(double{found[i]} - s.out[i], 2);
    }
    w.take(std::sqrt(errors / squares), 0, attention::rms_bound(weights_round));
  });
  // Rows of the call near the oracle's, all others as they were: bit for bit, NaN included.
  const auto keys = on_device.keys.read(), values = on_device.values.read();
  checker.compare(cache_kernel, "the cache", int64_t(keys.size()), 1, [&](int64_t i, Worst& w) {
    const auto at = size_t(i);
    const int row = int(i / s.d.head_dim % s.capacity());
    w.take_equal(values[at], s.values[at]);
    if (row < s.known || row >= s.end) return w.take_equal(keys[at], s.keys[at]);
    const double expected = bf16_to_float(s.keys[at]);
    w.take(bf16_to_float(keys[at]), expected, attention::key_bound(expected));
  });
}

}  // namespace

void check_attention(Checker& checker, const Subject& subject) {
  const cuda::Constants& c = subject.constants;
  const attention::Dimensions d{
      c.heads,      c.kv_heads, c.head_dim,
      c.rotary_dim, c.has_gate, c.zero_centred_norms ? NormKind::kZeroCentred : NormKind::kPlain,
      c.rope_scale, c.norm_eps};
  cuda::AttentionKernels by_mma = subject.attention;
  by_mma.prefill_wgmma = {};
  for (const int known : checker.sizes({60}, {0, 1, 63, 200})) {
    for (const int tokens : checker.sizes({70}, {1, 64, 65, 130})) {
      Sequence s = attention::make_sequence(checker.random(), d, known, tokens, true);
      const Sequence before = s;
      attention::run_oracle(s);
      for (const int step : checker.sizes({1, 3, 13}, {1, 2, 3, 8, 9, 16})) {
        const DeviceSequence on_device(checker.site(), before);
        const auto out =
            attention::run_steps(checker.site(), subject.attention, s, on_device, step);
        compare_run(checker, "attention_step", "attention_step", s, out, on_device, false);
      }
      const DeviceSequence on_device(checker.site(), before);
      const auto out =
          attention::run_blocks(checker.site(), by_mma, s, on_device, {known + tokens / 2, s.end});
      compare_run(checker, "attention_prefill", "attention_rows", s, out, on_device, true);
      if (!subject.attention.prefill_wgmma) continue;
      const DeviceSequence other(checker.site(), before);
      const auto by_wgmma =
          attention::run_blocks(checker.site(), subject.attention, s, other, {s.end});
      compare_run(checker, "attention_prefill_wgmma", "attention_rows", s, by_wgmma, other, true);
    }
  }
}

}  // namespace moray::check
