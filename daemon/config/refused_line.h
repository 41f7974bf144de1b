// daemon/config/refused_line.h - what is wrong with a command line before it is parsed, and how to
// say it.
#pragma once

#include "daemon/config/settings.h"

namespace gossipd {

// A flag whose value is missing, so that the next flag would be taken for it. Code "usage".
[[nodiscard]] std::optional<Error> refuse_missing_value(const std::vector<std::string>& arguments,
                                                        const std::vector<Setting>& settings);
// What is needed to say why read_command_line() refuses: `log_format` as arguments, environment or
// node file ask for it, also where something else in them is wrong, and `name`.
[[nodiscard]] DaemonConfig config_of_refusal(const std::vector<std::string>& arguments,
                                             const Environment& environment);
// The mistakes of an error, which has each on a line, as a word of the log; an invite among them
// loses its secret.
[[nodiscard]] std::string mistakes_in_log(const Error& error);

}  // namespace gossipd
