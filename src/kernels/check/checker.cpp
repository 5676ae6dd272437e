#include "src/kernels/check/checker.h"

#include <fmt/format.h>

#include <cmath>

namespace moray::check {

Finding& Checker::finding(std::string_view kernel) {
  Finding& found = findings_[std::string(kernel)];
  found.kernel = kernel;
  return found;
}

void Checker::fail(std::string_view kernel, std::string where) {
  Finding& found = finding(kernel);
  found.ratio = INFINITY;
  found.where = std::move(where);
}

void Checker::add(std::string_view kernel, std::string_view what, const std::vector<Worst>& parts) {
  Worst all;
  for (const Worst& part : parts) {
    if (part.elements == 0) continue;
    if (all.elements == 0 || part.worst.ratio > all.worst.ratio) all.worst = part.worst;
    all.elements += part.elements;
  }
  if (kernel == options_.fault) {
    all.unit = all.worst.unit;
    all.take(all.worst.found + 2 * all.worst.bound + 1, all.worst.found, 0.5);
  }
  Finding& found = finding(kernel);
  ++found.cases;
  found.elements += all.elements;
  if (all.elements == 0) return fail(kernel, fmt::format("{}: nothing to compare", what));
  const Worst::Element& worst = all.worst;
  if (found.cases > 1 && !(worst.ratio > found.ratio)) return;
  found.ratio = worst.ratio;
  found.error = worst.error;
  found.bound = worst.bound;
  found.where = fmt::format("{}, unit {}: found {:.6g}, expected {:.6g}", what, worst.unit,
                            worst.found, worst.expected);
}

}  // namespace moray::check
