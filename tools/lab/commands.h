// tools/lab/commands.h - the subcommands of gossip-lab.
#pragma once

#include <CLI/CLI.hpp>

namespace gossipd::lab {

// Each function adds its subcommand, whose callback sets `exit_code` (0 ok, 1 failed, 2 usage).
void add_run(CLI::App& app, int& exit_code);
void add_check(CLI::App& app, int& exit_code);
void add_strategies(CLI::App& app, int& exit_code);
void add_compare(CLI::App& app, int& exit_code);
void add_plot(CLI::App& app, int& exit_code);

}  // namespace gossipd::lab
