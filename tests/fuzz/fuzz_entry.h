// What a fuzz entry file provides: libFuzzer's function, and seeds for the plain replay program.
//
// One file a parser (tests/fuzz/<name>_fuzz.cpp). With MORAY_FUZZ=ON and clang it links libFuzzer;
// under any compiler it links replay_main.cpp, which runs seeded mutations of the seeds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

// Must return 0 and survive every input; a broken invariant is a CHECK.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace moray {

// Valid and nearly valid inputs to mutate.
std::vector<std::string> fuzz_seeds();

}  // namespace moray
