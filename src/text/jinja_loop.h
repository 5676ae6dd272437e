// The state of one running `for` loop, which the template sees as `loop`.
//
// Items pass the loop's filter one at a time and only when needed, because the filter may read what
// the body changes; asking for loop.last, nextitem or length looks ahead, as in jinja2. When the
// loop ends the state is emptied, so a `loop` kept in a namespace holds nothing alive.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "src/text/jinja_value.h"

namespace moray::jinja {

struct Scope;

struct LoopState {
  const Stmt* statement = nullptr;
  Scope* outer = nullptr;  // where the filter is evaluated; null once the loop has ended
  SequenceRef items;
  size_t unseen = 0;         // index into items of the first not yet filtered
  std::vector<Value> ahead;  // passed the filter but not visited yet, from ahead_begin on
  size_t ahead_begin = 0;
  int64_t index0 = -1;
  Value previous, current;
};

}  // namespace moray::jinja
