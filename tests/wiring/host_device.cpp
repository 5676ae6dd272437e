// Host memory behind the calls of src/gpu; see host_device.h for what it is for.
#include "tests/wiring/host_device.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "src/base/check.h"
#include "src/gpu/device.h"
#include "src/gpu/memory.h"
#include "src/gpu/program.h"
#include "tests/wiring/host_math.h"

namespace moray::gpu {
namespace {

AllocationCounts counts;

char* allocate_bytes(int64_t bytes) {
  constexpr size_t kAlignment = 256;
  const size_t rounded = (static_cast<size_t>(bytes) + kAlignment - 1) / kAlignment * kAlignment;
  void* memory = std::aligned_alloc(kAlignment, std::max(rounded, kAlignment));
  std::memset(memory, 0xff, rounded);  // NaN in every format: what is not written must not be read
  return static_cast<char*>(memory);
}

class HostDevice final : public Device {
 public:
  HostDevice() {
    info_.name = "host memory";
    info_.major = 9;
    info_.multiprocessors = 4;
    info_.memory_bytes = int64_t{8} << 30;
  }
  const DeviceInfo& info() const override { return info_; }
  int64_t free_bytes() const override { return info_.memory_bytes; }
  std::string clocks_line() const override { return "unknown"; }
  std::string driver_line() const override { return "none"; }
  void make_current() const override {}

 private:
  DeviceInfo info_;
};

class HostKernels final : public KernelSet {
 public:
  Kernel find(std::string_view name) const override {
    Kernel kernel;
    kernel.function = const_cast<char*>(name.data());
    kernel.name = name;
    return kernel;
  }
  bool holds(std::string_view) const override { return true; }
  std::vector<std::string> names() const override { return {}; }
  const BuildReport& report() const override { return report_; }

 private:
  BuildReport report_;
};

}  // namespace

class HostStream final : public Stream {
 public:
  explicit HostStream(std::shared_ptr<Device> device) : device_(std::move(device)) {}
  Status synchronize() override { return Status(); }
  void wait_for(const Event&) override {}
  const Device& device() const override { return *device_; }
  void* handle() const override { return nullptr; }

  std::vector<std::function<void()>>* captured = nullptr;

 private:
  std::shared_ptr<Device> device_;
};

void enqueue(Stream& stream, std::function<void()> work) {
  auto& host = static_cast<HostStream&>(stream);
  if (host.captured != nullptr) {
    host.captured->push_back(std::move(work));
  } else {
    work();
  }
}

namespace {

class HostEvent final : public Event {
 public:
  void record(Stream&) override { time_ = std::chrono::steady_clock::now(); }
  double seconds_since(const Event& earlier) const override {
    return std::chrono::duration<double>(time_ - static_cast<const HostEvent&>(earlier).time_)
        .count();
  }
  void* handle() const override { return nullptr; }

 private:
  std::chrono::steady_clock::time_point time_;
};

class HostGraph final : public Graph {
 public:
  explicit HostGraph(std::vector<std::function<void()>> work) : work_(std::move(work)) {}
  void launch(Stream&) override {
    for (const auto& piece : work_) piece();
  }
  int nodes() const override { return static_cast<int>(work_.size()); }

