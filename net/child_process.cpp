#include "net/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

extern char** environ;

namespace gossipd {

namespace {

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> list;
  for (std::string& word : words) list.push_back(word.data());
  list.push_back(nullptr);
  return list;
}

// Milliseconds for poll() until then; 0: it is past.
int milliseconds_until(std::optional<std::chrono::steady_clock::time_point> then) {
  if (!then) return -1;
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(*then - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 60'000));
}

// Until the other end is closed; false: that took longer than the limit.
bool read_all(int from, const Command& command, std::string& kept) {
  std::optional<std::chrono::steady_clock::time_point> until;
  if (command.limit) until = std::chrono::steady_clock::now() + *command.limit;
  for (;;) {
    const int left = milliseconds_until(until);
    if (left == 0) return false;
    pollfd waiting{from, POLLIN, 0};
    if (::poll(&waiting, 1, left) <= 0) continue;
    char piece[4096];
    const ssize_t got = ::read(from, piece, sizeof piece);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return true;
    kept.append(piece, std::min(static_cast<std::size_t>(got), command.kept_max - kept.size()));
  }
}

}  // namespace

// Returns an errno, 0 for a program that runs.
int ChildProcess::start(const Command& command, int to) {
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  if (command.keep != Command::Keep::nothing) {
    const bool output = command.keep == Command::Keep::output;
    ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_adddup2(&actions, to, output ? STDOUT_FILENO : STDERR_FILENO);
    if (!output)
      ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    // Asio's sockets are inherited: a child that outlives this process would hold its ports.
    ::posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
  }
  std::vector<std::string> words = command.arguments;
  words.insert(words.begin(), command.program);
  std::vector<std::string> settings = command.environment.value_or(std::vector<std::string>{});
  int refused = ECANCELED;
  {
    const std::lock_guard lock(mutex_);
    pid_t child = 0;
    if (!killed_)
      refused =
          ::posix_spawnp(&child, command.program.c_str(), &actions, nullptr, pointers(words).data(),
                         command.environment ? pointers(settings).data() : environ);
    if (refused == 0) child_ = child;
  }
  ::posix_spawn_file_actions_destroy(&actions);
  return refused;
}

ChildEnd ChildProcess::run(const Command& command) {
  ChildEnd end;
  int ends[2] = {-1, -1};
  const bool keeps = command.keep != Command::Keep::nothing;
  if (keeps && ::pipe2(ends, O_CLOEXEC) != 0) return {.refused = errno};
  end.refused = start(command, ends[1]);
  if (keeps) ::close(ends[1]);
  if (keeps && end.refused == 0) end.overdue = !read_all(ends[0], command, end.kept);
  if (keeps) ::close(ends[0]);
  if (end.refused != 0) return end;
  if (end.overdue) ::kill(child_, SIGKILL);
  end.status = wait();
  return end;
}

// The number is given up under the lock, so that kill() cannot meet another process with it.
int ChildProcess::wait() {
  siginfo_t ignored;
  while (::waitid(P_PID, static_cast<id_t>(child_), &ignored, WEXITED | WNOWAIT) != 0 &&
         errno == EINTR) {
  }
  const std::lock_guard lock(mutex_);
  int status = 0;
  ::waitpid(child_, &status, 0);
  child_ = 0;
  return status;
}

void ChildProcess::kill() {
  const std::lock_guard lock(mutex_);
  killed_ = true;
  if (child_ != 0) ::kill(child_, SIGKILL);
}

}  // namespace gossipd
