#include "daemon/job_trial.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <sstream>
#include <utility>

extern char** environ;

namespace gossipd {

namespace {

constexpr std::size_t words_max = 64 * 1024;  // of standard error that are kept

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> list;
  for (std::string& word : words) list.push_back(word.data());
  list.push_back(nullptr);
  return list;
}

// Without the settings of this node, which the trial gets as flags.
std::vector<std::string> environment_without_settings() {
  std::vector<std::string> kept;
  for (char** variable = environ; *variable != nullptr; ++variable)
    if (!std::string_view(*variable).starts_with("GOSSIPD_")) kept.emplace_back(*variable);
  return kept;
}

Error cannot_try(int number) {
  return Error{"io-error", std::string("the job cannot be tried: ") + std::strerror(number)};
}

// Until the other end is closed; false: that took longer than the limit.
bool read_all(int from, std::string& words) {
  const Instant until = EventLoop::now() + JobTrial::limit;
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(until - EventLoop::now()).count();
    if (left <= 0) return false;
    pollfd waiting{from, POLLIN, 0};
    if (::poll(&waiting, 1, static_cast<int>(left)) <= 0) continue;
    char piece[4096];
    const ssize_t got = ::read(from, piece, sizeof piece);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return true;
    if (words.size() < words_max) words.append(piece, static_cast<std::size_t>(got));
  }
}

}  // namespace

std::vector<std::string> trial_arguments(const DaemonConfig& config, const std::string& file) {
  return {"--check-config",
          "--job",
          file,
          "--data",
          config.data_dir,
          "--state-dir",
          config.state_dir,
          "--name",
          config.name,
          "--set",
          "trainer.device=" + config.device,
          "--set",
          "trainer.threads=" + std::to_string(config.threads),
          "--set",
          "trainer.image_cache_mb=" + std::to_string(config.image_cache_mb)};
}

Error trial_error(const std::string& words, int status) {
  std::istringstream lines(words);
  std::string said;
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("gossipd: ")) said = line.substr(line.find(' ') + 1);
  if (!said.empty()) return Error{"bad-job", said};
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
    return Error{"bad-job",
                 "a step of the job was killed, as it is where it needs more memory than this "
                 "machine has; make the model or the batch smaller"};
  return Error{"bad-job",
               "a step of the job ends by " +
                   (WIFSIGNALED(status) ? "signal " + std::to_string(WTERMSIG(status))
                                        : "exit code " + std::to_string(WEXITSTATUS(status))) +
                   " without a word"};
}

void JobTrial::start(const DaemonConfig& config, const std::string& file, Done done) {
  GOSSIPD_ASSERT(!running_);
  if (thread_.joinable()) thread_.join();
  running_ = true;
  thread_ = std::thread([this, arguments = trial_arguments(config, file), done = std::move(done)] {
    auto error = run(arguments);
    loop_.post([this, error = std::move(error), done] {
      running_ = false;
      done(error);
    });
  });
}

std::optional<Error> JobTrial::run(const std::vector<std::string>& arguments) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return cannot_try(errno);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  std::vector<std::string> words{"gossipd"}, environment = environment_without_settings();
  words.insert(words.end(), arguments.begin(), arguments.end());
  pid_t child = 0;
  int refused = 0;
  {
    const std::lock_guard lock(mutex_);
    if (!stopped_)
      refused = ::posix_spawn(&child, "/proc/self/exe", &actions, nullptr, pointers(words).data(),
                              pointers(environment).data());
    child_ = refused == 0 ? child : 0;
  }
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  std::string said;
  const bool ended = child == 0 || refused != 0 || read_all(ends[0], said);
  ::close(ends[0]);
  if (refused != 0) return cannot_try(refused);
  if (child == 0) return Error{"stopping", "this node stops"};
  if (!ended) ::kill(child, SIGKILL);
  siginfo_t ignored;
  while (::waitid(P_PID, static_cast<id_t>(child), &ignored, WEXITED | WNOWAIT) != 0 &&
         errno == EINTR) {
  }
  int status = 0;
  {
    const std::lock_guard lock(mutex_);
    ::waitpid(child, &status, 0);
    child_ = 0;
  }
  if (!ended)
    return Error{
        "bad-job",
        "reading the data and two steps of the job take longer than " +
            std::to_string(std::chrono::duration_cast<std::chrono::minutes>(limit).count()) +
            " minutes on this node"};
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return std::nullopt;
  return trial_error(said, status);
}

void JobTrial::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    if (child_ != 0) ::kill(child_, SIGKILL);
  }
  if (thread_.joinable()) thread_.join();
}

}  // namespace gossipd
