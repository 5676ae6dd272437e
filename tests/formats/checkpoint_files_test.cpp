// Model folders with missing, truncated, misplaced or hostile files: one message that names them.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <string>

#include "src/formats/checkpoint.h"
#include "tests/support/config_texts.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/temp_folder.h"

namespace moray {
namespace {

const std::string kFirst = "model-00001-of-00002.safetensors";
const std::string kSecond = "model-00002-of-00002.safetensors";
const std::string kIndex = "model.safetensors.index.json";

TestTensors first_shard() {
  return {{"a", zero_tensor(DType::kF32, {4})}};
}
TestTensors second_shard() {
  return {{"b", zero_tensor(DType::kF32, {4})}};
}

void write_model(const TempFolder& folder) {
  folder.write("config.json", kTinyConfig);
  folder.write(kFirst, safetensors_content(first_shard()));
  folder.write(kSecond, safetensors_content(second_shard()));
  folder.write(kIndex, index_content({{"a", kFirst}, {"b", kSecond}}));
}

void expect_refused(const TempFolder& folder, StatusCode code, const std::string& expected) {
  const auto checkpoint = Checkpoint::open(folder.path());
  ASSERT_FALSE(checkpoint.ok()) << expected;
  EXPECT_EQ(checkpoint.status().code(), code) << checkpoint.status().message();
  EXPECT_NE(checkpoint.status().message().find(expected), std::string::npos)
      << "expected: " << expected << "\nfound: " << checkpoint.status().message();
  EXPECT_EQ(checkpoint.status().message().find('\n'), std::string::npos);
}

TEST(CheckpointFiles, FoldersThatAreNotModels) {
  TempFolder folder;
  expect_refused(folder, StatusCode::kNotFound, "found no config.json, expected a model folder");
  folder.write("config.json", kTinyConfig);
  expect_refused(folder, StatusCode::kNotFound, "found neither model.safetensors nor");
  EXPECT_EQ(Checkpoint::open(folder / "none").status().code(), StatusCode::kNotFound);
  const auto file = Checkpoint::open(folder / "config.json");
  EXPECT_EQ(file.status().code(), StatusCode::kInvalidFile);
  EXPECT_NE(file.status().message().find("found a file"), std::string::npos);
}

TEST(CheckpointFiles, SingleFileModelNeedsNoIndex) {
  TempFolder folder;
  folder.write("config.json", kTinyConfig);
  folder.write("model.safetensors", safetensors_content(first_shard()));
  const auto checkpoint = Checkpoint::open(folder.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_TRUE((*checkpoint)->find("a"));
}

TEST(CheckpointFiles, B48_MissingAndBrokenShards) {
  TempFolder folder;
  write_model(folder);
  std::filesystem::remove(folder / kSecond);
  expect_refused(folder, StatusCode::kNotFound,
                 "found 1 of 2 shards missing ('" + kSecond + "'), expected all");
  std::filesystem::remove(folder / kFirst);
  expect_refused(folder, StatusCode::kNotFound, "found 2 of 2 shards missing");

  write_model(folder);
  std::filesystem::remove(folder / kSecond);
  std::filesystem::create_symlink("blob-that-is-gone", folder / kSecond);
  expect_refused(folder, StatusCode::kNotFound, "found 1 of 2 shards missing");

  write_model(folder);
  const std::string whole = safetensors_content(second_shard());
  folder.write(kSecond, whole.substr(0, whole.size() - 1));
  expect_refused(folder, StatusCode::kInvalidFile, kSecond + ": tensor 'b': data_offsets: found");
  folder.write(kSecond, "");
  expect_refused(folder, StatusCode::kInvalidFile, kSecond + ": found an empty file");
  folder.write(kSecond, "<html>404 not found</html>");
  expect_refused(folder, StatusCode::kInvalidFile, kSecond + ": header length");
  folder.write(kSecond, "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n");
  expect_refused(folder, StatusCode::kInvalidFile, kSecond + ": header length");
}

TEST(CheckpointFiles, B48_DirectoryFifoAndLoopAsShard) {
  TempFolder folder;
  write_model(folder);
  std::filesystem::remove(folder / kFirst);
  std::filesystem::create_directory(folder / kFirst);
  expect_refused(folder, StatusCode::kInvalidFile, kFirst + ": found a directory");
  std::filesystem::remove(folder / kFirst);
  ASSERT_EQ(mkfifo((folder / kFirst).c_str(), 0600), 0);
  expect_refused(folder, StatusCode::kInvalidFile, kFirst + ": found a FIFO");
  std::filesystem::remove(folder / kFirst);
  std::filesystem::create_symlink(kFirst, folder / kFirst);
  expect_refused(folder, StatusCode::kInvalidFile, kFirst + ": found 'Too many levels");
  std::filesystem::remove(folder / "config.json");
  ASSERT_EQ(mkfifo((folder / "config.json").c_str(), 0600), 0);
  expect_refused(folder, StatusCode::kInvalidFile, "config.json: found a FIFO");
}

TEST(CheckpointFiles, B48_IndexThatLeavesTheFolder) {
  TempFolder folder;
  write_model(folder);
  folder.write("outside.safetensors", safetensors_content(first_shard()));
  for (const char* shard :
       {"../../x", "../x.safetensors", "/etc/passwd", "/tmp/x.safetensors", "sub/x.safetensors", "",
        ".", "..", ".safetensors", "model.safetensors.index.json", "..\\\\x.safetensors",
        "a\\u0000.safetensors", "a\\n.safetensors"}) {
    folder.write(kIndex, index_content({{"a", shard}, {"b", kSecond}}));
    expect_refused(folder, StatusCode::kInvalidFile, "weight_map 'a': found '");
  }
}

TEST(CheckpointFiles, B48_IndexThatIsNoIndex) {
  TempFolder folder;
  write_model(folder);
  const std::map<std::string, std::string> cases = {
      {"", "found an empty file"},
      {"{", "no valid JSON"},
      {"[]", "found an array, expected a JSON object"},
      {"{}", "weight_map: found no object"},
      {"{\"weight_map\":[]}", "weight_map: found no object"},
      {"{\"weight_map\":{}}", "weight_map: found no entries"},
      {"{\"weight_map\":{\"a\":7}}", "weight_map 'a': found 7"},
      {"{\"weight_map\":{\"a\":\"x.safetensors\",\"a\":\"x.safetensors\"}}",
       "weight_map 'a': found twice"},
      {"{\"weight_map\":" + std::string(50'000, '['), "no valid JSON"},
  };
  for (const auto& [text, expected] : cases) {
    folder.write(kIndex, text);
    expect_refused(folder, StatusCode::kInvalidFile, expected);
  }
}

TEST(CheckpointFiles, B48_IndexAndShardsMustAgree) {
  TempFolder folder;
  write_model(folder);
  folder.write(kIndex, index_content({{"a", kSecond}, {"b", kFirst}, {"c", kFirst}}));
  const Status status = Checkpoint::open(folder.path()).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidFile);
  for (const std::string& line :
       {fmt::format("'a': found in {}, expected it only in {}", kFirst, kSecond),
        fmt::format("'b': found in {}, expected it only in {}", kSecond, kFirst),
        fmt::format("'c': found nothing, expected it in {}", kFirst)}) {
    EXPECT_NE(status.message().find(line), std::string::npos) << line << '\n' << status.message();
  }
  folder.write(kIndex, index_content({{"a", kFirst}, {"b", kSecond}}));
  TestTensors both = second_shard();
  both["a"] = zero_tensor(DType::kF32, {4});
  folder.write(kSecond, safetensors_content(both));
  expect_refused(folder, StatusCode::kInvalidFile,
                 fmt::format("'a': found in {}, expected it only in {}", kSecond, kFirst));
}

TEST(CheckpointFiles, ReportsAreBounded) {
  TempFolder folder;
  write_model(folder);
  std::map<std::string, std::string> index = {{"a", kFirst}, {"b", kSecond}};
  for (int number = 0; number < 5000; ++number) index[fmt::format("c{}", number)] = kFirst;
  folder.write(kIndex, index_content(index));
  expect_refused(folder, StatusCode::kInvalidFile, "; and 4980 more");
  EXPECT_LT(Checkpoint::open(folder.path()).status().message().size(), 4000u);
}

TEST(CheckpointFiles, PrefixAndVisionAreRecognised) {
  TempFolder folder;
  folder.write("config.json", kTinyConfig);
  folder.write(
      "model.safetensors",
      safetensors_content({{"model.language_model.norm.weight", zero_tensor(DType::kBF16, {4})},
                           {"model.visual.blocks.0.norm1.weight", zero_tensor(DType::kBF16, {4})},
                           {"model.visual.merger.norm.weight", zero_tensor(DType::kBF16, {4})}}));
  const auto checkpoint = Checkpoint::open(folder.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_EQ((*checkpoint)->text_prefix(), "model.language_model.");
  EXPECT_EQ((*checkpoint)->vision_tensor_count(), 2);
}

TEST(CheckpointFiles, GenerationConfigIsOptionalButChecked) {
  TempFolder folder;
  write_model(folder);
  folder.write("generation_config.json", R"({"eos_token_id": [1, 2], "temperature": 0.6})");
  const auto checkpoint = Checkpoint::open(folder.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_EQ((*checkpoint)->generation().eos_token_ids, (std::vector<int32_t>{1, 2}));
  folder.write("generation_config.json", R"({"eos_token_id": [1, 300]})");
  expect_refused(folder, StatusCode::kInvalidFile,
                 "generation_config.json: eos_token_id: found 300, expected less than vocab_size");
  folder.write("generation_config.json", "nonsense");
  expect_refused(folder, StatusCode::kInvalidFile, "generation_config.json: found no valid JSON");
}

}  // namespace
}  // namespace moray
