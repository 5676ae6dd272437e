// safetensors: valid files come back byte for byte; every kind of hostile header is refused by
// name.
#include "src/formats/safetensors.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/support/safetensors_writer.h"
#include "tests/support/temp_folder.h"

namespace moray {
namespace {

struct Hostile {
  std::string what;
  std::string content;
  std::string expected;  // must occur in the message
};

// One tensor entry; `data_offsets` and `shape` as text so that they may be anything.
std::string entry(std::string_view name, std::string_view dtype, std::string_view shape,
                  std::string_view offsets) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":{}}})", name, dtype, shape,
                     offsets);
}

std::string file_of(const std::string& entries, size_t data_bytes) {
  return raw_safetensors("{" + entries + "}", std::string(data_bytes, 'd'));
}

void expect_refused(const std::vector<Hostile>& cases) {
  TempFolder folder;
  for (const Hostile& hostile : cases) {
    const std::string path = folder.write("x.safetensors", hostile.content);
    const auto file = SafetensorsFile::open(path);
    ASSERT_FALSE(file.ok()) << hostile.what;
    const std::string& message = file.status().message();
    EXPECT_EQ(file.status().code(), StatusCode::kInvalidFile) << hostile.what;
    EXPECT_NE(message.find(hostile.expected), std::string::npos) << hostile.what << ": " << message;
    EXPECT_EQ(message.find(path), 0u) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

TEST(Safetensors, B48_HeaderLengthsThatCannotBe) {
  const std::string data(100, ' ');
  expect_refused({
      {"one byte", "x", "a file of 1 bytes"},
      {"seven bytes", std::string(7, '\0'), "a file of 7 bytes"},
      {"zero", length_bytes(0) + data, "found 0, expected 2.."},
      {"one", length_bytes(1) + data, "found 1, expected 2.."},
      {"seven of nothing", length_bytes(7), "found 7, expected at most the 0 bytes"},
      {"one more than there is", length_bytes(101) + data, "found 101, expected at most the 100"},
      {"2^31", length_bytes(uint64_t{1} << 31) + data, "found 2147483648, expected 2..100000000"},
      {"2^63", length_bytes(uint64_t{1} << 63) + data, "found 9223372036854775808, expected 2.."},
      {"2^64-4", length_bytes(~uint64_t{3}) + data, "found 18446744073709551612, expected 2.."},
      {"2^64-8", length_bytes(~uint64_t{7}) + data, "found 18446744073709551608, expected 2.."},
  });
}

TEST(Safetensors, B48_HeaderOf200MegabytesIsRefusedUnread) {
  TempFolder folder;
  const std::string path = folder.write("x.safetensors", length_bytes(200'000'000));
  ASSERT_EQ(truncate(path.c_str(), 8 + 200'000'000), 0);  // sparse: costs no disk
  const auto file = SafetensorsFile::open(path);
  ASSERT_FALSE(file.ok());
  EXPECT_NE(file.status().message().find("found 200000000, expected 2..100000000"),
            std::string::npos);
}

TEST(Safetensors, B48_HeadersThatAreNotObjects) {
  const std::string good = entry("a", "F32", "[1]", "[0,4]");
  expect_refused({
      {"text", raw_safetensors("hello", ""), "expected '{'"},
      {"list", raw_safetensors("[1,2]", ""), "expected '{'"},
      {"blank first", raw_safetensors(" {}", ""), "expected '{'"},
      {"unclosed", raw_safetensors("{" + good, "data"), "no valid JSON"},
      {"trailing", raw_safetensors("{" + good + "}x", "data"), "no valid JSON"},
      {"not UTF-8", raw_safetensors("{\"\xff\xfe\":1}", ""), "no valid JSON"},
      {"depth bomb", raw_safetensors("{\"a\":" + std::string(500'000, '['), ""), "no valid JSON"},
      {"closed depth bomb",
       raw_safetensors("{\"a\":" + std::string(99, '[') + std::string(99, ']') + "}", ""),
       "no valid JSON"},
      {"binary", raw_safetensors(std::string("{\0\0\0}", 5), ""), "no valid JSON"},
      {"tensor is a number", raw_safetensors("{\"a\":7}", ""), "tensor 'a': found 7"},
      {"metadata is a list", raw_safetensors("{\"__metadata__\":[]}", ""), "__metadata__: found"},
      {"metadata of numbers", raw_safetensors("{\"__metadata__\":{\"k\":1}}", ""),
       "__metadata__ 'k': found 1, expected a string"},
      {"metadata twice", raw_safetensors("{\"__metadata__\":{},\"__metadata__\":{}}", ""),
       "__metadata__: found twice"},
      {"metadata key twice", raw_safetensors(R"({"__metadata__":{"k":"a","k":"a"}})", ""),
       "__metadata__ 'k': found twice"},
  });
}

TEST(Safetensors, B48_DuplicateNames) {
  const std::string first = entry("a", "F32", "[1]", "[0,4]");
  expect_refused({
      {"same", file_of(first + "," + entry("a", "F32", "[1]", "[4,8]"), 8),
       "tensor 'a': found twice"},
      {"same place", file_of(first + "," + first, 4), "tensor 'a': found twice"},
      {"same by escape", file_of(first + "," + entry("\\u0061", "F32", "[1]", "[4,8]"), 8),
       "tensor 'a': found twice"},
      {"dtype twice",
       file_of(R"("a":{"dtype":"F32","dtype":"F16","shape":[1],"data_offsets":[0,4]})", 4),
       "'dtype': found twice"},
  });
}

TEST(Safetensors, B48_DTypesAndShapes) {
  expect_refused({
      {"F99", file_of(entry("a", "F99", "[1]", "[0,4]"), 4), "dtype: found 'F99', expected one of"},
      {"lower case", file_of(entry("a", "f32", "[1]", "[0,4]"), 4), "dtype: found 'f32'"},
      {"dtype is a number", file_of(R"("a":{"dtype":1,"shape":[1],"data_offsets":[0,4]})", 4),
       "dtype: found 1"},
      {"no dtype", file_of(R"("a":{"shape":[1],"data_offsets":[0,4]})", 4), "dtype: found nothing"},
      {"no shape", file_of(R"("a":{"dtype":"F32","data_offsets":[0,4]})", 4),
       "shape: found nothing"},
      {"shape is a number", file_of(entry("a", "F32", "4", "[0,4]"), 4), "shape: found 4"},
      {"2^32 squared", file_of(entry("a", "F32", "[4294967296,4294967296]", "[0,4]"), 4),
       "shape: found [4294967296, 4294967296], expected fewer than 2^63 bytes"},
      {"wraps to the span", file_of(entry("a", "U8", "[4294967296,4294967296]", "[0,0]"), 0),
       "expected fewer than 2^63 bytes"},
      {"elements fit, bytes do not",
       file_of(entry("a", "F32", "[4611686018427387904]", "[0,0]"), 0),
       "expected fewer than 2^63 bytes"},
      {"negative", file_of(entry("a", "F32", "[-1]", "[0,4]"), 4), "shape[0]: found -1"},
      {"two negatives", file_of(entry("a", "F32", "[-1,-1]", "[0,4]"), 4), "shape[0]: found -1"},
      {"fraction", file_of(entry("a", "F32", "[1.0]", "[0,4]"), 4), "shape[0]: found 1.0"},
      {"text", file_of(entry("a", "F32", "[\"1\"]", "[0,4]"), 4), "shape[0]: found '1'"},
      {"2^63", file_of(entry("a", "U8", "[9223372036854775808]", "[0,4]"), 4), "shape[0]: found"},
      {"nine dimensions", file_of(entry("a", "F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4),
       "more than 8 dimensions"},
      {"span too long", file_of(entry("a", "F32", "[1]", "[0,8]"), 8),
       "a span of 8 bytes, expected 4 for F32 [1]"},
      {"span too short", file_of(entry("a", "F16", "[3]", "[0,4]"), 4),
       "a span of 4 bytes, expected 6 for F16 [3]"},
      {"empty tensor with bytes", file_of(entry("a", "F32", "[0,5]", "[0,4]"), 4),
       "a span of 4 bytes, expected 0"},
      {"scalar without bytes", file_of(entry("a", "F32", "[]", "[0,0]"), 0),
       "a span of 0 bytes, expected 4"},
  });
}

TEST(Safetensors, B48_OffsetsMustTileTheData) {
  const std::string a = entry("a", "F32", "[1]", "[0,4]");
  const auto with_a = [&](const std::string& other, size_t data_bytes) {
    return file_of(a + "," + other, data_bytes);
  };
  expect_refused({
      {"reversed", file_of(entry("a", "F32", "[1]", "[4,0]"), 4), "found [4, 0], expected begin"},
      {"negative", file_of(entry("a", "F32", "[1]", "[-4,0]"), 4), "data_offsets[0]: found -4"},
      {"one element", file_of(entry("a", "F32", "[1]", "[0]"), 4), "found 1 numbers"},
      {"three elements", file_of(entry("a", "F32", "[1]", "[0,4,8]"), 8), "more than 2 numbers"},
      {"none", file_of(entry("a", "F32", "[1]", "[]"), 4), "found 0 numbers"},
      {"a string", file_of(entry("a", "F32", "[1]", "\"0,4\""), 4), "data_offsets: found '0,4'"},
      {"fractions", file_of(entry("a", "F32", "[1]", "[0.0,4.0]"), 4),
       "data_offsets[0]: found 0.0"},
      {"2^64", file_of(entry("a", "F32", "[1]", "[0,18446744073709551616]"), 4), "no valid JSON"},
      {"2^64-1", file_of(entry("a", "F32", "[1]", "[0,18446744073709551615]"), 4),
       "expected begin <= end <= 4"},
      {"past the end", file_of(entry("a", "F32", "[2]", "[0,8]"), 7), "expected begin <= end <= 7"},
      {"gap at the start", file_of(entry("a", "F32", "[1]", "[4,8]"), 8), "there is a gap before"},
      {"gap in the middle", with_a(entry("b", "F32", "[1]", "[8,12]"), 12), "tensor 'b'"},
      {"overlap", with_a(entry("b", "F32", "[1]", "[2,6]"), 6), "it overlaps another tensor"},
      {"same span", with_a(entry("b", "F32", "[1]", "[0,4]"), 4), "it overlaps another tensor"},
      {"nested",
       file_of(entry("a", "U8", "[8]", "[0,8]") + "," + entry("b", "U8", "[2]", "[2,4]"), 8),
       "it overlaps another tensor"},
      {"bytes left over", file_of(a, 5), "data: found 5 bytes, expected the 4"},
      {"bytes without tensors", raw_safetensors("{}", "x"), "data: found 1 bytes, expected the 0"},
      {"empty tensor in a gap",
       file_of(
           a + "," + entry("b", "F32", "[0]", "[6,6]") + "," + entry("c", "U8", "[4]", "[8,12]"),
           12),
       "there is a gap before"},
  });
}

TEST(Safetensors, B48_TruncatedAnywhereIsRefused) {
  TempFolder folder;
  const std::string content = safetensors_content(
      {{"a", zero_tensor(DType::kF32, {3})}, {"b", zero_tensor(DType::kBF16, {5})}});
  const std::string path = folder.write("x.safetensors", content);
  ASSERT_TRUE(SafetensorsFile::open(path).ok());
  for (size_t size = 1; size < content.size(); ++size) {
    folder.write("x.safetensors", content.substr(0, size));
    EXPECT_FALSE(SafetensorsFile::open(path).ok()) << size;
  }
}

TEST(Safetensors, NamesInMessagesCannotDriveATerminal) {
  TempFolder folder;
  const std::string path =
      folder.write("x.safetensors",
                   file_of(entry("\\u001b[2J\\n" + std::string(500, 'n'), "F99", "[]", "[]"), 0));
  const std::string message = SafetensorsFile::open(path).status().message();
  EXPECT_NE(message.find("\\x1b[2J\\x0a"), std::string::npos) << message;
  EXPECT_LT(message.size(), path.size() + 300);
}

TEST(Safetensors, EmptyAndScalarTensorsAreLegal) {
  TempFolder folder;
  const std::string path =
      folder.write("x.safetensors", file_of(entry("scalar", "F32", "[]", "[0,4]") + "," +
                                                entry("none", "F32", "[0,7]", "[4,4]") + "," +
                                                entry("first", "U8", "[0]", "[0,0]"),
                                            4));
  const auto file = SafetensorsFile::open(path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->bytes(file->header().tensors.at("scalar")).size(), 4u);
  EXPECT_TRUE(file->bytes(file->header().tensors.at("none")).empty());
}

// A random valid file: any dtype, 0 to 4 dimensions (zero sizes too), data in random order.
struct RandomFile {
  TestTensors tensors;
  std::string content;
};

RandomFile random_file(std::mt19937_64& random) {
  const auto below = [&](uint64_t limit) { return static_cast<int64_t>(random() % limit); };
  constexpr DType kAll[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3,
                            DType::kU8,  DType::kI32, DType::kI64};
  RandomFile file;
  for (int64_t count = below(12); count > 0; --count) {
    std::vector<int64_t> shape;
    for (int64_t rank = below(5); rank > 0; --rank) shape.push_back(below(6));
    TestTensor tensor = zero_tensor(kAll[below(7)], shape);
    for (char& byte : tensor.bytes) byte = static_cast<char>(random());
    file.tensors[fmt::format("t.{}.\xc3\xa9{}", below(1000), below(10))] = std::move(tensor);
  }
  std::vector<std::string> order;
  for (const auto& [name, tensor] : file.tensors) order.push_back(name);
  std::shuffle(order.begin(), order.end(), random);
  std::map<std::string, size_t> begin;
  std::string data;
  for (const std::string& name : order) {
    begin[name] = data.size();
    data += file.tensors[name].bytes;
  }
  std::shuffle(order.begin(), order.end(), random);
  std::string entries;
  for (const std::string& name : order) {
    const TestTensor& tensor = file.tensors[name];
    entries += entries.empty() ? "" : ", ";
    entries +=
        entry(name, dtype_name(tensor.dtype), fmt::format("[{}]", fmt::join(tensor.shape, ", ")),
              fmt::format("[{}, {}]", begin[name], begin[name] + tensor.bytes.size()));
  }
  file.content = raw_safetensors("{" + entries + "}" + std::string(below(9), ' '), data);
  return file;
}

TEST(Safetensors, RandomValidFilesComeBackByteForByte) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937_64 random(seed);
  TempFolder folder;
  for (int round = 0; round < 300; ++round) {
    const RandomFile written = random_file(random);
    const auto file = SafetensorsFile::open(folder.write("x.safetensors", written.content));
    ASSERT_TRUE(file.ok()) << file.status().message();
    ASSERT_EQ(file->header().tensors.size(), written.tensors.size());
    for (const auto& [name, tensor] : written.tensors) {
      const TensorEntry& read = file->header().tensors.at(name);
      const auto bytes = file->bytes(read);
      EXPECT_EQ(read.dtype, tensor.dtype);
      EXPECT_EQ(read.shape, tensor.shape);
      EXPECT_TRUE(std::equal(
          bytes.begin(), bytes.end(), reinterpret_cast<const std::byte*>(tensor.bytes.data()),
          reinterpret_cast<const std::byte*>(tensor.bytes.data()) + tensor.bytes.size()));
    }
  }
}

}  // namespace
}  // namespace moray
