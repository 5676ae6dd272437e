// Checks of the gated delta net: steps and blocks of one sequence against the plain recurrence, and
// the states that they leave.
#include "src/kernels/check/checks.h"
#include "src/kernels/check/delta_condition.h"

namespace moray::check {
namespace {

using delta::HostState;
using delta::Machine;
using delta::Sequence;

void compare_states(Checker& checker, std::string_view kernel, const HostState& actual,
                    const HostState& expected, int position) {
  const auto found = actual.held(position), wanted = expected.held(position);
  for (size_t i = 0; i < found.size(); ++i) {
    double largest = 0;
    for (const float value : wanted[i]) largest = std::max(largest, std::abs(double{value}));
    checker.compare(
        kernel, delta::kStateNames[i], int64_t(found[i].size()), 1, [&](int64_t at, Worst& w) {
          w.take(found[i][size_t(at)], wanted[i][size_t(at)], delta::kStateBounds[i] * largest);
        });
  }
}

}  // namespace

// The three kernels of a block hand their results on in a form of their own, so they are held to
// the oracle together, under the name of the first.
void check_delta(Checker& checker, const Subject& subject) {
  const cuda::Constants& c = subject.constants;
  const delta::Dimensions d{c.key_heads, c.value_heads, c.key_dim,
                            c.value_dim, c.conv_taps,   c.norm_eps};
  for (const int tokens : checker.sizes({70}, {1, 63, 64, 65, 130, 200})) {
    const Sequence s = delta::make_sequence(checker.random(), d, tokens);
    HostState plain(d);
    const auto expected = delta::run_oracle(s, 0, tokens, plain);

    Machine stepped(checker.site(), subject.delta, s);
    stepped.step(0, tokens, {1, 16, 7, 2, 9});
    const auto by_step = floats_of(stepped.out());
    checker.compare("delta_step", "an output", int64_t(expected.size()), 1,
                    [&](int64_t i, Worst& w) {
                      w.take(by_step[size_t(i)], expected[size_t(i)],
                             delta::step_bound(d, expected[size_t(i)]));
                    });
    compare_states(checker, "delta_step", stepped.state(), plain, tokens);

    for (const std::vector<int>& blocks : {std::vector<int>{tokens}, {37, 200}}) {
      Machine filled(checker.site(), subject.delta, s);
      filled.prefill(0, tokens, blocks);
      const auto by_block = floats_of(filled.out());
      const delta::PrefillBound bound(s);
      checker.compare("delta_prepare", "an output", int64_t(expected.size()), 1,
                      [&](int64_t i, Worst& w) {
                        const float found = by_block[size_t(i)], wanted = expected[size_t(i)];
                        w.take(found, wanted, bound(i, found, wanted));
                      });
      checker.compare("delta_prepare", "the outputs' error", 1, 1, [&](int64_t, Worst& w) {
        double errors = 0, squares = 0;
        for (size_t i = 0; i < expected.size(); ++i) {
          errors += std::pow(double{by_block[i]} - expected[i], 2);
          squares += std::pow(double{expected[i]}, 2);
        }
        w.take(std::sqrt(errors / squares), 0, delta::prefill_rms_bound());
      });
      compare_states(checker, "delta_prepare", filled.state(), plain, tokens);
    }
  }
}

}  // namespace moray::check
