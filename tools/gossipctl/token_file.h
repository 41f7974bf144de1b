// tools/gossipctl/token_file.h - the token of a daemon's REST, read when it is first needed.
#pragma once

#include <mutex>
#include <optional>
#include <string>

#include "tools/gossipctl/failure.h"

namespace gossipd {

class TokenFile {
 public:
  // `named_by`: the option or the variable that named the file. An empty path: there is no token.
  TokenFile(std::string path, std::string named_by)
      : path_(std::move(path)), named_by_(std::move(named_by)) {}

  struct Read {
    std::string token;
    std::optional<Failure> failure;
  };
  // Read once, since the file may be a pipe. From any thread.
  [[nodiscard]] const Read& read() const;

 private:
  [[nodiscard]] Read read_now() const;

  std::string path_, named_by_;
  mutable std::once_flag once_;
  mutable Read read_;
};

}  // namespace gossipd
