// The commands, one function each in the file of its name.
//
// A command writes its result to `output` and returns how it went; statistics and progress go to
// stderr unless options say quiet. main.cpp alone turns the Status into a line and an exit code.
#pragma once

#include "src/base/status.h"
#include "src/cli/options.h"
#include "src/cli/output.h"

namespace moray {

Status run_command(const Options& options, Output& output);
Status complete_command(const Options& options, Output& output);
Status info_command(const Options& options, Output& output);
Status list_command(const Options& options, Output& output);
Status tokenize_command(const Options& options, Output& output);
Status eval_command(const Options& options, Output& output);
Status bench_command(const Options& options, Output& output);
Status selftest_command(const Options& options, Output& output);
Status plan_command(const Options& options, Output& output);
Status simulate_command(const Options& options, Output& output);

}  // namespace moray
