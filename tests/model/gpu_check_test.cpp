// What faults of kernels leave to run, and what is remembered of a check.
#include "src/model/gpu_check.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "src/kernels/cuda/catalogue.h"
#include "src/model/gpu_check_record.h"
#include "tests/support/temp_folder.h"

namespace moray {
namespace {

using enum KernelGroup;

GpuPaths paths_without(std::vector<KernelGroup> groups, bool has_fp8 = true,
                       bool has_wgmma = true) {
  std::vector<KernelFault> faults;
  for (const KernelGroup group : groups) faults.push_back({group, "a kernel", "off"});
  return choose_paths(faults, has_fp8, has_wgmma);
}

TEST(GpuCheck, PathsAreTakenWhereEveryKernelOnThemIsRight) {
  struct Case {
    std::vector<KernelGroup> faults;
    bool has_fp8, has_wgmma;
    bool steps, blocks, fp8, wgmma;
  };
  const Case cases[] = {
      {{}, true, true, true, true, true, true},
      {{}, false, false, true, true, false, false},
      {{kSteps}, true, true, false, true, true, true},
      {{kBlocks}, true, true, true, false, true, true},
      {{kFp8Activations}, true, true, true, true, false, true},
      {{kWgmmaAttention}, true, true, true, true, true, false},
      {{kMmaAttention}, true, true, true, true, true, true},  // not used
      {{kMmaAttention}, true, false, true, false, true, false},
      {{kBf16Experts}, true, true, true, true, true, true},  // not used
      {{kBf16Experts}, false, true, true, false, false, true},
      {{kFp8Activations, kBf16Experts}, true, true, true, false, false, true},
      {{kWgmmaAttention, kMmaAttention}, true, true, true, false, true, false},
      {{kFp8Activations, kWgmmaAttention}, true, true, true, true, false, false},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(&c - cases);
    const GpuPaths paths = paths_without(c.faults, c.has_fp8, c.has_wgmma);
    EXPECT_EQ(paths.steps, c.steps);
    EXPECT_EQ(paths.blocks, c.blocks);
    EXPECT_EQ(paths.fp8_activations, c.fp8);
    EXPECT_EQ(paths.wgmma_attention, c.wgmma);
  }
}

TEST(GpuCheck, AFaultIsOneLineThatSaysWhatRunsInstead) {
  const auto line = [](KernelGroup group) {
    return describe({group, "that_kernel", "off by 3, allowed 0.1"}, paths_without({group}));
  };
  const std::string start = "kernel that_kernel is wrong on this card, off by 3, allowed 0.1; ";
  EXPECT_EQ(line(kSteps), start + "this GPU is not used");
  EXPECT_EQ(line(kBlocks),
            start + "prompts are read by the kernels of decode steps, 16 tokens at a time");
  EXPECT_EQ(line(kFp8Activations), start + "prompts are read with BF16 activations");
  EXPECT_EQ(line(kWgmmaAttention), start + "attention of prompts runs on mma.sync");
  EXPECT_EQ(line(kMmaAttention), start + "nothing else is needed, it is not used");
}

// All but what makes no results, or is of options that no model has by itself.
TEST(GpuCheck, EveryKernelOfTheCatalogueIsChecked) {
  const auto covered = checked_kernel_names();
  for (const cuda::Promise& promise : cuda::promises()) {
    if (promise.kernel == "random_*" || promise.kernel == "read_speed" ||
        promise.kernel == "attention_unpack") {
      continue;
    }
    EXPECT_TRUE(std::count(covered.begin(), covered.end(), promise.kernel)) << promise.kernel;
  }
}

class GpuCheckRecordTest : public ::testing::Test {
 protected:
  GpuCheckRecord record(const std::string& card = "card driver",
                        const std::string& kernels = "kernels") const {
    return {folder_ / "kernels", card, kernels};
  }
  std::filesystem::path only_file() const {
    return std::filesystem::directory_iterator(folder_ / "kernels")->path();
  }
  TempFolder folder_;
  const std::vector<KernelFault> faults_ = {{kFp8Activations, "w8a8_down", "off by 3 (x, y)"},
                                            {kWgmmaAttention, "attention_prefill_wgmma", "off"}};
};

TEST_F(GpuCheckRecordTest, GivesBackWhatWasFoundOfThisCardAndTheseKernelsOnly) {
  EXPECT_FALSE(record().load().has_value());
  ASSERT_TRUE(record().store(faults_).ok());
  const auto loaded = record().load();
  ASSERT_TRUE(loaded.has_value());
  ASSERT_EQ(loaded->size(), 2u);
  for (size_t i = 0; i < faults_.size(); ++i) {
    EXPECT_EQ((*loaded)[i].group, faults_[i].group);
    EXPECT_EQ((*loaded)[i].kernel, faults_[i].kernel);
    EXPECT_EQ((*loaded)[i].what, faults_[i].what);
  }
  EXPECT_FALSE(record("another card").load().has_value());
  EXPECT_FALSE(record("card driver", "other kernels").load().has_value());
  ASSERT_TRUE(record().store({}).ok());
  EXPECT_TRUE(record().load()->empty());
}

TEST_F(GpuCheckRecordTest, ADamagedRecordIsAsGoodAsNone) {
  for (const size_t at : {size_t{0}, size_t{40}, size_t{70}, size_t{90}}) {
    ASSERT_TRUE(record().store(faults_).ok());
    std::fstream file(only_file(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(at));
    const auto byte = static_cast<char>(file.get() ^ 1);
    file.seekp(static_cast<std::streamoff>(at));
    file.put(byte);
    file.close();
    EXPECT_FALSE(record().load().has_value()) << at;
  }
  ASSERT_TRUE(record().store(faults_).ok());
  std::filesystem::resize_file(only_file(), 75);
  EXPECT_FALSE(record().load().has_value());
}

TEST_F(GpuCheckRecordTest, AFolderThatCannotBeWrittenIsSaid) {
  folder_.write("kernels", "a file, not a folder");
  EXPECT_EQ(record().store(faults_).code(), StatusCode::kIo);
  EXPECT_FALSE(record().load().has_value());
  const GpuCheckRecord nowhere("", "card", "kernels");
  EXPECT_TRUE(nowhere.store(faults_).ok());
  EXPECT_FALSE(nowhere.load().has_value());
}

}  // namespace
}  // namespace moray
