// A program's translation unit: the headers it reaches under one name each, the constants it uses.
#include "src/gpu/source_closure.h"

#include <gtest/gtest.h>

namespace moray::gpu {
namespace {

std::vector<std::string> names_of(const Unit& unit) {
  std::vector<std::string> names;
  for (const Unit::File& header : unit.headers) names.push_back(header.name);
  return names;
}

const std::string* text_of(const Unit& unit, std::string_view name) {
  for (const Unit::File& header : unit.headers) {
    if (header.name == name) return &header.text;
  }
  return nullptr;
}

TEST(SourceClosure, EveryWayToNameAHeaderBecomesOneName) {
  const Source sources[] = {
      {"step.cu",
       "#include \"device/mma.cuh\"\n#include \"src/kernels/cuda/device/number.cuh\"\n  #  include "
       "\"params.h\"  // sizes\nbody\n"},
      {"device/mma.cuh", "#pragma once\n#include \"number.cuh\"\n#include \"../params.h\"\n"},
      {"device/number.cuh", "#pragma once\n"},
      {"params.h", "#pragma once\n"},
      {"unused.cuh", "#error\n"},
  };
  const Result<Unit> unit = make_unit(sources, "step.cu", "");
  ASSERT_TRUE(unit.ok()) << unit.status().message();
  EXPECT_EQ(names_of(*unit),
            (std::vector<std::string>{"device/mma.cuh", "device/number.cuh", "params.h"}));
  EXPECT_EQ(unit->source.text,
            "#include \"device/mma.cuh\"\n#include \"device/number.cuh\"\n#include \"params.h\"\n"
            "body\n");
  EXPECT_EQ(*text_of(*unit, "device/mma.cuh"),
            "#pragma once\n#include \"device/number.cuh\"\n#include \"params.h\"\n");
}

TEST(SourceClosure, AHeaderBesideTheFileComesBeforeOneOfTheRoot) {
  const Source sources[] = {{"a/step.cu", "#include \"x.h\"\n"}, {"x.h", ""}, {"a/x.h", ""}};
  const Result<Unit> unit = make_unit(sources, "a/step.cu", "");
  ASSERT_TRUE(unit.ok());
  EXPECT_EQ(names_of(*unit), std::vector<std::string>{"a/x.h"});
}

TEST(SourceClosure, CirclesEnd) {
  const Source sources[] = {{"step.cu", "#include \"a.h\"\n"},
                            {"a.h", "#include \"b.h\"\n"},
                            {"b.h", "#include \"a.h\"\n"}};
  const Result<Unit> unit = make_unit(sources, "step.cu", "");
  ASSERT_TRUE(unit.ok());
  EXPECT_EQ(unit->headers.size(), 2u);
}

TEST(SourceClosure, OnlyMentionedConstantsStay) {
  const Source sources[] = {
      {"step.cu", "#include \"constants.cuh\"\n#include \"a.h\"\nint x = kHidden;\n"},
      {"a.h", "int y = kHeads; int z = kHeadsMore + notkTopK;\n"}};
  const Result<Unit> unit = make_unit(sources, "step.cu",
                                      "// head\n#pragma once\nconstexpr int kHidden = 8;\n"
                                      "constexpr int kHeads = 2;\nconstexpr int kTopK = 4;\n"
                                      "constexpr float kHead = 1.0f;\n");
  ASSERT_TRUE(unit.ok());
  ASSERT_NE(text_of(*unit, "constants.cuh"), nullptr);
  EXPECT_EQ(*text_of(*unit, "constants.cuh"),
            "// head\n#pragma once\nconstexpr int kHidden = 8;\nconstexpr int kHeads = 2;\n");
}

TEST(SourceClosure, WhatIsMissingIsNamed) {
  const Source sources[] = {{"step.cu", "#include \"gone.cuh\"\n"}};
  const Result<Unit> unit = make_unit(sources, "step.cu", "");
  ASSERT_FALSE(unit.ok());
  EXPECT_EQ(unit.status().code(), StatusCode::kNotFound);
  EXPECT_EQ(unit.status().message(),
            "step.cu: found an include of \"gone.cuh\", expected an embedded file");
  EXPECT_EQ(make_unit(sources, "other.cu", "").status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace moray::gpu
