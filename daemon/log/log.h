// daemon/log/log.h - one line per transition, of `key=value` words (spdlog stays behind it).
//
// A thread of its own writes them (log_queue.h). Loop thread and main() only, after open_log().
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "core/node.h"
#include "daemon/log/log_format.h"

namespace gossipd {

struct LogOptions {
  std::string level = "info";  // as in the configuration
  std::string file;            // "": standard error
  LogFormat format = LogFormat::text;
  std::string node;  // its name, in every line
};
// Whether a log may be there; empty: on standard error. Who may write there is not asked: the user
// who tries a configuration need not be the one who runs it. Changes nothing. Code "bad-file".
[[nodiscard]] std::optional<Error> try_log_file(const std::string& file);
// Codes "bad-file", "io-error".
[[nodiscard]] std::optional<Error> open_log(const LogOptions& options);
// The lowest level from now on.
void set_log_level(const std::string& level);
// Repetition about others is summed up: core/base/log_ceiling.h.
void log_line(Level level, const std::string& words);
// What an operator should look at, as a sentence: "event=warning text=…".
void log_warning(const std::string& text);
// Tells what was left out in a period that has ended; nothing else does while nothing is logged.
void log_left_out(Instant now);
// `watch` hears of every line from level info on, written or not; an empty one hears nothing more.
void watch_log(std::function<void(Level, const std::string& words)> watch);
// The line with which a process ends that cannot go on. Any thread.
void log_last_words(const std::string& words);
// Waits until the lines so far are written, but not for ever.
void flush_log();

}  // namespace gossipd
