#include "daemon/log.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

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

}  // namespace

std::optional<Error> open_log(const std::string& level, const std::string& file, const std::string& node) {
  try {
    auto logger = file.empty() ? spdlog::stderr_logger_st("gossipd") : spdlog::basic_logger_st("gossipd", file);
    // '%' begins a flag in spdlog's patterns.
    std::string name;
    for (const char c : node) name += c == '%' ? std::string("%%") : std::string(1, c);
    logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %l node=" + name + " %v");
    logger->set_level(spdlog::level::from_str(level));
    logger->flush_on(spdlog::level::info);
    spdlog::set_default_logger(std::move(logger));
    return std::nullopt;
  } catch (const spdlog::spdlog_ex& error) {
    return Error{"io-error", "log.file: " + file + ": " + error.what() + "; choose a file that can be written"};
  }
}

void log_line(Level level, const std::string& words) {
  std::string line;  // words come from peers too: a line stays a line
  for (const char c : words) line += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  spdlog::default_logger_raw()->log(spdlog_level(level), spdlog::string_view_t(line.data(), line.size()));
}

void flush_log() { spdlog::default_logger_raw()->flush(); }

}  // namespace gossipd
