// tools/bench/commands.h - the subcommands of gossip-bench, one source file each.
//
// Each function adds its subcommand, whose callback measures, prints to stdout and throws
// CLI::RuntimeError with an exit code on failure.
#pragma once

#include <CLI/CLI.hpp>

namespace gossipd::bench {

void add_codec_command(CLI::App& app);
void add_exchange_command(CLI::App& app);
void add_loader_command(CLI::App& app);
void add_overhead_command(CLI::App& app);  // runs the gossipd beside it
void add_training_command(CLI::App& app);  // only with LibTorch

}  // namespace gossipd::bench
