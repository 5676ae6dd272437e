#include "src/gpu/compiler.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>

#include "src/gpu/compiler_places.h"

namespace moray::gpu {

namespace fs = std::filesystem;

// NVRTC's documented C interface; every call returns 0 for success.
struct NvrtcCalls {
  using Program = void*;
  int (*version)(int* major, int* minor) = nullptr;
  const char* (*error_text)(int code) = nullptr;
  int (*create)(Program* program, const char* source, const char* name, int header_count,
                const char* const* headers, const char* const* header_names) = nullptr;
  int (*destroy)(Program* program) = nullptr;
  int (*compile)(Program program, int option_count, const char* const* options) = nullptr;
  int (*log_size)(Program program, size_t* size) = nullptr;
  int (*log)(Program program, char* text) = nullptr;
  int (*cubin_size)(Program program, size_t* size) = nullptr;
  int (*cubin)(Program program, char* bytes) = nullptr;
};

namespace {

constexpr int kOldestVersion = 12080;

// Headers that host and device share mark nothing __device__: their functions are taken as such.
// Line numbers let profilers and the sanitizer name a line; they change no instruction.
constexpr std::array<const char*, 3> kOptions = {
    "--std=c++20", "--device-as-default-execution-space", "-lineinfo"};

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

template <typename Function>
bool bind(void* library, Function& slot, const char* name) {
  slot = reinterpret_cast<Function>(dlsym(library, name));
  return slot != nullptr;
}

bool bind_calls(void* library, NvrtcCalls& calls) {
  return bind(library, calls.version, "nvrtcVersion") &&
         bind(library, calls.error_text, "nvrtcGetErrorString") &&
         bind(library, calls.create, "nvrtcCreateProgram") &&
         bind(library, calls.destroy, "nvrtcDestroyProgram") &&
         bind(library, calls.compile, "nvrtcCompileProgram") &&
         bind(library, calls.log_size, "nvrtcGetProgramLogSize") &&
         bind(library, calls.log, "nvrtcGetProgramLog") &&
         bind(library, calls.cubin_size, "nvrtcGetCUBINSize") &&
         bind(library, calls.cubin, "nvrtcGetCUBIN");
}

// The compiler opens "libnvrtc-builtins.so.13.0" by that bare name at its first compile, which
// finds a library of that name that is loaded already, wherever it came from.
void preload_builtins(const fs::path& library) {
  std::error_code error;
  for (fs::directory_iterator at(library.parent_path(), error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().filename();
    if (name.starts_with("libnvrtc-builtins.so."))
      dlopen(at->path().c_str(), RTLD_NOW | RTLD_GLOBAL);
  }
}

// The file behind a library that the system's linker found by a bare name.
std::string file_of(void* symbol, const std::string& name) {
  Dl_info info = {};
  if (dladdr(symbol, &info) == 0 || info.dli_fname == nullptr) return name;
  return info.dli_fname;
}

struct Candidate {
  NvrtcCalls calls;
  std::string file;
  int version = 0;
};

// Status ok with version 0: nothing is there.
Status open_candidate(const CompilerPlace& place, Candidate& candidate) {
  const bool is_bare = place.file.find('/') == std::string::npos;
  if (!is_bare) preload_builtins(place.file);
  void* library = dlopen(place.file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    if (is_bare) return Status();
    const char* reason = dlerror();
    return Status(StatusCode::kUnsupported,
                  fmt::format("found {} ({}), which does not load: {}", place.file, place.origin,
                              reason ? reason : "no reason given"));
  }
  int major = 0, minor = 0;
  if (!bind_calls(library, candidate.calls) || candidate.calls.version(&major, &minor) != 0) {
    dlclose(library);
    return Status(StatusCode::kUnsupported,
                  fmt::format("found {} ({}), which is no NVRTC", place.file, place.origin));
  }
  candidate.version = major * 1000 + minor * 10;
  candidate.file = file_of(reinterpret_cast<void*>(candidate.calls.version), place.file);
  if (is_bare) preload_builtins(candidate.file);
  return Status();
}

std::string wanted_versions(int cuda_version) {
  if (cuda_version == 0) return "version 12.8 or newer";
  return fmt::format("version 12.8 to {}.x, as the driver serves CUDA {}", cuda_version / 1000,
                     version_text(cuda_version));
}

// The first line that says "error", without the temporary names around it; else the first line.
std::string first_error(std::string_view log) {
  std::string first;
  for (size_t begin = 0; begin < log.size();) {
    const size_t end = std::min(log.find('\n', begin), log.size());
    const std::string_view line = log.substr(begin, end - begin);
    if (line.find("error") != std::string_view::npos) return std::string(line);
    if (first.empty()) first = line;
    begin = end + 1;
  }
  return first.empty() ? "no message" : first;
}

// Owns a program of NVRTC for one compile.
class Program {
 public:
  explicit Program(const NvrtcCalls& calls) : calls_(calls) {}
  ~Program() {
    if (program_ != nullptr) calls_.destroy(&program_);
  }
  Program(const Program&) = delete;
  int create(const Unit& unit) {
    std::vector<const char*> texts, names;
    for (const Unit::File& header : unit.headers) {
      texts.push_back(header.text.c_str());
      names.push_back(header.name.c_str());
    }
    return calls_.create(&program_, unit.source.text.c_str(), unit.source.name.c_str(),
                         static_cast<int>(texts.size()), texts.data(), names.data());
  }
  int compile(const std::string& arch_option) {
    std::vector<const char*> options(kOptions.begin(), kOptions.end());
    options.push_back(arch_option.c_str());
    return calls_.compile(program_, static_cast<int>(options.size()), options.data());
  }
  std::string log() const {
    size_t size = 0;
    if (calls_.log_size(program_, &size) != 0 || size == 0) return "";
    std::string text(size, '\0');
    if (calls_.log(program_, text.data()) != 0) return "";
    return text.substr(0, text.find('\0'));
  }
  int cubin(std::string& bytes) const {
    size_t size = 0;
    if (const int code = calls_.cubin_size(program_, &size); code != 0) return code;
    bytes.resize(size);
    return calls_.cubin(program_, bytes.data());
  }

 private:
  const NvrtcCalls& calls_;
  NvrtcCalls::Program program_ = nullptr;
};

std::string arch_option(int arch) {
  CHECK(arch == 89 || arch == 90 || arch == 120, arch);
  return fmt::format("--gpu-architecture=sm_{}{}", arch, arch == 89 ? "" : "a");
}

}  // namespace

std::string compile_options() {
  std::string joined;
  for (const char* option : kOptions) joined += std::string(option) + ' ';
  return joined;
}

Result<std::shared_ptr<const Compiler>> Compiler::find(const Environment& environment,
                                                       int cuda_version) {
  std::string found;
  for (const CompilerPlace& place : compiler_places(environment)) {
    Candidate candidate;
    const Status status = open_candidate(place, candidate);
    const int version = candidate.version;
    if (status.ok() && version == 0) continue;
    if (!status.ok()) {
      found = found.empty() ? status.message() : found;
      continue;
    }
    if (version < kOldestVersion || (cuda_version != 0 && version / 1000 > cuda_version / 1000)) {
      found =
          fmt::format("found {} in {} ({})", version_text(version), candidate.file, place.origin);
      continue;
    }
    std::error_code error;
    const auto bytes = fs::file_size(candidate.file, error);
    auto compiler = std::shared_ptr<Compiler>(new Compiler);
    compiler->calls_ = std::make_shared<const NvrtcCalls>(candidate.calls);
    compiler->version_ = version;
    compiler->identity_ = fmt::format("{} {}", version, error ? 0 : bytes);
    compiler->where_ =
        fmt::format("NVRTC {} from {} ({})", version_text(version), candidate.file, place.origin);
    return std::shared_ptr<const Compiler>(std::move(compiler));
  }
  if (found.empty())
    found = "found none in a CUDA toolkit, a Python environment or the build folder";
  return Status(StatusCode::kUnsupported,
                fmt::format("NVRTC: {}, expected {}", found, wanted_versions(cuda_version)));
}

Result<std::string> Compiler::compile(const Unit& unit, int arch) const {
  Program program(*calls_);
  int code = program.create(unit);
  if (code == 0) code = program.compile(arch_option(arch));
  std::string bytes;
  std::string reason;
  if (code != 0) {
    reason = first_error(program.log());
  } else {
    code = program.cubin(bytes);
    if (code != 0) reason = calls_->error_text(code);
  }
  if (code == 0) return bytes;
  return Status(StatusCode::kUnsupported,
                fmt::format("{} for sm_{}: found '{}', expected it to compile", unit.source.name,
                            arch, reason));
}

}  // namespace moray::gpu
