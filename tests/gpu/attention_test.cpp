// Attention on the GPU against the full softmax of the oracle: a decode step and a prefill block.
#include "tests/gpu/attention_support.h"

namespace moray::attention {
namespace {

TEST(GpuAttentionStep, AgreesWithTheOracle) {
  MORAY_GPU_TEST();
  Random random;
  SCOPED_TRACE(random.trace());
  const auto stream = gpu::test_stream();
  ASSERT_NE(stream, nullptr);
  for (const Dimensions& d : kShapes) {
    const cuda::AttentionKernels* const kernels = kernels_of(d);
    ASSERT_NE(kernels, nullptr);
    for (const auto& [known, tokens] : {std::pair{0, 1},
                                        {0, 2},
                                        {0, 16},
                                        {1, 1},
                                        {126, 4},
                                        {127, 1},
                                        {127, 2},
                                        {128, 1},
                                        {255, 3},
                                        {700, 5},
                                        {1290, 16},
                                        {3000, 1}}) {
      SCOPED_TRACE(trace(d) + " position " + std::to_string(known) + " tokens " +
                   std::to_string(tokens));
      Sequence s = make_sequence(random, d, known, tokens, false);
      const DeviceSequence on_device(*stream, s);
      run_oracle(s);
      expect_agreement(run_steps(*stream, *kernels, s, on_device, tokens), s.out, false);
      expect_cache(s, on_device);
    }
  }
}

// A step over the border where splits become longer: its tokens are combined differently.
TEST(GpuAttentionStep, BitsDoNotDependOnTheTokensOfTheStep) {
  MORAY_GPU_TEST();
  Random random;
  SCOPED_TRACE(random.trace());
  const auto stream = gpu::test_stream();
  ASSERT_NE(stream, nullptr);
  for (const Dimensions& d : kShapes) {
    SCOPED_TRACE(trace(d));
    const cuda::AttentionKernels* const kernels = kernels_of(d);
    ASSERT_NE(kernels, nullptr);
    const cuda::AttentionShape& shape = kernels->shape;
    const int border =
        cuda::kAttentionTileKeys * cuda::attention_splits(shape.multiprocessors, shape.kv_heads);
    for (int known : {0, 120, 1020, border - 8}) {
      SCOPED_TRACE(known);
      const Sequence s = make_sequence(random, d, known, 16, false);
      const DeviceSequence alone(*stream, s);
      const auto expected = run_steps(*stream, *kernels, s, alone, 1);
      for (int step : {2, 3, 5, 16}) {
        const DeviceSequence together(*stream, s);
        EXPECT_EQ(run_steps(*stream, *kernels, s, together, step), expected) << "step " << step;
        EXPECT_EQ(together.keys.read(), alone.keys.read());
        EXPECT_EQ(together.values.read(), alone.values.read());
      }
    }
  }
}

// One capture serves every position: lengths come from device memory.
TEST(GpuAttentionStep, CapturedStepFollowsThePosition) {
  MORAY_GPU_TEST();
  Random random;
  SCOPED_TRACE(random.trace());
  const auto stream = gpu::test_stream();
  ASSERT_NE(stream, nullptr);
  const cuda::AttentionKernels* const kernels = kernels_of(k35b);
  ASSERT_NE(kernels, nullptr);
  const Sequence s = make_sequence(random, k35b, 380, 8, false);
  const DeviceSequence plain(*stream, s), captured(*stream, s);
  const auto expected = run_steps(*stream, *kernels, s, plain, 1);

  StepBuffers buffers(*stream, kernels->shape);
  const DeviceArray<float> q_gate(*stream, size_t(s.query_width())),
      k(*stream, size_t(s.kv_width())), v(*stream, size_t(s.kv_width()));
  const DeviceArray<cuda::Step> where(*stream, 1);
  const DeviceArray<uint16_t> out(*stream, size_t(s.width()));
  const auto graph = gpu::Graph::capture(*stream, [&] {
    cuda::attention_step(*stream, *kernels, 1,
                         {.step = where.data(),
                          .q_gate = q_gate.data(),
                          .k = k.data(),
                          .v = v.data(),
                          .weights = captured.weights(),
                          .cache = captured.cache(),
                          .partials = buffers.partials.data(),
                          .arrivals = buffers.arrivals.data(),
                          .out = out.data()},
                         true);
  });
  ASSERT_TRUE(graph.ok()) << graph.status().message();
  for (int t = 0; t < 8; ++t) {
    const cuda::Step step{.position = s.known + t, .count = 1, .tokens = {}};
    gpu::copy_to_device(*stream, where.data(), &step, sizeof(step));
    const auto put = [&](const DeviceArray<float>& to, const std::vector<float>& from) {
      const int64_t count = int64_t(to.size());
      gpu::copy_to_device(*stream, to.data(), from.data() + t * count, count * 4);
    };
    put(q_gate, s.q_gate);
    put(k, s.k);
    put(v, s.v);
    (*graph)->launch(*stream);
    const std::vector<uint16_t> found = out.read();
    EXPECT_TRUE(std::equal(found.begin(), found.end(), expected.begin() + t * s.width())) << t;
  }
}

// Both kernels where there are two.
std::vector<cuda::AttentionKernels> prefill_variants(const cuda::AttentionKernels& kernels) {
  std::vector<cuda::AttentionKernels> variants = {kernels};
  if (kernels.prefill_wgmma) {
    variants.push_back(kernels);
    variants.back().prefill_wgmma = {};
  }
  return variants;
}

TEST(GpuAttentionPrefill, AgreesWithTheOracle) {
  MORAY_GPU_TEST();
  Random random;
  SCOPED_TRACE(random.trace());
  const auto stream = gpu::test_stream();
  ASSERT_NE(stream, nullptr);
  for (const Dimensions& d : kShapes) {
    const cuda::AttentionKernels* const kernels = kernels_of(d);
    ASSERT_NE(kernels, nullptr);
    for (const auto& [known, tokens] : {std::pair{0, 1},
                                        {0, 7},
                                        {0, 63},
                                        {0, 64},
                                        {0, 65},
                                        {0, 129},
                                        {1, 63},
                                        {63, 1},
                                        {37, 100},
                                        {500, 17}}) {
      SCOPED_TRACE(trace(d) + " position " + std::to_string(known) + " tokens " +
                   std::to_string(tokens));
      Sequence s = make_sequence(random, d, known, tokens, true);
      const Sequence before = s;
      run_oracle(s);
      for (const cuda::AttentionKernels& variant : prefill_variants(*kernels)) {
        SCOPED_TRACE(variant.prefill_wgmma ? "wgmma" : "mma.sync");
        const DeviceSequence on_device(*stream, before);
        expect_agreement(run_blocks(*stream, variant, s, on_device, {s.end}), s.out, true);
        expect_cache(s, on_device);
      }
    }
  }
}

TEST(GpuAttentionPrefill, BitsDoNotDependOnTheCutIntoBlocks) {
  MORAY_GPU_TEST();
  Random random;
  SCOPED_TRACE(random.trace());
  const auto stream = gpu::test_stream();
  ASSERT_NE(stream, nullptr);
  for (const Dimensions& d : kShapes) {
    SCOPED_TRACE(trace(d));
    const cuda::AttentionKernels* const kernels = kernels_of(d);
    ASSERT_NE(kernels, nullptr);
    const Sequence s = make_sequence(random, d, 40, 260, true);
    for (const cuda::AttentionKernels& variant : prefill_variants(*kernels)) {
      SCOPED_TRACE(variant.prefill_wgmma ? "wgmma" : "mma.sync");
      const DeviceSequence whole(*stream, s), cut(*stream, s);
      const auto expected = run_blocks(*stream, variant, s, whole, {300});
      EXPECT_EQ(run_blocks(*stream, variant, s, cut, {64, 65, 128, 131, 220, 300}), expected);
      EXPECT_EQ(cut.keys.read(), whole.keys.read());
      EXPECT_EQ(cut.values.read(), whole.values.read());
    }
  }
}

}  // namespace
}  // namespace moray::attention
