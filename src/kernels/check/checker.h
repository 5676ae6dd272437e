// What a check needs and keeps: a device, random inputs, threads for the oracle, and per kernel the
// element that came nearest to its bound or went furthest beyond.
//
// Invariant: a comparison that finds NaN, or an element nobody wrote, fails; nothing else may come
// of an output that was poisoned before the launch. Oracles are slow: of large outputs every n-th
// element is compared, n odd and the first one random, so that every column has its turn.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/thread_pool.h"
#include "src/kernels/check/device_array.h"
#include "src/kernels/check/random.h"

namespace moray::check {

enum class Extent { kFirstStart, kAtLength };

struct Options {
  Extent extent = Extent::kFirstStart;
  uint64_t seed = 1;
  std::string fault = {};  // for tests: a value found of this kernel is moved beyond its bound
};

// What was seen of one kernel.
struct Finding {
  std::string kernel;
  int64_t cases = 0;     // comparisons of a whole output
  int64_t elements = 0;  // compared
  double ratio = 0;      // of the worst: its error over its bound; infinite for NaN
  double error = 0;      // of the worst
  double bound = 0;
  std::string where;  // of the worst: what, element, found, expected; or what else went wrong

  bool is_good() const { return ratio <= 1; }
};

// The worst element of a comparison, as it goes on.
class Worst {
 public:
  struct Element {
    double ratio = 0, error = 0, bound = 0, found = 0, expected = 0;
    int64_t unit = 0;
  };
  void take(double value, double wanted, double limit) {
    const double off = std::abs(value - wanted);
    const double ratio = off == 0 ? 0 : limit > 0 && !std::isnan(off) ? off / limit : INFINITY;
    if (ratio > worst.ratio || elements == 0) worst = {ratio, off, limit, value, wanted, unit};
    ++elements;
  }
  // Bit for bit.
  void take_equal(double value, double wanted) { take(value, wanted, 0); }

  Element worst;
  int64_t elements = 0;
  int64_t unit = 0;  // at hand
};

class Checker {
 public:
  Checker(std::shared_ptr<gpu::Device> device, gpu::Stream& stream, const Options& options)
      : options_(options),
        site_{std::move(device), stream, trouble_},
        random_(options.seed),
        pool_(0) {}
  Checker(const Checker&) = delete;

  const Site& site() const { return site_; }
  gpu::Stream& stream() { return site_.stream; }
  Random& random() { return random_; }
  Status& trouble() { return trouble_; }
  // Sizes that a check runs through: few at the first start, on and off every tile at length.
  std::vector<int> sizes(std::vector<int> first_start, std::vector<int> at_length) const {
    return options_.extent == Extent::kFirstStart ? std::move(first_start) : std::move(at_length);
  }

  // judge(unit, worst) for units [0, count), or as many of them as keep `terms` (multiplications of
  // the oracle for one) within the budget; it gives each element of the unit to worst.take().
  template <typename Judge>
  void compare(std::string_view kernel, std::string_view what, int64_t count, int64_t terms,
               Judge judge) {
    const int64_t budget =
        options_.extent == Extent::kFirstStart ? int64_t{3} << 24 : int64_t{1} << 29;
    const int64_t step = (count * std::max<int64_t>(terms, 1) / budget) | 1;
    const int64_t first = step > 1 ? random_.below(std::min(step, count)) : 0;
    std::vector<Worst> parts(static_cast<size_t>(pool_.thread_count()));
    pool_.run((count - first + step - 1) / step, [&](int64_t i, int worker) {
      Worst& mine = parts[static_cast<size_t>(worker)];
      mine.unit = first + i * step;
      judge(mine.unit, mine);
    });
    add(kernel, what, parts);
  }
  // Records that something other than a value is wrong.
  void fail(std::string_view kernel, std::string where);

  const std::map<std::string, Finding, std::less<>>& findings() const { return findings_; }

 private:
  void add(std::string_view kernel, std::string_view what, const std::vector<Worst>& parts);
  Finding& finding(std::string_view kernel);

  Options options_;
  Status trouble_;
  Site site_;
  Random random_;
  ThreadPool pool_;
  std::map<std::string, Finding, std::less<>> findings_;
};

}  // namespace moray::check
