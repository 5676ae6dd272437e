// Operators of the template language over values: arithmetic, comparison, membership, slices.
//
// Semantics are Python's, with one limit: integers have 64 bits and an overflow is an error. Errors
// come without a line. Costs are charged to the budget before the work.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "src/base/status.h"
#include "src/text/jinja_budget.h"
#include "src/text/jinja_value.h"

namespace moray::jinja {

// left op right for + - * / // % **.
Result<Value> arithmetic(std::string_view op, const Value& left, const Value& right,
                         Budget& budget);
// left op right for == != < <= > >= in and "not in".
Result<bool> compare(std::string_view op, const Value& left, const Value& right, Budget& budget);
Result<Value> negate(const Value& value);

// Python's object[start:stop:step] over strings (by code point), lists, tuples and ranges.
struct SliceBounds {
  std::optional<int64_t> start, stop, step;
};
Result<Value> slice(const Value& object, const SliceBounds& bounds, Budget& budget);

// The items a loop over `value` visits: characters, elements, keys; none for undefined. A generator
// is used up by this.
Result<SequenceRef> iterate(const Value& value, Budget& budget);
// len(value). Errors: types without a length, generators among them.
Result<int64_t> length(const Value& value);

// The error of using an undefined value.
Status undefined_error(const Value& value);

}  // namespace moray::jinja
