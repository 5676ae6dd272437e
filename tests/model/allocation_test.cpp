// A forward pass allocates nothing: operator new is counted while it runs.
//
// The replacement below serves this whole test binary; it only counts while armed.
#include <atomic>
#include <new>

#include "fixture.h"

namespace {

std::atomic<bool> armed{false};
std::atomic<int64_t> allocations{0};

void* counted(std::size_t size) {
  if (armed.load(std::memory_order_relaxed)) allocations.fetch_add(1, std::memory_order_relaxed);
  void* memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) std::abort();
  return memory;
}

}  // namespace

void* operator new(std::size_t size) {
  return counted(size);
}
void* operator new[](std::size_t size) {
  return counted(size);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace moray {
namespace {

// Runs body with the counter armed.
template <typename Body>
int64_t allocations_of(Body&& body) {
  allocations = 0;
  armed = true;
  body();
  armed = false;
  return allocations;
}

TEST(Allocation, TheCounterCounts) {
  EXPECT_EQ(
      allocations_of([] { std::vector<char>(100).swap(*std::make_unique<std::vector<char>>()); }),
      2);
}

TEST(Allocation, NeitherPrefillNorDecodeNorDraftsAllocate) {
  for (const char* name : {"tiny-fused", "tiny-fp8"}) {
    const Fixture fixture = load_fixture(name);
    for (Precision precision : {Precision::kFloat32, Precision::kBfloat16}) {
      const ModelConfig& config = fixture.weights->config;
      ThreadPool pool(2);
      const cpu::Context context(pool);
      Workspace workspace(config, 64, 256, 2);
      State state(config, 256, precision);
      std::vector<float> logits(static_cast<size_t>(config.vocab_rows));
      std::vector<float> hidden(static_cast<size_t>(64 * config.hidden));
      const std::span<const int32_t> tokens = fixture.tokens;
      const auto feed = [&](size_t begin, size_t count) {
        forward(*fixture.weights, context, workspace,
                {.tokens = tokens.subspan(begin, count),
                 .state = &state,
                 .precision = precision,
                 .logits = logits.data(),
                 .hidden = hidden.data()});
        mtp_forward(*fixture.weights, context, workspace,
                    {.next_tokens = tokens.subspan(begin + 1, count),
                     .hidden = hidden.data(),
                     .state = &state,
                     .position = static_cast<int64_t>(begin),
                     .precision = precision,
                     .logits = logits.data()});
      };
      EXPECT_EQ(allocations_of([&] { feed(0, 64); }), 0) << name;
      EXPECT_EQ(allocations_of([&] { feed(64, 40); }), 0) << name;
      EXPECT_EQ(allocations_of([&] {
                  for (size_t t = 104; t < 132; ++t) feed(t, 1);
                }),
                0)
          << name;
    }
  }
}

}  // namespace
}  // namespace moray
