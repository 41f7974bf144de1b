// gossip-bench overhead: the cost of gossip to the training of one node, in paired runs.
//
// Real daemons on loopback with TLS: four neighbours that train slowly, to leave the cores to the
// measured node, and that node at full speed, in turn with exchange on and off. The result is the
// ratio of its samples per second for each pair, and the median. The slow neighbours bound how
// often it exchanges, so that rate is part of the result.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "net/http/client.h"
#include "tools/bench/commands.h"
#include "tools/bench/median.h"

namespace gossipd::bench {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using nlohmann::json;

constexpr int links = 4;
constexpr auto answer_limit = std::chrono::seconds(60);
constexpr auto poll_interval = std::chrono::milliseconds(50);

[[noreturn]] void fail(const std::string& what) {
  std::cerr << "gossip-bench overhead: " << what << '\n';
  throw CLI::RuntimeError(1);
}

const char* const job_text = R"(name = "overhead"
seed = 1
batch = 32
budget_samples = 4_000_000_000
evaluate_every_samples = 4_000_000_000
[model]
kind = "cnn"
[data]
kind = "idx"
shape = [1, 28, 28]
classes = 10
)";

// One gossipd, which ends with this object.
class Daemon {
 public:
  Daemon(const fs::path& program, const fs::path& directory, std::uint16_t port, int nice_value,
         std::vector<std::string> arguments)
      : rest_{"127.0.0.1", static_cast<std::uint16_t>(port + 1)}, log_(directory / "log") {
    fs::create_directories(directory);
    std::vector<std::string> words{program.string(),
                                   "--state-dir",
                                   (directory / "state").string(),
                                   "--listen",
                                   "127.0.0.1:" + std::to_string(port),
                                   "--rest",
                                   to_string(rest_),
                                   "--threads",
                                   "1",
                                   "--set",
                                   "checkpoint.every_s=3600"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    pid_ = fork();
    if (pid_ < 0) fail("no process could be started");
    if (pid_ == 0) {
      const int out = open(log_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
      dup2(out, 1);
      dup2(out, 2);
      (void)setpriority(PRIO_PROCESS, 0, nice_value);
      execv(argv[0], argv.data());
      _exit(127);
    }
  }
  ~Daemon() {
    kill(pid_, SIGTERM);
    waitpid(pid_, nullptr, 0);
  }
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  json get(const std::string& target) const {
    HttpCall call;
    call.server = rest_;
    call.target = target;
    const auto answer = http_call(call);
    if (!answer || answer->status != 200) return json();
    return json::parse(answer->body, nullptr, false);
  }

  json wait_for(const std::function<bool(const json&)>& condition, const std::string& what) const {
    const auto end = Clock::now() + answer_limit;
    while (Clock::now() < end) {
      const json status = get("/v1/status");
      if (status.is_object() && condition(status)) return status;
      if (waitpid(pid_, nullptr, WNOHANG) == pid_) break;
      std::this_thread::sleep_for(poll_interval);
    }
    std::ifstream log(log_);
    std::cerr << std::string(std::istreambuf_iterator<char>(log), {});
    fail("a daemon did not get as far as: " + what);
  }

 private:
  pid_t pid_ = -1;
  Endpoint rest_;
  fs::path log_;
};

struct Run {
  double samples_per_second = 0;
  double bytes_per_second = 0;
  double open_links = 0;
  double exchanges_per_second = 0;  // of this node with all its neighbours
  double steps_per_exchange = 0;    // its own, between two exchanges with one neighbour; 0: none
};

// An exchange has a turn of each side. Links that began or ended in between count with what they
// show.
double exchanges_between(const json& first, const json& last) {
  const auto turns = [](const json& link) {
    return link["turns_spoken"].get<double>() + link["turns_heard"].get<double>();
  };
  double sum = 0;
  for (const json& link : last["links"]) {
    double before = 0;
    for (const json& same : first["links"])
      if (same["peer"] == link["peer"]) before = turns(same);
    sum += std::max(0.0, turns(link) - before);
  }
  return sum / 2;
}

struct Options {
  bool as_json = false;
  int pairs = 5;
  double seconds = 10;
  std::string data = "/usr/share/datasets/fashion-mnist";
  std::uint16_t port = 7910;
};

Run measure(const fs::path& program, const fs::path& base, const Options& options, bool exchange,
            int number) {
  const fs::path key = base / "cluster.key";
  const Daemon node(
      program, base / ("measured" + std::to_string(number)),
      static_cast<std::uint16_t>(options.port + 2 * links), 0,
      {"--name", "measured", "--key-file", key.string(), "--join",
       "127.0.0.1:" + std::to_string(options.port), "--data", options.data, "--set",
       "membership.links=" + std::to_string(links), "--exchange", exchange ? "on" : "off"});
  node.wait_for(
      [&](const json& s) {
        return s["step"].get<std::uint64_t>() > 200 &&
               (!exchange || s["links_open"].get<int>() >= links);
      },
      "200 steps and " + std::to_string(links) + " links");
  const json first = node.get("/v1/status"), links_first = node.get("/v1/links");
  const auto start = Clock::now();
  const auto end = start + std::chrono::duration_cast<Clock::duration>(
                               std::chrono::duration<double>(options.seconds));
  std::this_thread::sleep_until(end);
  const json last = node.get("/v1/status"), links_last = node.get("/v1/links");
  const double length = std::chrono::duration<double>(Clock::now() - start).count();
  Run run;
  run.samples_per_second =
      (last["own_samples"].get<double>() - first["own_samples"].get<double>()) / length;
  run.bytes_per_second =
      (last["bytes_sent_total"].get<double>() - first["bytes_sent_total"].get<double>()) / length;
  run.open_links = last["links_open"].get<double>();
  const double exchanges = exchanges_between(links_first, links_last);
  run.exchanges_per_second = exchanges / length;
  if (exchanges > 0)
    run.steps_per_exchange =
        (last["step"].get<double>() - first["step"].get<double>()) * run.open_links / exchanges;
  return run;
}

std::vector<std::unique_ptr<Daemon>> start_neighbours(const fs::path& program, const fs::path& base,
                                                      const Options& options) {
  std::vector<std::unique_ptr<Daemon>> neighbours;
  for (int i = 0; i < links; ++i) {
    std::vector<std::string> arguments{"--name",
                                       "neighbour" + std::to_string(i),
                                       "--key-file",
                                       (base / "cluster.key").string(),
                                       "--data",
                                       options.data,
                                       "--trainer-min-step-ms",
                                       "100"};
    if (i == 0)
      arguments.insert(arguments.end(), {"--job", (base / "job.toml").string()});
    else
      arguments.insert(arguments.end(), {"--join", "127.0.0.1:" + std::to_string(options.port)});
    neighbours.push_back(std::make_unique<Daemon>(program, base / ("neighbour" + std::to_string(i)),
                                                  static_cast<std::uint16_t>(options.port + 2 * i),
                                                  10, std::move(arguments)));
    neighbours.back()->wait_for([](const json& s) { return s["phase"] == "training"; }, "training");
  }
  return neighbours;
}

void run(const Options& options) {
  const fs::path program = fs::read_symlink("/proc/self/exe").parent_path() / "gossipd";
  if (!fs::exists(program))
    fail(program.string() + " is missing: build gossipd (it needs LibTorch) beside gossip-bench");
  std::string pattern = (fs::temp_directory_path() / "gossip-bench-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) fail("no temporary directory could be made");
  const fs::path base = pattern;
  struct Cleaner {
    fs::path path;
    ~Cleaner() { fs::remove_all(path); }
  } cleaner{base};
  std::ofstream(base / "job.toml") << job_text;

  const auto neighbours = start_neighbours(program, base, options);
  json pairs = json::array();
  std::vector<double> ratios, bytes;
  for (int pair = 0; pair < options.pairs; ++pair) {
    const bool on_first = pair % 2 == 0;
    const Run a = measure(program, base, options, on_first, 2 * pair);
    const Run b = measure(program, base, options, !on_first, 2 * pair + 1);
    const Run& on = on_first ? a : b;
    const Run& off = on_first ? b : a;
    if (off.samples_per_second <= 0) fail("the node made no progress");
    ratios.push_back(on.samples_per_second / off.samples_per_second);
    bytes.push_back(on.bytes_per_second);
    pairs.push_back({{"on_samples_per_second", on.samples_per_second},
                     {"off_samples_per_second", off.samples_per_second},
                     {"ratio", ratios.back()},
                     {"bytes_per_second", on.bytes_per_second},
                     {"links", on.open_links},
                     {"exchanges_per_second", on.exchanges_per_second},
                     {"steps_per_exchange", on.steps_per_exchange}});
    if (!options.as_json)
      std::printf(
          "pair %d: on %8.0f samples/s (%.0f links, %6.1f kB/s sent, %.1f exchanges/s, on a link "
          "one in %.0f steps), off %8.0f samples/s, ratio %.3f\n",
          pair + 1, on.samples_per_second, on.open_links, on.bytes_per_second / 1e3,
          on.exchanges_per_second, on.steps_per_exchange, off.samples_per_second, ratios.back());
  }
  const auto [least, most] = std::minmax_element(ratios.begin(), ratios.end());
  const json result{
      {"links", links},      {"pairs", pairs},     {"ratio_median", median(ratios)},
      {"ratio_min", *least}, {"ratio_max", *most}, {"bytes_per_second_median", median(bytes)},
      {"aim", 0.97}};
  if (options.as_json)
    std::cout << result.dump() << '\n';
  else
    std::printf(
        "samples/s with gossip on %d links ÷ without: median %.3f (%.3f … %.3f), aim 0.97\n", links,
        median(ratios), *least, *most);
}

}  // namespace

void add_overhead_command(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "overhead", "samples/s of a node with gossip on four links against without, in paired runs");
  command->add_flag("--json", options->as_json, "one JSON object");
  command->add_option("--pairs", options->pairs, "pairs of runs")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  command->add_option("--seconds", options->seconds, "length of one run")
      ->check(CLI::Range(1.0, 600.0))
      ->capture_default_str();
  command->add_option("--data", options->data, "directory of Fashion-MNIST")->capture_default_str();
  command->add_option("--port", options->port, "first of ten ports on loopback")
      ->capture_default_str();
  command->callback([options] { run(*options); });
}

}  // namespace gossipd::bench
