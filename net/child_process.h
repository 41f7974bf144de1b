// net/child_process.h - one program that runs beside this process, within a time limit.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/base/types.h"

namespace gossipd {

struct Command {
  enum class Keep { nothing, output, errors };

  std::string program;                 // looked for in PATH where it has no slash
  std::vector<std::string> arguments;  // without the program's name
  std::optional<std::vector<std::string>> environment = {};  // "NAME=value"; none: that of this
                                                             // process
  Keep keep = Keep::nothing;      // the stream that is read; without one all are this process's
  std::size_t kept_max = 65536;   // bytes; what follows is read and dropped
  std::optional<Duration> limit;  // for closing that stream; then SIGKILL
};

struct ChildEnd {
  int refused = 0;       // errno of a start that failed; ECANCELED after kill()
  bool overdue = false;  // killed at the limit
  int status = 0;        // of waitpid()
  std::string kept;

  [[nodiscard]] bool succeeded() const { return refused == 0 && !overdue && status == 0; }
};

class ChildProcess {
 public:
  // Blocks until the program has ended. One at a time.
  [[nodiscard]] ChildEnd run(const Command& command);
  // From any thread: kills what runs, and nothing starts from now on.
  void kill();

 private:
  [[nodiscard]] int start(const Command& command, int to);
  [[nodiscard]] int wait();

  std::mutex mutex_;
  pid_t child_ = 0;  // not waited for yet; while it is set its number belongs to no other process
  bool killed_ = false;
};

}  // namespace gossipd
