// daemon/log.h - one line per transition, `key=value` words: time= level= node= … (spdlog stays behind it).
//
// A thread of its own writes them (log_queue.h). Loop thread and main() only, after open_log().
#pragma once

#include <optional>
#include <string>

#include "core/node.h"

namespace gossipd {

// `level` as in the configuration; `file` "" means standard error. Code "io-error".
[[nodiscard]] std::optional<Error> open_log(const std::string& level, const std::string& file, const std::string& node);
void log_line(Level level, const std::string& words);
// Waits until the lines so far are written, but not for ever.
void flush_log();

}  // namespace gossipd
