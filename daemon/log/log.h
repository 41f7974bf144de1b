// daemon/log/log.h - one line per transition, `key=value` words: time= level= node= … (spdlog stays
// behind it).
//
// A thread of its own writes them (log_queue.h). Loop thread and main() only, after open_log().
#pragma once

#include <optional>
#include <string>

#include "core/node.h"

namespace gossipd {

// `level` as in the configuration; `file` "" means standard error. Code "io-error".
[[nodiscard]] std::optional<Error> open_log(const std::string& level, const std::string& file,
                                            const std::string& node);
// Repetition about others is summed up: core/base/log_ceiling.h.
void log_line(Level level, const std::string& words);
// Tells what was left out in a period that has ended; nothing else does while nothing is logged.
void log_left_out(Instant now);
// Waits until the lines so far are written, but not for ever.
void flush_log();

}  // namespace gossipd