 private:
  std::vector<std::function<void()>> work_;
};

}  // namespace

int DeviceInfo::arch() const {
  return 10 * major + minor;
}

Result<std::vector<DeviceInfo>> list_devices() {
  return std::vector<DeviceInfo>{HostDevice().info()};
}

Result<std::shared_ptr<Device>> Device::open(int) {
  return std::shared_ptr<Device>(std::make_shared<HostDevice>());
}

Result<std::unique_ptr<Stream>> Stream::create(std::shared_ptr<Device> device) {
  return std::unique_ptr<Stream>(std::make_unique<HostStream>(std::move(device)));
}

Result<std::unique_ptr<Event>> Event::create(std::shared_ptr<Device>) {
  return std::unique_ptr<Event>(std::make_unique<HostEvent>());
}

Result<std::unique_ptr<Graph>> Graph::capture(Stream& stream,
                                              const std::function<void()>& enqueue_all) {
  auto& host = static_cast<HostStream&>(stream);
  std::vector<std::function<void()>> work;
  host.captured = &work;
  enqueue_all();
  host.captured = nullptr;
  return std::unique_ptr<Graph>(std::make_unique<HostGraph>(std::move(work)));
}

// The constants become what the stand-ins of kernels look at; of the last build, so that one model
// runs at a time.
Result<std::shared_ptr<const KernelSet>> KernelSet::build(std::shared_ptr<Device>,
                                                          const BuildRequest& request,
                                                          const CompileProgress&,
                                                          const Environment&) {
  const auto value = [&](const std::string& name) {
    const size_t at = request.constants.find(" " + name + " = ");
    CHECK(at != std::string::npos, name);
    const std::string text = request.constants.substr(at + name.size() + 4);
    return text.starts_with("true") ? 1.0 : std::strtod(text.c_str(), nullptr);
  };
  const auto whole = [&](const char* name) { return static_cast<int>(value(name)); };
  cuda::HostConstants& k = cuda::host_constants();
  k.eps = static_cast<float>(value("kNormEps"));
  k.zero_centred_norms = value("kZeroCentredNorms") != 0;
  k.normalise_top_k = value("kNormaliseTopK") != 0;
  k.hidden = whole("kHidden");
  k.experts = whole("kExperts");
  k.top_k = whole("kTopK");
  k.heads = whole("kHeads");
  k.kv_heads = whole("kKvHeads");
  k.head_dim = whole("kHeadDim");
  k.rotary_dim = whole("kRotaryDim");
  k.has_gate = value("kHasGate") != 0;
  k.rope_scale = static_cast<float>(value("kRopeScale"));
  return std::shared_ptr<const KernelSet>(std::make_shared<HostKernels>());
}

std::string BuildReport::line() const {
  return "loops";
}

Environment read_environment() {
  return {};
}

void launch(Stream& stream, const Kernel& kernel, const LaunchShape&, const void* params,
            int param_bytes) {
  std::vector<char> copy(static_cast<const char*>(params),
                         static_cast<const char*>(params) + param_bytes);
  enqueue(stream, [name = kernel.name, copy] { run_kernel(name, copy.data()); });
}

Result<DeviceMemory> DeviceMemory::allocate(std::shared_ptr<Device> device, int64_t bytes) {
  DeviceMemory memory;
  memory.device_ = std::move(device);
  memory.data_ = allocate_bytes(bytes);
  memory.bytes_ = bytes;
  ++counts.device;
  return memory;
}
DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept {
  *this = std::move(other);
}
DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}
DeviceMemory::~DeviceMemory() {
  std::free(data_);
}

Result<PinnedMemory> PinnedMemory::allocate(std::shared_ptr<Device> device, int64_t bytes) {
  PinnedMemory memory;
  memory.device_ = std::move(device);
  memory.data_ = allocate_bytes(bytes);
  memory.bytes_ = bytes;
  ++counts.pinned;
  return memory;
}
PinnedMemory::PinnedMemory(PinnedMemory&& other) noexcept {
  *this = std::move(other);
}
PinnedMemory& PinnedMemory::operator=(PinnedMemory&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}
PinnedMemory::~PinnedMemory() {
  std::free(data_);
}

AllocationCounts allocation_counts() {
  return counts;
}

void copy_to_device(Stream& stream, void* device, const void* host, int64_t bytes) {
  enqueue(stream, [=] { std::memcpy(device, host, static_cast<size_t>(bytes)); });
}
void copy_to_host(Stream& stream, void* host, const void* device, int64_t bytes) {
  copy_to_device(stream, host, device, bytes);
}
void copy_on_device(Stream& stream, void* to, const void* from, int64_t bytes) {
  copy_to_device(stream, to, from, bytes);
}
void fill(Stream& stream, void* device, uint8_t value, int64_t bytes) {
  enqueue(stream, [=] { std::memset(device, value, static_cast<size_t>(bytes)); });
}

}  // namespace moray::gpu
