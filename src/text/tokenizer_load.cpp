// Tokenizer::load: the two files of a checkpoint folder, read and handed to the parser.
#include <fmt/format.h>

#include "moray/text.h"
#include "src/base/mapped_file.h"
#include "src/text/byte_level_tokenizer.h"
#include "src/text/tokenizer_file.h"

namespace moray {
namespace {

// Twenty times the largest published tokenizer.json.
constexpr size_t kFileBytesMax = size_t{512} << 20;

Result<std::string> read_json(const std::string& path) {
  ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
  if (file.data().size() > kFileBytesMax) {
    return Status(StatusCode::kInvalidFile, fmt::format("{}: found {} bytes, expected at most {}",
                                                        path, file.data().size(), kFileBytesMax));
  }
  return std::string(reinterpret_cast<const char*>(file.data().data()), file.data().size());
}

}  // namespace

Result<std::shared_ptr<const Tokenizer>> Tokenizer::load(const std::string& folder) {
  ASSIGN_OR_RETURN(const std::string json, read_json(folder + "/tokenizer.json"));
  auto config = read_json(folder + "/tokenizer_config.json");
  if (!config.ok() && config.status().code() != StatusCode::kNotFound) return config.status();
  auto file = parse_tokenizer_file(json, config.ok() ? std::string_view(*config) : "");
  if (!file.ok()) {
    return Status(file.status().code(), fmt::format("{}/{}", folder, file.status().message()));
  }
  return std::shared_ptr<const Tokenizer>(std::make_shared<ByteLevelTokenizer>(*std::move(file)));
}

}  // namespace moray
