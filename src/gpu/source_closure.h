// From a set of embedded sources to one self-contained translation unit.
//
// The compiler matches a header to an include line by its text alone, whatever folder the including
// file is in. So every include line is rewritten to the one name its file has: its path below the
// root of the set. Only headers that a program reaches and constants that it mentions belong to its
// unit, so that what it does not depend on leaves its cached kernels valid: several models share
// them, and a changed header spares the other programs.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "src/base/status.h"
#include "src/gpu/compiler.h"
#include "src/gpu/program.h"

namespace moray::gpu {

// The unit of the source named `program`. An include "X" of a file in folder F names, in this
// order, F/X, X, or X below "src/kernels/cuda/", in the set; "constants.cuh" names `constants`.
// Headers come in the order of first mention. Errors: kNotFound, a program or header that is not in
// the set.
Result<Unit> make_unit(std::span<const Source> sources, std::string_view program,
                       const std::string& constants);

}  // namespace moray::gpu
