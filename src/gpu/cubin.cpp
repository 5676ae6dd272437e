#include "src/gpu/cubin.h"

#include <cstring>
#include <map>
#include <optional>

namespace moray::gpu {
namespace {

// ELF64, little endian: the few fields read here.
struct FileHeader {
  unsigned char magic[4];
  unsigned char class_and_order[12];
  uint16_t type, machine;
  uint32_t version;
  uint64_t entry, program_headers, section_headers;
  uint32_t flags;
  uint16_t header_size, program_header_size, program_header_count;
  uint16_t section_header_size, section_count, names_section;
};
static_assert(sizeof(FileHeader) == 64);

struct SectionHeader {
  uint32_t name, type;
  uint64_t flags, address, offset, size;
  uint32_t link, info;
  uint64_t alignment, entry_size;
};
static_assert(sizeof(SectionHeader) == 64);

struct Symbol {
  uint32_t name;
  unsigned char info, other;
  uint16_t section;
  uint64_t value, size;
};
static_assert(sizeof(Symbol) == 24);

constexpr uint16_t kMachineCuda = 190;
constexpr uint32_t kSectionSymbols = 2;
constexpr uint32_t kSectionNoBits = 8;
constexpr unsigned char kSymbolFunction = 2;       // the lower four bits of Symbol::info
constexpr unsigned char kSymbolEntryPoint = 0x10;  // a bit of Symbol::other: launched from the host

// Attributes of .nv.info: a format, a number, and 16 bits that are a value or the size of a
// payload.
constexpr unsigned char kFormatPayload = 4;
constexpr unsigned char kAttributeParam = 0x17;
constexpr unsigned char kAttributeFrameBytes = 0x11;
constexpr unsigned char kAttributeRegisters = 0x2f;

template <typename Value>
std::optional<Value> read_at(std::string_view bytes, uint64_t offset) {
  if (offset > bytes.size() || bytes.size() - offset < sizeof(Value)) return std::nullopt;
  Value value;
  std::memcpy(&value, bytes.data() + offset, sizeof(Value));
  return value;
}

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  bool read() { return read_sections() && read_entry_points() && read_details(); }
  std::vector<CubinKernel> kernels;

 private:
  struct Section {
    SectionHeader header;
    std::string_view name;
    std::string_view content;
  };

  std::string_view text_at(std::string_view strings, uint64_t offset) const {
    if (offset >= strings.size()) return {};
    const std::string_view rest = strings.substr(offset);
    return rest.substr(0, rest.find('\0'));
  }

  bool read_sections() {
    const auto header = read_at<FileHeader>(bytes_, 0);
    if (!header || std::memcmp(header->magic,
                               "\x7f"
                               "ELF",
                               4) != 0)
      return false;
    if (header->machine != kMachineCuda || header->section_header_size != sizeof(SectionHeader))
      return false;
    for (uint64_t i = 0; i < header->section_count; ++i) {
      const auto section =
          read_at<SectionHeader>(bytes_, header->section_headers + i * sizeof(SectionHeader));
      if (!section) return false;
      std::string_view content;
      if (section->type != kSectionNoBits) {
        if (section->offset > bytes_.size() || bytes_.size() - section->offset < section->size)
          return false;
        content = bytes_.substr(section->offset, section->size);
      }
      sections_.push_back({*section, {}, content});
    }
    if (header->names_section >= sections_.size()) return false;
    const std::string_view names = sections_[header->names_section].content;
    for (Section& section : sections_) section.name = text_at(names, section.header.name);
    return true;
  }

  bool read_entry_points() {
    for (const Section& section : sections_) {
      if (section.header.type != kSectionSymbols) continue;
      if (section.header.link >= sections_.size()) return false;
      const std::string_view names = sections_[section.header.link].content;
      for (uint32_t i = 0; i * sizeof(Symbol) < section.content.size(); ++i) {
        const auto symbol = read_at<Symbol>(section.content, i * sizeof(Symbol));
        if (!symbol) return false;
        if ((symbol->info & 0xf) != kSymbolFunction || !(symbol->other & kSymbolEntryPoint))
          continue;
        kernel_of_symbol_[i] = kernels.size();
        kernels.emplace_back();
        kernels.back().name = text_at(names, symbol->name);
      }
    }
    return true;
  }

  bool read_details() {
    for (CubinKernel& kernel : kernels) {
      for (const Section& section : sections_) {
        if (section.name == ".text." + kernel.name)
          kernel.code_bytes = static_cast<int64_t>(section.header.size);
        if (section.name == ".nv.shared." + kernel.name)
          kernel.static_shared = static_cast<int>(section.header.size);
      }
    }
    for (const Section& section : sections_) {
      if (!section.name.starts_with(".nv.info")) continue;
      CubinKernel* owner = nullptr;  // null: the list of the whole program
      for (CubinKernel& kernel : kernels) {
        if (section.name == ".nv.info." + kernel.name) owner = &kernel;
      }
      if (!read_attributes(section.content, owner)) return false;
    }
    return true;
  }

  bool read_attributes(std::string_view list, CubinKernel* owner) {
    for (size_t at = 0; at + 4 <= list.size();) {
      const auto format = static_cast<unsigned char>(list[at]);
      const auto attribute = static_cast<unsigned char>(list[at + 1]);
      const uint16_t value = *read_at<uint16_t>(list, at + 2);
      at += 4;
      if (format != kFormatPayload) continue;
      if (list.size() - at < value) return false;
      note_payload(attribute, list.substr(at, value), owner);
      at += value;
    }
    return true;
  }

  // A parameter of the section's kernel, its size in the upper 14 bits of the third word (the sum
  // of the sizes is less than the parameter space, which begins with what alignment leaves free);
  // or a payload that names its kernel: {symbol index, value}.
  void note_payload(unsigned char attribute, std::string_view payload, CubinKernel* owner) {
    if (attribute == kAttributeParam && owner != nullptr) {
      if (const auto packed = read_at<uint32_t>(payload, 8))
        owner->param_bytes += static_cast<int>(*packed >> 18);
      return;
    }
    if (attribute != kAttributeFrameBytes && attribute != kAttributeRegisters) return;
    const auto symbol = read_at<uint32_t>(payload, 0);
    const auto value = read_at<uint32_t>(payload, 4);
    if (!symbol || !value) return;
    const auto found = kernel_of_symbol_.find(*symbol);
    if (found == kernel_of_symbol_.end()) return;
    CubinKernel& kernel = kernels[found->second];
    (attribute == kAttributeFrameBytes ? kernel.stack_bytes : kernel.registers) =
        static_cast<int>(*value);
  }

  std::string_view bytes_;
  std::vector<Section> sections_;
  std::map<uint32_t, size_t> kernel_of_symbol_;
};

}  // namespace

Result<std::vector<CubinKernel>> read_cubin(std::string_view bytes) {
  Reader reader(bytes);
  if (!reader.read())
    return Status(StatusCode::kInvalidFile, "cubin: found no such file, expected ELF64 for a GPU");
  return std::move(reader.kernels);
}

}  // namespace moray::gpu
