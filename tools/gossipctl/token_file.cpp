#include "tools/gossipctl/token_file.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace gossipd {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t token_file_bytes_max = 4096;

bool is_control(unsigned char c) { return c < 0x20 || c == 0x7f; }

}  // namespace

TokenFile::Read TokenFile::read_now() const {
  if (path_.empty()) return {};
  std::error_code ignored;
  const fs::file_status status = fs::status(path_, ignored);
  if (fs::is_regular_file(status) &&
      (status.permissions() & (fs::perms::group_all | fs::perms::others_all)) != fs::perms::none)
    return {"", Failure{ExitCode::usage,
                        "the token file " + path_ + " (" + named_by_ +
                            ") is open to other users, and the token controls the node",
                        "", "chmod 600 " + path_}};
  std::ifstream file(path_);
  std::string token(token_file_bytes_max, '\0');
  file.read(token.data(), static_cast<std::streamsize>(token.size()));
  token.resize(static_cast<std::size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  // As the daemon reads it, whatever its editor ends a line with.
  token.resize(token.find_last_not_of(" \t\r\n") + 1);
  if (token.empty())
    return {"", Failure{ExitCode::usage, "no token can be read from " + path_, "",
                        "check " + named_by_ + " and the file's permissions"}};
  if (std::ranges::any_of(token, is_control))
    return {"", Failure{ExitCode::usage,
                        "the token file " + path_ + " (" + named_by_ +
                            ") holds more than one line, or control characters",
                        "", "the daemon's token file, one line: openssl rand -hex 32"}};
  return {std::move(token), std::nullopt};
}

const TokenFile::Read& TokenFile::read() const {
  std::call_once(once_, [this] { read_ = read_now(); });
  return read_;
}

}  // namespace gossipd
