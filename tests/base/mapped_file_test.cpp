// MappedFile: what is not a plain, non-empty file is refused at once; a shrinking one ends cleanly.
#include "src/base/mapped_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/temp_folder.h"

namespace moray {
namespace {

constexpr int kExitStatus = 42;

TEST(MappedFile, GivesTheBytesOfTheFile) {
  TempFolder folder;
  const auto file = MappedFile::open(folder.write("a", "hello"));
  ASSERT_TRUE(file.ok()) << file.status().message();
  ASSERT_EQ(file->data().size(), 5u);
  EXPECT_EQ(std::to_integer<char>(file->data()[4]), 'o');
}

TEST(MappedFile, MovingKeepsTheAddress) {
  TempFolder folder;
  auto opened = MappedFile::open(folder.write("a", "hello"));
  ASSERT_TRUE(opened.ok());
  const std::byte* address = opened->data().data();
  MappedFile first = std::move(opened).value();
  std::vector<MappedFile> files;
  files.push_back(std::move(first));
  files.reserve(100);
  EXPECT_EQ(files[0].data().data(), address);
  EXPECT_EQ(files[0].path(), folder / "a");
}

TEST(MappedFile, B48_DirectoryFifoEmptyAndLoopAreRefusedByName) {
  TempFolder folder;
  ASSERT_EQ(mkfifo((folder / "fifo").c_str(), 0600), 0);
  ASSERT_EQ(symlink("loop", (folder / "loop").c_str()), 0);
  folder.write("empty", "");
  const std::vector<std::pair<std::string, std::string>> cases = {
      {folder.path(), "a directory"},      {folder / "fifo", "a FIFO"},
      {folder / "empty", "an empty file"}, {folder / "loop", "symbolic links"},
      {"/dev/null", "a device"},
  };
  for (const auto& [path, found] : cases) {
    const auto file = MappedFile::open(path);
    ASSERT_FALSE(file.ok()) << path;
    EXPECT_EQ(file.status().code(), StatusCode::kInvalidFile) << path;
    EXPECT_NE(file.status().message().find(path), std::string::npos);
    EXPECT_NE(file.status().message().find(found), std::string::npos) << file.status().message();
  }
}

TEST(MappedFile, AbsentFileIsNotFound) {
  TempFolder folder;
  EXPECT_EQ(MappedFile::open(folder / "none").status().code(), StatusCode::kNotFound);
  folder.write("plain", "x");
  EXPECT_EQ(MappedFile::open(folder / "plain/below").status().code(), StatusCode::kNotFound);
}

TEST(MappedFile, TableFullIsAnErrorAndFreesWithItsFiles) {
  TempFolder folder;
  const std::string path = folder.write("a", "hello");
  {
    std::vector<MappedFile> files;
    for (size_t count = 0; count < kMappedFilesMax; ++count) {
      auto file = MappedFile::open(path);
      ASSERT_TRUE(file.ok()) << count;
      files.push_back(std::move(file).value());
    }
    EXPECT_EQ(MappedFile::open(path).status().code(), StatusCode::kExhausted);
  }
  EXPECT_TRUE(MappedFile::open(path).ok());
}

// Maps three pages, shrinks the file to `bytes_left`, and reads the last page.
void read_after_shrinking(const std::string& path, off_t bytes_left) {
  install_shrink_guard(kExitStatus);
  auto opened = MappedFile::open(path);
  const MappedFile file = std::move(opened).value();  // the guard must follow the move
  if (truncate(path.c_str(), bytes_left) != 0) _exit(1);
  const volatile std::byte* data = file.data().data();
  (void)data[file.data().size() - 1];
  _exit(0);
}

TEST(MappedFileDeathTest, B48_ShrunkFileEndsWithOneLineAndTheStatus) {
  TempFolder folder;
  for (off_t bytes_left : {0, 4096, 5000}) {
    const std::string path = folder.write("weights", std::string(3 * 4096, 'x'));
    EXPECT_EXIT(read_after_shrinking(path, bytes_left), ::testing::ExitedWithCode(kExitStatus),
                "^error: .*/weights: shrank or became unreadable while it was mapped[^\n]*\n$");
  }
}

void read_from_many_threads(const std::string& path) {
  install_shrink_guard(kExitStatus);
  const auto file = MappedFile::open(path);
  if (truncate(path.c_str(), 0) != 0) _exit(1);
  const volatile std::byte* data = file->data().data();
  std::vector<std::thread> readers;
  for (int count = 0; count < 8; ++count) readers.emplace_back([=] { (void)data[0]; });
  for (std::thread& reader : readers) reader.join();
  _exit(0);
}

TEST(MappedFileDeathTest, B48_ManyReadersOfAShrunkFileGiveOneLine) {
  TempFolder folder;
  const std::string path = folder.write("weights", std::string(4096, 'x'));
  EXPECT_EXIT(read_from_many_threads(path), ::testing::ExitedWithCode(kExitStatus),
              "^error: [^\n]*\n$");
}

TEST(MappedFileDeathTest, ClosedMappingIsNoLongerGuarded) {
  TempFolder folder;
  const std::string path = folder.write("weights", std::string(4096, 'x'));
  const auto raise_after_closing = [&] {
    install_shrink_guard(kExitStatus);
    { const auto file = MappedFile::open(path); }
    raise(SIGBUS);
    _exit(0);
  };
  EXPECT_EXIT(raise_after_closing(), ::testing::KilledBySignal(SIGBUS), "^$");
}

TEST(MappedFileDeathTest, SentSignalKeepsItsDefaultAction) {
  TempFolder folder;
  const std::string path = folder.write("weights", std::string(4096, 'x'));
  const auto raise_while_mapped = [&] {
    install_shrink_guard(kExitStatus);
    const auto file = MappedFile::open(path);
    raise(SIGBUS);
    _exit(0);
  };
  EXPECT_EXIT(raise_while_mapped(), ::testing::KilledBySignal(SIGBUS), "^$");
}

}  // namespace
}  // namespace moray
