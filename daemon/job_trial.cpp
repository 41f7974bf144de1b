#include "daemon/job_trial.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <utility>

extern char** environ;

namespace gossipd {

namespace {

constexpr const char* variable_of_daemon = "_GOSSIPD_TRIAL_OF";

}  // namespace

std::vector<std::string> trial_environment(pid_t daemon) {
  const std::string name = std::string(variable_of_daemon) + "=";
  std::vector<std::string> kept = {name + std::to_string(daemon)};
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view one = *variable;
    if (!one.starts_with("GOSSIPD_") && !one.starts_with(name)) kept.emplace_back(one);
  }
  return kept;
}

void end_with_daemon() {
  const char* const daemon = std::getenv(variable_of_daemon);
  if (daemon == nullptr) return;
  // Comes when the thread ends that has spawned this process: JobTrial's waits for it.
  (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (std::to_string(::getppid()) != daemon) std::_Exit(1);
  // Where memory runs out it goes first, not the daemon.
  const int score = ::open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  if (score >= 0) {
    (void)!::write(score, "1000", 4);
    ::close(score);
  }
}

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
          "--shard",
          shard_words(config),
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

Error not_tried(const std::string& why) {
  return Error{"not-tried", "no process can be started to try the job: " + why};
}

void JobTrial::start(const DaemonConfig& config, const std::string& file, Done done) {
  GOSSIPD_ASSERT(!running_);
  if (thread_.joinable()) thread_.join();
  running_ = true;
  const auto end = [this, done = std::move(done)](std::optional<Error> error) {
    loop_.post([this, error = std::move(error), done] {
      running_ = false;
      done(error);
      if (stopped_) stopped_();
    });
  };
  try {
    thread_ = std::thread(
        [this, arguments = trial_arguments(config, file), end] { end(run(arguments)); });
  } catch (const std::system_error& error) {
    end(not_tried(error.what()));
  }
}

std::optional<Error> JobTrial::run(const std::vector<std::string>& arguments) {
  const ChildEnd end = child_.run({.program = "/proc/self/exe",
                                   .arguments = arguments,
                                   .environment = trial_environment(::getpid()),
                                   .keep = Command::Keep::errors,
                                   .limit = limit});
  if (end.refused == ECANCELED) return Error{"stopping", "this node stops"};
  if (end.refused != 0) return not_tried(std::strerror(end.refused));
  if (end.overdue)
    return Error{
        "bad-job",
        "reading the data and two steps of the job take longer than " +
            std::to_string(std::chrono::duration_cast<std::chrono::minutes>(limit).count()) +
            " minutes on this node"};
  if (end.succeeded()) return std::nullopt;
  return trial_error(end.kept, end.status);
}

JobTrial::~JobTrial() {
  child_.kill();
  if (thread_.joinable()) thread_.join();
}

void JobTrial::stop(std::function<void()> done) {
  child_.kill();
  if (running_)
    stopped_ = std::move(done);
  else
    loop_.post(std::move(done));
}

}  // namespace gossipd
