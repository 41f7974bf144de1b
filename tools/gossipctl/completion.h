// tools/gossipctl/completion.h - scripts that let a shell complete a command line.
//
// They follow from the definition of the commands (options.h), which is also what parses them:
// commands, options, the values of an option that takes few, files, and members by asking the
// daemon.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace gossipd {

// `shell`: bash, zsh or fish.
[[nodiscard]] std::string completion_script(const CLI::App& app, const std::string& shell);

}  // namespace gossipd
