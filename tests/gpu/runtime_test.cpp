// The runtime on a real GPU: memory, launches, graphs, events, the cache of kernels.
#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <thread>

#include "src/gpu/compiler.h"
#include "src/gpu/cubin.h"
#include "tests/gpu/device.h"
#include "tests/gpu/small_program.h"
#include "tests/support/gates.h"
#include "tests/support/temp_folder.h"

namespace moray::gpu {
namespace {

std::vector<int> random_values(size_t count) {
  const unsigned seed = std::random_device{}();
  ::testing::Test::RecordProperty("seed", static_cast<int>(seed));
  std::mt19937 random(seed);
  std::vector<int> values(count);
  for (int& value : values) value = static_cast<int>(random() % 1000000);
  return values;
}

std::shared_ptr<const KernelSet> small_set() {
  static const auto built = KernelSet::build(test_device(), small_request(), {});
  EXPECT_TRUE(built.ok()) << built.status().message();
  return built.ok() ? *built : nullptr;
}

AddParams params_of(const DeviceArray<int>& in, const DeviceArray<int>& out, int added) {
  return {in.data(), out.data(), static_cast<int>(in.size()), added};
}

TEST(GpuRuntime, DeviceDescribesItself) {
  MORAY_GPU_TEST();
  const Result<std::vector<DeviceInfo>> devices = list_devices();
  ASSERT_TRUE(devices.ok()) << devices.status().message();
  const std::shared_ptr<Device> device = test_device();
  ASSERT_NE(device, nullptr);
  const DeviceInfo& info = device->info();
  EXPECT_EQ(info.name, devices->front().name);
  EXPECT_NE(info.arch(), 0);
  EXPECT_GT(info.multiprocessors, 0);
  EXPECT_GT(info.l2_bytes, 1 << 20);
  EXPECT_GE(info.shared_bytes_max, 99 * 1024);
  EXPECT_GE(info.driver_version, 12000);
  EXPECT_GT(device->free_bytes(), 0);
  EXPECT_LE(device->free_bytes(), info.memory_bytes);
  EXPECT_NE(device->driver_line().find("CUDA"), std::string::npos);
  std::printf("%s, %s, %s, %d multiprocessors, %.1f GiB\n", info.name.c_str(),
              device->driver_line().c_str(), device->clocks_line().c_str(), info.multiprocessors,
              double(info.memory_bytes) / (1 << 30));
}

TEST(GpuRuntime, OrdinalOutOfRangeIsRefused) {
  MORAY_GPU_TEST();
  const auto opened = Device::open(99);
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(opened.status().message().find("cuda:99"), std::string::npos);
}

TEST(GpuRuntime, CopiesAndFillsKeepBytesAndGuards) {
  MORAY_GPU_TEST();
  const auto stream = test_stream();
  ASSERT_NE(stream, nullptr);
  const std::vector<int> values = random_values(100003);
  const DeviceArray<int> first(*stream, values);
  EXPECT_EQ(first.read(), values);
  const DeviceArray<int> second(*stream, values.size());
  copy_on_device(*stream, second.data(), first.data(), static_cast<int64_t>(values.size() * 4));
  EXPECT_EQ(second.read(), values);
  fill(*stream, second.data(), 0, static_cast<int64_t>(values.size() * 4));
  EXPECT_EQ(second.read(), std::vector<int>(values.size(), 0));
}

TEST(GpuRuntime, PinnedMemoryIsTheSameOnBothSides) {
  MORAY_GPU_TEST();
  const auto stream = test_stream();
  const auto set = small_set();
  ASSERT_TRUE(stream && set);
  auto pinned = PinnedMemory::allocate(test_device(), 4096);
  ASSERT_TRUE(pinned.ok()) << pinned.status().message();
  int* values = reinterpret_cast<int*>(pinned->data());
  std::iota(values, values + 1024, 7);
  launch(*stream, set->find("add"), {.grid = {4}, .block = {128}},
         AddParams{values, values, 1024, 5});
  ASSERT_TRUE(stream->synchronize().ok());
  for (int i = 0; i < 1024; ++i) ASSERT_EQ(values[i], i + 12);
}

TEST(GpuRuntime, AllocationsAreCountedAndTooMuchIsAStatus) {
  MORAY_GPU_TEST();
  const AllocationCounts before = allocation_counts();
  {
    auto device = DeviceMemory::allocate(test_device(), 1000);
    auto pinned = PinnedMemory::allocate(test_device(), 1000);
    auto nothing = DeviceMemory::allocate(test_device(), 0);
    ASSERT_TRUE(device.ok() && pinned.ok() && nothing.ok());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(device->data()) % 256, 0u);
    DeviceMemory moved = std::move(*device);
    EXPECT_EQ(moved.bytes(), 1000);
    EXPECT_EQ(device->data(), nullptr);
  }
  EXPECT_EQ(allocation_counts().device, before.device + 1);
  EXPECT_EQ(allocation_counts().pinned, before.pinned + 1);
  const auto refused = DeviceMemory::allocate(test_device(), int64_t{1} << 46);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kExhausted);
  EXPECT_NE(refused.status().message().find("65536.00 GiB"), std::string::npos)
      << refused.status().message();
}

