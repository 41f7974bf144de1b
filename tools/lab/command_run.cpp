// gossip-lab run, gossip-lab strategies.
#include <unistd.h>

#include <chrono>
#include <iostream>

#include "tools/lab/commands.h"
#include "tools/lab/results_file.h"

namespace gossipd::lab {

namespace {

using Clock = std::chrono::steady_clock;

std::string span_of(double seconds) {
  const long s = static_cast<long>(seconds + 0.5);
  char text[32];
  std::snprintf(text, sizeof text, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
  return text;
}

class ProgressBar {
 public:
  explicit ProgressBar(std::size_t runs) : runs_(runs), on_(::isatty(STDERR_FILENO) == 1) {}
  void show(const std::string& what, std::size_t done, double share) {
    const auto now = Clock::now();
    if (!on_ || now - shown_ < std::chrono::milliseconds(250)) return;
    shown_ = now;
    const double all = (static_cast<double>(done) + share) / static_cast<double>(runs_);
    const double past = std::chrono::duration<double>(now - began_).count();
    const int filled = static_cast<int>(all * 30);
    std::cerr << "\r\033[K" << what << " [" << std::string(static_cast<std::size_t>(filled), '#')
              << std::string(static_cast<std::size_t>(30 - filled), '.') << "] "
              << static_cast<int>(all * 100) << " %";
    if (all > 0.01) std::cerr << ", " << span_of(past / all - past) << " left";
    std::cerr << std::flush;
  }
  void clear() {
    if (on_) std::cerr << "\r\033[K" << std::flush;
  }

 private:
  std::size_t runs_;
  bool on_;
  Clock::time_point began_ = Clock::now(), shown_{};
};

struct RunArguments {
  std::string file, seeds = "1", json;
  std::vector<std::string> overrides;
  int threads = 2;
  bool check = false;
};

int fail(const Error& error) {
  std::cerr << "gossip-lab: " << error.text << "\n";
  return error.code == "bad-config" || error.code == "bad-toml" ? 2 : 1;
}

int run(const RunArguments& arguments) {
  const Result<Scenario> scenario = Scenario::load(arguments.file, arguments.overrides);
  if (!scenario) return fail(scenario.error());
  const Result<std::vector<std::uint64_t>> seeds = parse_seeds(arguments.seeds);
  if (!seeds) return fail(seeds.error());
  if (arguments.check) {
    std::cout << scenario->text << "\n";
    return 0;
  }
  std::vector<RunResult> have;
  if (!arguments.json.empty()) {
    Result<std::vector<RunResult>> read = read_results(arguments.json, true);
    if (!read) return fail(read.error());
    have = std::move(*read);
  }
  ProgressBar bar(seeds->size());
  std::size_t done = 0;
  for (const std::uint64_t seed : *seeds) {
    const std::string id = scenario->run_id(seed);
    const auto before =
        std::find_if(have.begin(), have.end(), [&](const RunResult& r) { return r.id == id; });
    std::optional<RunResult> result;
    if (before != have.end()) {
      result = *before;
    } else {
      const std::string what = scenario->name + " seed " + std::to_string(seed);
      RunOptions options;
      options.threads = arguments.threads;
      options.progress = [&](double share) { bar.show(what, done, share); };
      Result<RunResult> made = run_scenario(*scenario, seed, options);
      if (!made) return fail(made.error());
      result = std::move(*made);
      if (!arguments.json.empty())
        if (auto error = append_result(arguments.json, *result)) return fail(*error);
    }
    bar.clear();
    ++done;
    std::printf(
        "%s seed %llu: accuracy %.4f, consensus distance %.4f, %.1f virtual s, %.3f MB (%.3f %% of "
        "the dense baseline), age %.1f steps, %llu samples%s%s\n",
        scenario->name.c_str(), static_cast<unsigned long long>(seed), result->accuracy_mean(),
        result->consensus_distance, result->seconds, static_cast<double>(result->bytes) / 1e6,
        result->dense_baseline_bytes > 0 ? 100.0 * static_cast<double>(result->bytes) /
                                               static_cast<double>(result->dense_baseline_bytes)
                                         : 0.0,
        result->age_mean, static_cast<unsigned long long>(result->samples),
        result->finished ? "" : ", NOT FINISHED", before != have.end() ? " (from the file)" : "");
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace

void add_run(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<RunArguments>();
  CLI::App* command = app.add_subcommand("run", "run a scenario, once for each seed");
  command->add_option("file", arguments->file, "scenario (TOML)")->required()->type_name("FILE");
  command
      ->add_option("--set", arguments->overrides,
                   "any key of the file, for example --set exchange.codec=int8; may be repeated")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  command->add_option("--seeds", arguments->seeds, "1..10 or 1,4,7 (default 1)")
      ->type_name("SEEDS");
  command
      ->add_option("--json", arguments->json,
                   "append each result as one line; runs that are there already are not run again")
      ->type_name("OUT");
  command
      ->add_option("--threads", arguments->threads,
                   "that compute gradients (default 2); results do not depend on it")
      ->type_name("N")
      ->check(CLI::Range(1, 1024));
  command->add_flag("--check", arguments->check,
                    "print the scenario with everything merged in, and exit");
  command->callback([arguments, &exit_code] { exit_code = run(*arguments); });
}

void add_strategies(CLI::App& app, int& exit_code) {
  auto json = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand(
      "strategies", "every way to train that a scenario can name, with its knobs");
  command->add_flag("--json", *json, "as JSON");
  command->callback([json, &exit_code] {
    nlohmann::json all = nlohmann::json::array();
    for (const StrategyEntry& entry : strategies()) {
      const std::unique_ptr<Strategy> strategy = entry.make();
      nlohmann::json knobs = nlohmann::json::array();
      if (!*json)
        std::printf("%s - %s\n    %s\n", entry.name.c_str(), entry.summary.c_str(),
                    entry.source.c_str());
      for (const Setting& setting : strategy->settings()) {
        if (!*json)
          std::printf("    %-34s %-14s %s%s\n", setting.key.c_str(), setting.get().c_str(),
                      setting.help.c_str(),
                      setting.unit.empty() ? "" : (" [" + setting.unit + "]").c_str());
        knobs.push_back({{"key", setting.key},
                         {"default", setting.get()},
                         {"values", setting.value},
                         {"unit", setting.unit},
                         {"help", setting.help}});
      }
      all.push_back({{"name", entry.name},
                     {"summary", entry.summary},
                     {"source", entry.source},
                     {"knobs", knobs}});
    }
    if (*json) std::cout << nlohmann::json{{"strategies", all}}.dump(2) << "\n";
    exit_code = 0;
  });
}

}  // namespace gossipd::lab
