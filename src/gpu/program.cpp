#include "src/gpu/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>

#include "src/gpu/compiler.h"
#include "src/gpu/cubin.h"
#include "src/gpu/cubin_cache.h"
#include "src/gpu/open_device.h"
#include "src/gpu/source_closure.h"

namespace moray::gpu {
namespace {

// Raised when the meaning of an entry changes in a way its other key fields do not show.
constexpr std::string_view kKeyVersion = "moray kernels 1";

// Compiles units on threads of its own while the caller reports progress.
class CompileTeam {
 public:
  CompileTeam(const Compiler& compiler, int arch, const std::vector<Unit>& units)
      : compiler_(compiler), arch_(arch), units_(units), outcomes_(units.size()) {}

  Result<std::vector<Cubin>> run(const CompileProgress& progress) {
    const int total = static_cast<int>(units_.size());
    const int wanted = std::min<int>(total, std::max(1u, std::thread::hardware_concurrency()));
    std::vector<std::thread> threads;
    try {
      for (int i = 0; i < wanted; ++i) threads.emplace_back([this] { work(); });
    } catch (const std::system_error&) {
      // The threads there are, or this one alone, do all the work.
      if (threads.empty()) work();
    }
    for (int reported = 0; reported < total;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return done_ > reported; });
      reported = done_;
      lock.unlock();
      if (progress) progress(reported, total);
    }
    for (std::thread& thread : threads) thread.join();
    return collect();
  }

 private:
  void work() {
    const size_t count = units_.size();
    for (size_t i = next_.fetch_add(1); i < count; i = next_.fetch_add(1)) {
      Result<std::string> outcome = compiler_.compile(units_[i], arch_);
      const std::lock_guard lock(mutex_);
      outcomes_[i].emplace(std::move(outcome));
      ++done_;
      changed_.notify_one();
    }
  }

  Result<std::vector<Cubin>> collect() {
    std::vector<Cubin> cubins;
    for (size_t i = 0; i < units_.size(); ++i) {
      if (!outcomes_[i]->ok()) return outcomes_[i]->status();
      cubins.push_back({units_[i].source.name, std::move(*outcomes_[i]).value()});
    }
    return cubins;
  }

  const Compiler& compiler_;
  const int arch_;
  const std::vector<Unit>& units_;
  std::vector<std::optional<Result<std::string>>> outcomes_;
  std::atomic<size_t> next_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  int done_ = 0;
};

Result<std::vector<Unit>> make_units(const BuildRequest& request) {
  std::vector<Unit> units;
  for (const std::string& program : request.programs) {
    ASSIGN_OR_RETURN(Unit unit, make_unit(request.sources, program, request.constants));
    units.push_back(std::move(unit));
  }
  return units;
}

std::string key_of(const Unit& unit, int arch, const Compiler& compiler) {
  CacheKey key;
  key.add(kKeyVersion).add(compiler.identity()).add(compile_options()).add(std::to_string(arch));
  key.add(unit.source.name).add(unit.source.text);
  for (const Unit::File& header : unit.headers) key.add(header.name).add(header.text);
  return key.hex();
}

// Modules of one device and the kernels in them.
class LoadedSet final : public KernelSet {
 public:
  explicit LoadedSet(std::shared_ptr<Device> device) : device_(std::move(device)) {}
  ~LoadedSet() override {
    device_->make_current();
    for (const Handle module : modules_) opened(*device_).api().module_unload(module);
  }

  Status load(const Cubin& cubin) {
    const Driver& api = opened(*device_).api();
    ASSIGN_OR_RETURN(const std::vector<CubinKernel> listed, read_cubin(cubin.bytes));
    if (listed.empty()) return Status();  // a program of parts that this model does not have
    device_->make_current();
    Handle module = nullptr;
    RETURN_IF_ERROR(
        check(api, api.module_load(&module, cubin.bytes.data()), cubin.program.c_str()));
    modules_.push_back(module);
    for (const CubinKernel& kernel : listed) RETURN_IF_ERROR(add_kernel(module, kernel));
    return Status();
  }

  Kernel find(std::string_view name) const override {
    const auto found = kernels_.find(name);
    CHECK(found != kernels_.end(), "no kernel", name);
    Kernel kernel = found->second;
    kernel.name = found->first;
    return kernel;
  }
  bool holds(std::string_view name) const override { return kernels_.contains(name); }
  std::vector<std::string> names() const override {
    std::vector<std::string> all;
    for (const auto& [name, kernel] : kernels_) all.push_back(name);
    return all;
  }
  const BuildReport& report() const override { return report_; }
  BuildReport& mutable_report() { return report_; }