TEST(GpuRuntime, KernelsTellTheirResources) {
  MORAY_GPU_TEST();
  const auto set = small_set();
  ASSERT_NE(set, nullptr);
  const Kernel add = set->find("add");
  EXPECT_EQ(add.name, "add");
  EXPECT_EQ(add.param_bytes, static_cast<int>(sizeof(AddParams)));
  EXPECT_GT(add.registers, 0);
  EXPECT_EQ(add.local_bytes, 0);
  EXPECT_TRUE(set->holds("reverse"));
  EXPECT_FALSE(set->holds("subtract"));
  EXPECT_EQ(set->names().size(), 4u);
}

// The reader of cubins and the driver read the same file.
TEST(GpuRuntime, CubinReaderAgreesWithTheDriver) {
  MORAY_GPU_TEST();
  const auto set = small_set();
  ASSERT_NE(set, nullptr);
  const auto compiler = Compiler::find(read_environment(), test_device()->info().driver_version);
  ASSERT_TRUE(compiler.ok()) << compiler.status().message();
  const auto cubins = compile(**compiler, small_request(), test_device()->info().arch(), {});
  ASSERT_TRUE(cubins.ok()) << cubins.status().message();
  const auto kernels = read_cubin((*cubins)[0].bytes);
  ASSERT_TRUE(kernels.ok());
  EXPECT_EQ(kernels->size(), set->names().size());
  for (const CubinKernel& listed : *kernels) {
    const Kernel loaded = set->find(listed.name);
    EXPECT_EQ(loaded.registers, listed.registers) << listed.name;
    EXPECT_EQ(loaded.local_bytes, listed.stack_bytes) << listed.name;
  }
}

TEST(GpuRuntime, LaunchUsesAllTheSharedMemoryOfABlock) {
  MORAY_GPU_TEST();
  const auto stream = test_stream();
  const auto set = small_set();
  ASSERT_TRUE(stream && set);
  const int bytes = test_device()->info().shared_bytes_max;
  const std::vector<int> values = random_values(static_cast<size_t>(bytes) / 4);
  const DeviceArray<int> in(*stream, values), out(*stream, values.size());
  launch(*stream, set->find("reverse"), {.block = {1024}, .shared_bytes = bytes},
         params_of(in, out, 0));
  EXPECT_EQ(out.read(), std::vector<int>(values.rbegin(), values.rend()));
}

TEST(GpuRuntime, ClusterLaunchNumbersItsBlocks) {
  MORAY_GPU_TEST();
  const auto stream = test_stream();
  const auto set = small_set();
  ASSERT_TRUE(stream && set);
  if (test_device()->info().arch() < 90) GTEST_SKIP() << "no clusters before sm_90";
  const DeviceArray<int> in(*stream, size_t{64}), out(*stream, size_t{64});
  launch(*stream, set->find("cluster_rank"), {.grid = {64}, .block = {32}, .cluster = 8},
         params_of(in, out, 0));
  const std::vector<int> ranks = out.read();
  for (int i = 0; i < 64; ++i) EXPECT_EQ(ranks[size_t(i)], i % 8) << i;
}

// Each kernel of the chain reads what the one before it wrote, started early or not.
TEST(GpuRuntime, ProgrammaticLaunchesKeepTheOrderOfData) {
  MORAY_GPU_TEST();
  const auto stream = test_stream();
  const auto set = small_set();
  ASSERT_TRUE(stream && set);
  const std::vector<int> values = random_values(1 << 20);
  const DeviceArray<int> data(*stream, values);
  for (int i = 0; i < 200; ++i) {
    launch(*stream, set->find("add"), {.grid = {132}, .block = {256}, .programmatic = true},
           params_of(data, data, i));
  }
  std::vector<int> expected = values;
  for (int& value : expected) value += 199 * 200 / 2;
  EXPECT_EQ(data.read(), expected);
}

