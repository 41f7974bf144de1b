// tools/unknown_words.h - what is wrong with a command line, in words for whoever typed it.
//
// The problem: CLI11 names what it missed ("A subcommand is required") and not the typing error
// that was its cause. The answer: a word that nothing took is the cause, and the name that is
// close to it is probably what was meant.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace gossipd {

// For the line that `app` refused with `error`: one sentence without a full stop.
[[nodiscard]] std::string refused_words(const CLI::App& app, const CLI::ParseError& error);

// "gossipctl key": the innermost command that the line named.
[[nodiscard]] std::string named_command(const CLI::App& app);

}  // namespace gossipd
