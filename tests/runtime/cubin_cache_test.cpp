// The cache of compiled programs gives back what it was given, or nothing.
#include "src/gpu/cubin_cache.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <thread>

#include "tests/support/temp_folder.h"

namespace moray::gpu {
namespace {

namespace fs = std::filesystem;

std::string key(std::string_view text) {
  return CacheKey().add(text).hex();
}

std::string random_bytes(size_t count) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  std::string bytes(count, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

int count_files(const std::string& folder) {
  return static_cast<int>(std::distance(fs::directory_iterator(folder), {}));
}

TEST(CacheKey, TellsFieldsAndTheirBordersApart) {
  EXPECT_EQ(key("a").size(), 32u);
  EXPECT_EQ(key("a"), key("a"));
  EXPECT_NE(key("a"), key("b"));
  EXPECT_NE(CacheKey().add("ab").add("c").hex(), CacheKey().add("a").add("bc").hex());
  EXPECT_NE(CacheKey().add("a").add("").hex(), CacheKey().add("a").hex());
}

TEST(CubinCache, GivesBackWhatWasStored) {
  const TempFolder folder;
  const CubinCache cache(folder / "a/b/kernels");
  EXPECT_FALSE(cache.load(key("x")));
  const std::string bytes = random_bytes(100000);
  ASSERT_TRUE(cache.store(key("x"), bytes).ok());
  EXPECT_EQ(cache.load(key("x")), bytes);
  EXPECT_FALSE(cache.load(key("y")));
  ASSERT_TRUE(cache.store(key("x"), "other").ok()) << "an entry may be replaced";
  EXPECT_EQ(cache.load(key("x")), "other");
  EXPECT_EQ(count_files(folder / "a/b/kernels"), 1) << "no temporary file stays";
}

TEST(CubinCache, IsForThisUserAlone) {
  const TempFolder folder;
  ASSERT_TRUE(CubinCache(folder / "kernels").store(key("x"), "bytes").ok());
  EXPECT_EQ(fs::status(folder / "kernels").permissions(), fs::perms::owner_all);
}

TEST(CubinCache, EveryDamagedByteAndEveryTruncationIsFoundAndRemoved) {
  const TempFolder folder;
  const CubinCache cache(folder.path());
  const std::string bytes = random_bytes(200);
  const std::string path = folder / (key("x") + ".cubin");
  ASSERT_TRUE(cache.store(key("x"), bytes).ok());
  const std::string whole = read_file(path);
  ASSERT_GT(whole.size(), bytes.size());
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
    folder.write(key("x") + ".cubin", damaged);
    EXPECT_FALSE(cache.load(key("x"))) << "byte " << i;
    EXPECT_FALSE(fs::exists(path)) << "byte " << i;
  }
  for (size_t size = 0; size < whole.size(); ++size) {
    folder.write(key("x") + ".cubin", std::string_view(whole).substr(0, size));
    EXPECT_FALSE(cache.load(key("x"))) << "cut to " << size;
  }
  folder.write(key("x") + ".cubin", whole + "z");
  EXPECT_FALSE(cache.load(key("x"))) << "a byte too many";
  folder.write(key("y") + ".cubin", whole);
  EXPECT_FALSE(cache.load(key("y"))) << "an entry under another's name";
  folder.write(key("x") + ".cubin", whole);
  EXPECT_EQ(cache.load(key("x")), bytes);
}

TEST(CubinCache, WhatIsNoFileIsNoEntry) {
  const TempFolder folder;
  const CubinCache cache(folder.path());
  ASSERT_EQ(mkfifo((folder / (key("x") + ".cubin")).c_str(), 0600), 0);
  EXPECT_FALSE(cache.load(key("x"))) << "and reading it does not block";
}

// A folder below a file cannot be made, not by root either.
TEST(CubinCache, AnUnwritableFolderIsAStatusThatNamesIt) {
  const TempFolder folder;
  folder.write("file", "no folder");
  const CubinCache cache(folder / "file/kernels");
  const Status status = cache.store(key("x"), "bytes");
  EXPECT_EQ(status.code(), StatusCode::kIo);
  EXPECT_NE(status.message().find("file/kernels"), std::string::npos) << status.message();
  EXPECT_FALSE(cache.load(key("x")));
}

// A limit on the size of files stands for a full disk: the write stops in the middle.
TEST(CubinCache, AWriteThatStopsHalfWayLeavesNothingBehind) {
  const TempFolder folder;
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {10000, 10000};
    setrlimit(RLIMIT_FSIZE, &limit);
    const Status status = CubinCache(folder.path()).store(key("x"), std::string(50000, 'x'));
    _exit(status.code() == StatusCode::kIo ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(count_files(folder.path()), 0);
}

TEST(CubinCache, WithoutAFolderItHoldsNothing) {
  const CubinCache cache("");
  EXPECT_TRUE(cache.store(key("x"), "bytes").ok());
  EXPECT_FALSE(cache.load(key("x")));
}

TEST(CubinCache, TheOldestEntriesLeaveWhenItGrowsTooLarge) {
  const TempFolder folder;
  const CubinCache cache(folder.path());
  const std::string large(static_cast<size_t>(kCacheBytesMax / 4), 'x');
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(cache.store(key(std::to_string(i)), large).ok());
    fs::last_write_time(folder / (key(std::to_string(i)) + ".cubin"),
                        fs::file_time_type::clock::now() - std::chrono::hours(10 - i));
  }
  ASSERT_TRUE(cache.store(key("last"), "small").ok());
  EXPECT_FALSE(cache.load(key("0")));
  EXPECT_FALSE(cache.load(key("1")));
  EXPECT_TRUE(cache.load(key("4")));
  EXPECT_EQ(cache.load(key("last")), "small");
}

TEST(CubinCache, ManyWritersOfOneKeyLeaveOneWholeEntry) {
  const TempFolder folder;
  const CubinCache cache(folder.path());
  const std::string bytes = random_bytes(50000);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        EXPECT_TRUE(cache.store(key("x"), bytes).ok());
        EXPECT_EQ(cache.load(key("x")), bytes);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count_files(folder.path()), 1);
}

}  // namespace
}  // namespace moray::gpu
