#include "tests/sim/gossip_sim/campaign.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>

namespace gossipd::sim {
namespace {

using nlohmann::json;

json to_json(const SeedResult& r) {
  json out = {{"seed", r.seed},
              {"nodes", r.nodes},
              {"virtual", r.virtual_seconds},
              {"settling", r.settling_seconds},
              {"events", r.events},
              {"messages", r.messages},
              {"checks", r.replica_checks},
              {"faults", r.faults}};
  if (r.failure)
    out["failure"] = {{"checker", r.failure->checker},
                      {"text", r.failure->text},
                      {"last", r.failure->last_events}};
  return out;
}

// The failure of that seed, if it has one.
std::optional<SeedFailure> failure_in(const json& r) {
  const auto failure = r.find("failure");
  if (failure == r.end()) return std::nullopt;
  return SeedFailure{failure->at("checker").get<std::string>(),
                     failure->at("text").get<std::string>(),
                     failure->at("last").get<std::vector<std::string>>()};
}

void add(Campaign& sum, const json& r) {
  ++sum.seeds;
  sum.virtual_seconds += r.at("virtual").get<double>();
  sum.settling_seconds_most = std::max(sum.settling_seconds_most, r.at("settling").get<double>());
  sum.events += r.at("events").get<std::uint64_t>();
  sum.messages += r.at("messages").get<std::uint64_t>();
  sum.replica_checks += r.at("checks").get<std::uint64_t>();
  sum.nodes_most = std::max(sum.nodes_most, r.at("nodes").get<std::size_t>());
  for (std::size_t i = 0; i < fault_classes; ++i)
    sum.faults[i] += r.at("faults").at(i).get<std::uint64_t>();
}

// One process and its seeds: every `stride`-th. It writes a line of JSON for each.
struct Worker {
  std::uint64_t next = 0;  // the first of its seeds without a result
  pid_t process = -1;
  int pipe = -1;
  std::string unread;
};

[[noreturn]] void work(const CampaignOptions& options, std::uint64_t first, std::uint64_t stride,
                       int out) {
  std::FILE* pipe = ::fdopen(out, "w");
  for (std::uint64_t seed = first; seed <= options.last; seed += stride) {
    const std::string line = to_json(options.run(seed, options.mutant, options.trace))
                                 .dump(-1, ' ', false, json::error_handler_t::replace);
    std::fprintf(pipe, "%s\n", line.c_str());
    std::fflush(pipe);
  }
  std::fflush(nullptr);
  ::_exit(0);
}

class Pool {
 public:
  explicit Pool(const CampaignOptions& options)
      : options_(options), workers_(std::max<std::size_t>(options.jobs, 1)) {
    sum_.seeds_asked = options.last - options.first + 1;
    for (std::size_t i = 0; i < workers_.size(); ++i) workers_[i].next = options.first + i;
  }

  Campaign run() {
    for (Worker& worker : workers_) start(worker);
    while (std::any_of(workers_.begin(), workers_.end(),
                       [](const Worker& w) { return w.process > 0; })) {
      std::vector<pollfd> polls;
      // poll() skips -1
      for (const Worker& worker : workers_) polls.push_back(pollfd{worker.pipe, POLLIN, 0});
      if (::poll(polls.data(), polls.size(), -1) < 0) {
        if (errno == EINTR) continue;
        throw std::runtime_error(std::string("cannot wait for workers: ") + std::strerror(errno));
      }
      for (std::size_t i = 0; i < workers_.size(); ++i)
        if ((polls[i].revents & (POLLIN | POLLHUP)) != 0) read(workers_[i]);
    }
    return std::move(sum_);
  }

 private:
  [[nodiscard]] bool enough() const { return sum_.failures.size() >= options_.failures_max; }

  void fail(std::uint64_t seed, SeedFailure failure) {
    if (options_.on_failure) options_.on_failure(seed, failure);
    sum_.failures[seed] = std::move(failure);
  }

  void start(Worker& worker) {
    if (worker.next > options_.last || enough()) return;
    int ends[2];
    if (::pipe(ends) != 0)
      throw std::runtime_error(std::string("no pipe to a worker: ") + std::strerror(errno));
    std::fflush(nullptr);
    worker.process = ::fork();
    if (worker.process < 0)
      throw std::runtime_error(std::string("no worker process: ") + std::strerror(errno));
    if (worker.process == 0) {
      ::close(ends[0]);
      work(options_, worker.next, workers_.size(), ends[1]);
    }
    ::close(ends[1]);
    worker.pipe = ends[0];
  }

