// daemon/job_trial.h - tries a job in a process of its own before a cluster goes on to it.
//
// The problem: a job that no box can train would take the whole cluster along, and what a trial
// costs (memory that may not suffice, LibTorch's settings for all of a process) must not be the
// daemon's. The answer: `gossipd --check-config --job FILE` with the daemon's own data and device,
// which reads the data and makes two steps; its last words are the refusal. It ends with its
// daemon, however that ends. Loop thread only.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "daemon/config/config.h"
#include "net/child_process.h"
#include "net/event_loop.h"

namespace gossipd {

class JobTrial {
 public:
  static constexpr Duration limit = std::chrono::minutes(10);
  using Done = std::function<void(const std::optional<Error>&)>;

  explicit JobTrial(EventLoop& loop) : loop_(loop) {}
  ~JobTrial();  // waits for what runs
  JobTrial(const JobTrial&) = delete;
  JobTrial& operator=(const JobTrial&) = delete;

  [[nodiscard]] bool is_running() const { return running_; }
  // While none runs. `done` is called once from the loop. Codes "bad-job", "not-tried" (no
  // process can be started for it), "stopping".
  void start(const DaemonConfig& config, const std::string& file, Done done);
  // Kills what runs. `done` is called once from the loop when it has ended: one that sleeps in the
  // kernel, as on a server that is silent, takes its time.
  void stop(std::function<void()> done);

 private:
  [[nodiscard]] std::optional<Error> run(const std::vector<std::string>& arguments);

  EventLoop& loop_;
  std::thread thread_;
  bool running_ = false;
  std::function<void()> stopped_;  // set once stop() was called
  ChildProcess child_;
};

// The command line of the trial, without the program.
[[nodiscard]] std::vector<std::string> trial_arguments(const DaemonConfig& config,
                                                       const std::string& file);
// To be called before anything else is done: a process that is the trial of a daemon asks to be
// killed when that ends, or first where memory runs out, and ends if that already has. Nothing in
// any other process.
void end_with_daemon();
// A trial's, by the process id of its daemon; without the settings of the node, which the trial
// gets as flags.
[[nodiscard]] std::vector<std::string> trial_environment(pid_t daemon);
// What a trial that did not end with 0 says: `words` on its standard error, `status` of waitpid().
[[nodiscard]] Error trial_error(const std::string& words, int status);

}  // namespace gossipd
