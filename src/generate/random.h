// A counter-based random number: the same (seed, position) gives the same number on every machine.
//
// Invariant: there is no state. A draw depends on the user's seed and the position of the token in
// its sequence only, so a session that is restored, forked or fed in other pieces draws the same.
// Method: Philox4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011).
#pragma once

#include <array>
#include <cstdint>

namespace moray {

// Ten rounds of Philox4x32 over a 128-bit counter and a 64-bit key.
std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// A double in [0, 1) with 53 random bits.
double uniform_at(uint64_t seed, uint64_t position);

}  // namespace moray
