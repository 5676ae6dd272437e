// Every kernel compiled for every supported architecture and model, without a GPU.
//
// Held against the architecture's limits and against the catalogue: registers, no spilled register,
// static shared memory, a body that stores something and holds the promised instruction. NVRTC and
// nvdisasm are those that ./test puts into the build folder; without them (no network) the cases
// are skipped by name. Compiled programs are kept in the build folder's own cache.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "src/gpu/compiler.h"
#include "src/gpu/cubin.h"
#include "src/gpu/cubin_cache.h"
#include "src/gpu/program.h"
#include "src/kernels/cuda/catalogue.h"
#include "src/kernels/cuda/sources.h"
#include "tests/cuda/build_folder.h"
#include "tests/cuda/cases.h"
#include "tests/cuda/sass.h"
#include "tests/support/temp_folder.h"

namespace moray {
namespace {

namespace fs = std::filesystem;

constexpr int kRegistersMax = 255;

// What a block may have in all, the 1 KiB included that the system keeps from sm_90 on.
int shared_bytes_max(int arch) {
  return arch == 90 ? 228 * 1024 : arch == 89 ? 99 * 1024 : 100 * 1024;
}

unsigned arch_bit(int arch) {
  return arch == 89 ? cuda::kSm89 : arch == 90 ? cuda::kSm90 : cuda::kSm120;
}

bool stores_something(const std::set<std::string>& opcodes) {
  constexpr std::string_view kStores[] = {"STG",  "ST.",     "STAS",    "RED",
                                          "ATOM", "UTMASTG", "UBLKRED", "UBLKCP"};
  return std::any_of(opcodes.begin(), opcodes.end(), [&](const std::string& opcode) {
    return opcode == "ST" || std::any_of(std::begin(kStores), std::end(kStores),
                                         [&](auto store) { return opcode.starts_with(store); });
  });
}

class CudaCompile : public ::testing::TestWithParam<CompileCase> {
 protected:
  void check_resources(const gpu::CubinKernel& kernel) const {
    EXPECT_GT(kernel.registers, 0) << kernel.name;
    EXPECT_LE(kernel.registers, kRegistersMax) << kernel.name;
    EXPECT_LE(kernel.static_shared, shared_bytes_max(GetParam().arch)) << kernel.name;
    EXPECT_GT(kernel.code_bytes, 0) << kernel.name;
    EXPECT_GT(kernel.param_bytes, 0) << kernel.name;
    // Of a fixture's odd sizes only that they are right matters, not how fast.
    if (GetParam().is_fixture()) return;
    int allowed = 0;
    for (const cuda::LocalMemory& exception : cuda::local_memory()) {
      if (cuda::names(exception.kernel, kernel.name)) allowed = exception.bytes_max;
    }
    EXPECT_LE(kernel.stack_bytes, allowed) << kernel.name << ": spills or a stack frame";
  }

  void check_promises(const std::string& kernel, const std::set<std::string>& opcodes,
                      const cuda::Constants& constants) const {
    EXPECT_TRUE(stores_something(opcodes)) << kernel << ": empty or trap-only body";
    bool is_listed = false;
    for (const cuda::Promise& promise : cuda::promises()) {
      if (!cuda::names(promise.kernel, kernel)) continue;
      is_listed = true;
      if (!(promise.archs & arch_bit(GetParam().arch))) continue;
      if (promise.holds_for != nullptr && !promise.holds_for(constants)) continue;
      const bool is_held = std::any_of(opcodes.begin(), opcodes.end(), [&](const auto& opcode) {
        return opcode.starts_with(promise.instruction);
      });
      EXPECT_TRUE(is_held) << kernel << ": no " << promise.instruction << " among "
                           << opcodes.size() << " kinds of instruction";
    }
    EXPECT_TRUE(is_listed) << kernel << " is not in src/kernels/cuda/catalogue.cpp";
  }

  // Kept in the cache beside the cubins: a program that several models share is looked at once.
  Sass sass_of(const gpu::Cubin& cubin) const {
    const gpu::CubinCache cache(gpu::cache_folder(gpu::build_folder_environment()));
    const std::string key = gpu::CacheKey().add("opcodes 1").add(cubin.bytes).hex();
    if (const auto kept = cache.load(key)) return read_sass(*kept);
    const TempFolder folder;
    const std::string file = folder.write("program.cubin", cubin.bytes);
    const Sass sass = parse_sass(disassemble(gpu::disassembler(), file));
    if (!sass.empty()) (void)cache.store(key, write_sass(sass));
    return sass;
  }
};

TEST_P(CudaCompile, WithinLimitsAndAsPromised) {
  const auto compiler = gpu::build_folder_compiler();
  if (!compiler.ok()) GTEST_SKIP() << compiler.status().message() << "; ./test fetches it";
  const Result<CompilePlan> plan = make_plan(GetParam());
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  gpu::BuildReport report;
  const auto cubins =
      gpu::obtain_cubins(**compiler, plan->request, GetParam().arch,
                         gpu::cache_folder(gpu::build_folder_environment()), {}, report);
  ASSERT_TRUE(cubins.ok()) << cubins.status().message();
  ASSERT_FALSE(cubins->empty());
  const bool can_disassemble = fs::exists(gpu::disassembler());
  for (const gpu::Cubin& cubin : *cubins) {
    SCOPED_TRACE(cubin.program);
    const auto kernels = gpu::read_cubin(cubin.bytes);
    ASSERT_TRUE(kernels.ok()) << kernels.status().message();
    const Sass sass = can_disassemble ? sass_of(cubin) : Sass();
    for (const gpu::CubinKernel& kernel : *kernels) {
      check_resources(kernel);
      if (!can_disassemble) continue;
      ASSERT_TRUE(sass.contains(kernel.name)) << kernel.name << ": not disassembled";
      check_promises(kernel.name, sass.at(kernel.name), plan->constants);
    }
  }
  if (!can_disassemble) GTEST_SKIP() << "instructions: no nvdisasm; ./test fetches it";
}

INSTANTIATE_TEST_SUITE_P(Models, CudaCompile, ::testing::ValuesIn(compile_cases()),
                         [](const auto& made) { return made.param.name(); });

}  // namespace
}  // namespace moray
