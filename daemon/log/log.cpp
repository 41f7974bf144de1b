#include "daemon/log/log.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <filesystem>

#include "core/base/log_ceiling.h"
#include "core/base/printable.h"
#include "daemon/log/log_queue.h"
#include "models/files/regular_file.h"
#include "net/event_loop.h"

namespace gossipd {

namespace {

spdlog::level::level_enum spdlog_level(Level level) {
  switch (level) {
    case Level::debug: return spdlog::level::debug;
    case Level::info: return spdlog::level::info;
    case Level::warning: return spdlog::level::warn;
    case Level::error: return spdlog::level::err;
  }
  return spdlog::level::err;
}

LogCeiling& ceiling() {
  static LogCeiling one;
  return one;
}

std::function<void(Level, const std::string&)> watching;

bool is_written(Level level) {
  return spdlog::default_logger_raw()->should_log(spdlog_level(level));
}

bool is_watched(Level level) { return watching && level != Level::debug; }

void write(Level level, const std::string& words) {
  if (is_watched(level)) watching(level, printable(words));
  spdlog::default_logger_raw()->log(spdlog_level(level),
                                    spdlog::string_view_t(words.data(), words.size()));
}

std::shared_ptr<spdlog::sinks::sink> sink_for(const std::string& file) {
  if (file.empty()) return std::make_shared<spdlog::sinks::stderr_sink_mt>();
  return std::make_shared<spdlog::sinks::basic_file_sink_mt>(file);
}

std::shared_ptr<LogQueue> queue;  // of the log that is open

}  // namespace

std::optional<Error> try_log_file(const std::string& file) {
  // spdlog would create the directory, and a typing error would go unnoticed.
  const std::filesystem::path directory = std::filesystem::path(file).parent_path();
  std::error_code unknown;
  if (!directory.empty() && !std::filesystem::is_directory(directory, unknown))
    return Error{"bad-file", "log.file: " + file + ": there is no directory " + directory.string() +
                                 "; create it, or choose another file"};
  struct stat info {};
  if (!file.empty() && ::stat(file.c_str(), &info) == 0 && S_ISFIFO(info.st_mode))
    return Error{"bad-file",
                 "log.file: " + file +
                     " is a FIFO, which would hold the node up until it is read; choose "
                     "a regular file, or leave log.file out and pipe standard error"};
  if (S_ISDIR(info.st_mode))
    return Error{"bad-file", "log.file: " + file + " is a directory; name a file in it"};
  const bool is_device = S_ISCHR(info.st_mode);
  if (!file.empty() && !is_device && is_read_only(directory.empty() ? "." : directory))
    return Error{"bad-file", "log.file: " + file +
                                 ": its file system is mounted read-only; choose another file"};
  return std::nullopt;
}

std::optional<Error> open_log(const LogOptions& options) {
  const std::string& file = options.file;
  if (auto wrong = try_log_file(file)) return wrong;
  try {
    queue = std::make_shared<LogQueue>(
        sink_for(file), [format = options.format, node = options.node](std::string_view words) {
          return log_payload(format, node, words);
        });
    auto logger = std::make_shared<spdlog::logger>("gossipd", queue);
    logger->set_pattern(log_pattern(options.format));
    logger->set_level(spdlog::level::from_str(options.level));
    spdlog::set_default_logger(std::move(logger));
    return std::nullopt;
  } catch (const spdlog::spdlog_ex& error) {
    return Error{"io-error",
                 "log.file: " + file + ": " + error.what() + "; choose a file that can be written"};
  }
}

void set_log_level(const std::string& level) {
  spdlog::default_logger_raw()->set_level(spdlog::level::from_str(level));
}

void log_line(Level level, const std::string& words) {
  if (!is_written(level) && !is_watched(level)) return;
  const Instant now = EventLoop::now();
  log_left_out(now);
  if (ceiling().admits(words, now)) write(level, words);
}

void log_warning(const std::string& text) {
  log_line(Level::warning, "event=warning text=" + log_quoted(text));
}

void log_left_out(Instant now) {
  for (const std::string& words : ceiling().left_out(now)) write(Level::warning, words);
}

void watch_log(std::function<void(Level, const std::string&)> watch) {
  watching = std::move(watch);
}

void log_last_words(const std::string& words) {
  spdlog::default_logger_raw()->log(spdlog::level::err,
                                    spdlog::string_view_t(words.data(), words.size()));
  flush_log();
}

void flush_log() {
  if (queue) (void)queue->drain(LogQueue::drain_limit);
}

}  // namespace gossipd