  void read(Worker& worker) {
    char buffer[65536];
    const ssize_t count = ::read(worker.pipe, buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) return;
    if (count <= 0) return ended(worker);
    worker.unread.append(buffer, static_cast<std::size_t>(count));
    for (std::size_t end = worker.unread.find('\n'); end != std::string::npos;
         end = worker.unread.find('\n')) {
      take(worker, worker.unread.substr(0, end));
      worker.unread.erase(0, end + 1);
    }
    if (enough() && worker.process > 0) {
      ::kill(worker.process, SIGKILL);
      worker.next = options_.last + 1;
    }
  }

  void take(Worker& worker, const std::string& line) {
    const json result = json::parse(line);
    add(sum_, result);
    if (auto failure = failure_in(result)) fail(worker.next, std::move(*failure));
    worker.next += workers_.size();
    if (options_.on_seed) options_.on_seed(sum_);
  }

  void ended(Worker& worker) {
    ::close(worker.pipe);
    worker.pipe = -1;
    int status = 0;
    (void)::waitpid(std::exchange(worker.process, -1), &status, 0);
    worker.unread.clear();
    if (worker.next > options_.last) return;
    ++sum_.seeds;
    const std::string how = WIFSIGNALED(status) ? "signal " + std::to_string(WTERMSIG(status))
                                                : "exit " + std::to_string(WEXITSTATUS(status));
    fail(worker.next,
         SeedFailure{"core", "core: the process died of " + how + "; its words are on stderr", {}});
    worker.next += workers_.size();
    start(worker);
  }

  const CampaignOptions& options_;
  std::vector<Worker> workers_;
  Campaign sum_;
};

}  // namespace

Campaign run_campaign(const CampaignOptions& options) { return Pool(options).run(); }

std::vector<std::string> Campaign::silent_classes() const {
  std::vector<std::string> silent;
  if (seeds < seeds_for_every_class) return silent;
  for (std::size_t i = 0; i < fault_classes; ++i)
    if (faults[i] == 0) silent.push_back(to_string(static_cast<Fault>(i)));
  return silent;
}

std::string replay_command(std::uint64_t seed, const Mutant* mutant) {
  const std::string number = std::to_string(seed);
  return "gossip-sim --seeds " + number + ".." + number +
         (mutant != nullptr ? std::string(" --mutant ") + mutant->name : "") + " --trace";
}

json to_json(const Campaign& c) {
  json faults = json::object(), failures = json::array();
  for (std::size_t i = 0; i < fault_classes; ++i)
    faults[to_string(static_cast<Fault>(i))] = c.faults[i];
  for (const auto& [seed, failure] : c.failures)
    failures.push_back({{"seed", seed}, {"checker", failure.checker}, {"text", failure.text}});
  return {{"seeds", c.seeds},
          {"virtual_hours", c.virtual_seconds / 3600},
          {"events", c.events},
          {"messages", c.messages},
          {"replica_checks", c.replica_checks},
          {"nodes_most", c.nodes_most},
          {"settling_s_most", c.settling_seconds_most},
          {"faults", std::move(faults)},
          {"faults_total", std::accumulate(c.faults.begin(), c.faults.end(), std::uint64_t{0})},
          {"silent_classes", c.silent_classes()},
          {"failures", std::move(failures)},
          {"passed", c.passed()}};
}

std::string to_text(const Campaign& c) {
  char line[256];
  std::snprintf(line, sizeof line,
                "%llu seeds, %.1f virtual hours, %.1f M events, %.1f M messages, %llu replica "
                "checks, at most %zu nodes, settled within %.0f s\n",
                static_cast<unsigned long long>(c.seeds), c.virtual_seconds / 3600,
                static_cast<double>(c.events) / 1e6, static_cast<double>(c.messages) / 1e6,
                static_cast<unsigned long long>(c.replica_checks), c.nodes_most,
                c.settling_seconds_most);
  std::string text = line;
  text += "faults:";
  for (std::size_t i = 0; i < fault_classes; ++i)
    text += std::string(" ") + to_string(static_cast<Fault>(i)) + "=" + std::to_string(c.faults[i]);
  text += "\n";
  for (const std::string& silent : c.silent_classes()) text += "never fired: " + silent + "\n";
  if (c.seeds < c.seeds_asked)
    text += "not run: " + std::to_string(c.seeds_asked - c.seeds) + " of the seeds asked for\n";
  text += std::to_string(c.failures.size()) + " seeds failed\n";
  return text;
}

}  // namespace gossipd::sim