 private:
  // Loaded to the device at once and allowed all the shared memory there is: neither may happen at
  // a launch, which could be part of a graph.
  Status add_kernel(Handle module, const CubinKernel& listed) {
    const OpenDevice& on = opened(*device_);
    const Driver& api = on.api();
    const char* what = listed.name.c_str();
    Kernel kernel;
    RETURN_IF_ERROR(check(api, api.module_function(&kernel.function, module, what), what));
    if (api.function_load != nullptr)
      RETURN_IF_ERROR(check(api, api.function_load(kernel.function), what));
    const std::pair<FunctionAttribute, int*> wanted[] = {
        {FunctionAttribute::kRegisters, &kernel.registers},
        {FunctionAttribute::kLocalBytes, &kernel.local_bytes},
        {FunctionAttribute::kSharedBytes, &kernel.static_shared},
    };
    for (const auto& [attribute, value] : wanted) {
      RETURN_IF_ERROR(check(api, api.function_attribute(value, attribute, kernel.function), what));
    }
    kernel.param_bytes = listed.param_bytes;
    const int dynamic_max = on.info().shared_bytes_max - kernel.static_shared;
    const std::pair<FunctionAttribute, int> set[] = {
        {FunctionAttribute::kDynamicSharedBytesMax, dynamic_max},
        // Kernels that start early share a multiprocessor with the one before them; were their
        // divisions of its memory different, it would drain first.
        {FunctionAttribute::kSharedCarveoutPercent, 100},
    };
    for (const auto& [attribute, value] : set) {
      if (attribute == FunctionAttribute::kSharedCarveoutPercent && on.info().major < 9) continue;
      RETURN_IF_ERROR(
          check(api, api.function_set_attribute(kernel.function, attribute, value), what));
    }
    CHECK(kernels_.emplace(listed.name, kernel).second, "two kernels named", listed.name);
    return Status();
  }

  std::shared_ptr<Device> device_;
  std::vector<Handle> modules_;
  std::map<std::string, Kernel, std::less<>> kernels_;
  BuildReport report_;
};

}  // namespace

std::string BuildReport::line() const {
  if (compiled == 0) return "kernels from cache";
  const std::string kept = cache_trouble.empty() ? "" : "; not kept: " + cache_trouble;
  return fmt::format("kernels compiled in {:.1f} s with {}{}", seconds, compiler, kept);
}

Result<std::vector<Cubin>> compile(const Compiler& compiler, const BuildRequest& request, int arch,
                                   const CompileProgress& progress) {
  ASSIGN_OR_RETURN(const std::vector<Unit> units, make_units(request));
  return CompileTeam(compiler, arch, units).run(progress);
}

Result<std::vector<Cubin>> obtain_cubins(const Compiler& compiler, const BuildRequest& request,
                                         int arch, const std::string& cache_folder,
                                         const CompileProgress& progress, BuildReport& report) {
  ASSIGN_OR_RETURN(const std::vector<Unit> units, make_units(request));
  const CubinCache cache(cache_folder);
  report.compiler = compiler.where();
  std::vector<Cubin> cubins;
  std::vector<Unit> missing;
  std::vector<size_t> missing_places;
  std::vector<std::string> keys;
  for (const Unit& unit : units) {
    keys.push_back(key_of(unit, arch, compiler));
    std::optional<std::string> bytes = cache.load(keys.back());
    if (!bytes) {
      missing_places.push_back(cubins.size());
      missing.push_back(unit);
    }
    cubins.push_back({unit.source.name, std::move(bytes).value_or("")});
  }
  report.from_cache = static_cast<int>(units.size() - missing.size());
  report.compiled = static_cast<int>(missing.size());
  if (missing.empty()) return cubins;
  ASSIGN_OR_RETURN(std::vector<Cubin> made, CompileTeam(compiler, arch, missing).run(progress));
  for (size_t i = 0; i < made.size(); ++i) {
    const size_t place = missing_places[i];
    if (report.cache_trouble.empty())
      report.cache_trouble = cache.store(keys[place], made[i].bytes).message();
    cubins[place] = std::move(made[i]);
  }
  return cubins;
}

Result<std::shared_ptr<const KernelSet>> KernelSet::build(std::shared_ptr<Device> device,
                                                          const BuildRequest& request,
                                                          const CompileProgress& progress,
                                                          const Environment& environment) {
  const auto start = std::chrono::steady_clock::now();
  const DeviceInfo& info = device->info();
  ASSIGN_OR_RETURN(const auto compiler, Compiler::find(environment, info.driver_version));
  auto set = std::make_shared<LoadedSet>(device);
  BuildReport& report = set->mutable_report();
  ASSIGN_OR_RETURN(
      const std::vector<Cubin> cubins,
      obtain_cubins(*compiler, request, info.arch(), cache_folder(environment), progress, report));
  for (const Cubin& cubin : cubins) RETURN_IF_ERROR(set->load(cubin));
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return std::shared_ptr<const KernelSet>(std::move(set));
}

std::string cache_folder(const Environment& environment) {
  namespace fs = std::filesystem;
  // The base directory specification wants relative paths ignored.
  if (environment.cache_home.starts_with('/'))
    return (fs::path(environment.cache_home) / "moray/kernels").string();
  if (environment.home.empty()) return "";
  return (fs::path(environment.home) / ".cache/moray/kernels").string();
}

}  // namespace moray::gpu