TEST(GpuRuntime, GraphReplaysWhatWasCaptured) {
  MORAY_GPU_TEST();
  const auto stream = test_stream();
  const auto set = small_set();
  ASSERT_TRUE(stream && set);
  const std::vector<int> values = random_values(5000);
  const DeviceArray<int> data(*stream, values);
  const Kernel add = set->find("add");
  auto graph = Graph::capture(*stream, [&] {
    for (int i = 1; i <= 10; ++i) {
      launch(*stream, add, {.grid = {20}, .block = {256}, .programmatic = true},
             params_of(data, data, i));
    }
  });
  ASSERT_TRUE(graph.ok()) << graph.status().message();
  EXPECT_EQ((*graph)->nodes(), 10);
  EXPECT_EQ(data.read(), values) << "capturing runs nothing";
  for (int i = 0; i < 3; ++i) (*graph)->launch(*stream);
  std::vector<int> expected = values;
  for (int& value : expected) value += 3 * 55;
  EXPECT_EQ(data.read(), expected);
}

TEST(GpuRuntime, LaunchesAndReplaysAllocateNothing) {
  MORAY_GPU_TEST();
  const auto stream = test_stream();
  const auto set = small_set();
  ASSERT_TRUE(stream && set);
  const DeviceArray<int> data(*stream, random_values(5000));
  const Kernel add = set->find("add");
  auto graph = Graph::capture(*stream, [&] {
    launch(*stream, add, {.grid = {20}, .block = {256}}, params_of(data, data, 1));
  });
  ASSERT_TRUE(graph.ok()) << graph.status().message();
  const AllocationCounts before = allocation_counts();
  const int64_t free_before = test_device()->free_bytes();
  for (int i = 0; i < 100; ++i) (*graph)->launch(*stream);
  ASSERT_TRUE(stream->synchronize().ok());
  EXPECT_EQ(allocation_counts().device, before.device);
  EXPECT_EQ(allocation_counts().pinned, before.pinned);
  EXPECT_EQ(test_device()->free_bytes(), free_before);
}

TEST(GpuRuntime, EventsOrderStreamsAndTellTime) {
  MORAY_GPU_TEST();
  const auto first = test_stream(), second = test_stream();
  const auto set = small_set();
  ASSERT_TRUE(first && second && set);
  auto start = Event::create(test_device()), end = Event::create(test_device());
  ASSERT_TRUE(start.ok() && end.ok());
  const std::vector<int> values = random_values(1 << 22);
  const DeviceArray<int> data(*first, values);
  const Kernel add = set->find("add");
  (*start)->record(*first);
  for (int i = 0; i < 50; ++i)
    launch(*first, add, {.grid = {64}, .block = {256}}, params_of(data, data, 1));
  (*end)->record(*first);
  second->wait_for(**end);
  launch(*second, add, {.grid = {64}, .block = {256}}, params_of(data, data, 1));
  ASSERT_TRUE(second->synchronize().ok());
  std::vector<int> expected = values;
  for (int& value : expected) value += 51;
  EXPECT_EQ(data.read(), expected);
  const double seconds = (*end)->seconds_since(**start);
  EXPECT_GT(seconds, 1e-6);
  EXPECT_LT(seconds, 1.0);
}

TEST(GpuRuntime, CacheMissCompilesAndHitLoadsQuickly) {
  MORAY_GPU_TEST();
  const TempFolder folder;
  Environment environment = read_environment();
  environment.cache_home = folder.path();
  const auto cold = KernelSet::build(test_device(), small_request(3), {}, environment);
  ASSERT_TRUE(cold.ok()) << cold.status().message();
  EXPECT_EQ((*cold)->report().compiled, 1);
  EXPECT_EQ((*cold)->report().cache_trouble, "");
  const auto warm = KernelSet::build(test_device(), small_request(3), {}, environment);
  ASSERT_TRUE(warm.ok()) << warm.status().message();
  EXPECT_EQ((*warm)->report().compiled, 0);
  EXPECT_EQ((*warm)->report().from_cache, 1);
  EXPECT_LT((*warm)->report().seconds, 0.2);
  const auto other = KernelSet::build(test_device(), small_request(4), {}, environment);
  ASSERT_TRUE(other.ok()) << other.status().message();
  EXPECT_EQ((*other)->report().compiled, 1) << "other constants, other kernels";
  std::printf("cold %.3f s, warm %.3f s; %s\n", (*cold)->report().seconds,
              (*warm)->report().seconds, (*cold)->report().line().c_str());
}

TEST(GpuRuntime, ThreadsShareOneDevice) {
  MORAY_GPU_TEST();
  const auto set = small_set();
  ASSERT_NE(set, nullptr);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const auto stream = test_stream();
      const std::vector<int> values(1000, t);
      const DeviceArray<int> data(*stream, values);
      launch(*stream, set->find("add"), {.grid = {4}, .block = {128}}, params_of(data, data, 10));
      EXPECT_EQ(data.read(), std::vector<int>(1000, t + 10));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace moray::gpu
