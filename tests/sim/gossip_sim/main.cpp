// gossip-sim - the core under faults, seed by seed.
#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "tests/sim/gossip_sim/campaign.h"
#include "tools/unknown_words.h"

using namespace gossipd::sim;

namespace {

constexpr std::uint64_t seeds_between_words = 500;             // about progress
constexpr std::uint64_t seed_max = 1'000'000'000'000'000'000;  // far from where numbers wrap
constexpr int found_by_others_max = 3;  // seeds that find a mutant by another checker

bool parse_number(std::string_view text, std::uint64_t& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc{} && end == text.data() + text.size();
}

// "7" or "1..1000".
bool parse_seeds(const std::string& text, CampaignOptions& options) {
  const std::size_t dots = text.find("..");
  if (!parse_number(text.substr(0, dots), options.first)) return false;
  options.last = options.first;
  return (dots == std::string::npos || parse_number(text.substr(dots + 2), options.last)) &&
         options.first <= options.last && options.last <= seed_max;
}

void print_failure(std::uint64_t seed, const SeedFailure& failure, const Mutant* mutant) {
  for (const std::string& line : failure.last_events) std::fprintf(stderr, "  %s\n", line.c_str());
  std::fprintf(stderr, "seed %llu: %s\n  replay: %s\n", static_cast<unsigned long long>(seed),
               failure.text.c_str(), replay_command(seed, mutant).c_str());
}

// What finds the mutant, "seed 7"; "MISSED" and why if its own checker is not among them. A mutant
// may break more than one thing, so other checkers may be the first in a few seeds.
std::string search(const Mutant& mutant, CampaignOptions options) {
  options.mutant = &mutant;
  options.failures_max = 1;
  std::string missed = "MISSED";
  for (int others = 0; others <= found_by_others_max && options.first <= options.last; ++others) {
    const Campaign campaign = run_campaign(options);
    if (campaign.failures.empty()) break;
    const auto& [seed, failure] = *campaign.failures.begin();
    if (failure.checker == mutant.checker) return "seed " + std::to_string(seed);
    missed += ", seed " + std::to_string(seed) + " found by " + failure.text;
    options.first = seed + 1;
  }
  return missed;
}

int check_mutants(const CampaignOptions& options) {
  int missed = 0;
  for (const Mutant& mutant : mutants()) {
    const std::string found = search(mutant, options);
    std::printf("%-22s %-14s %s\n", mutant.name, mutant.checker, found.c_str());
    std::fflush(stdout);
    missed += found.starts_with("MISSED") ? 1 : 0;
  }
  std::printf("%zu mutants, %d missed\n", mutants().size(), missed);
  return missed == 0 ? 0 : 1;
}

int run(CampaignOptions options, bool as_json) {
  options.on_failure = [mutant = options.mutant](std::uint64_t seed, const SeedFailure& failure) {
    print_failure(seed, failure, mutant);
  };
  options.on_seed = [all = options.last - options.first + 1](const Campaign& so_far) {
    if (so_far.seeds % seeds_between_words == 0 && so_far.seeds < all)
      std::fprintf(stderr, "%llu of %llu seeds, %zu failed\n",
                   static_cast<unsigned long long>(so_far.seeds),
                   static_cast<unsigned long long>(all), so_far.failures.size());
  };
  const Campaign campaign = run_campaign(options);
  std::cout << (as_json ? to_json(campaign).dump(2) + "\n" : to_text(campaign)) << std::flush;
  if (!std::cout) throw std::runtime_error("the report cannot be written to standard output");
  return campaign.passed() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"gossip-sim - the core of gossipd under faults, in virtual time, seed by seed",
               "gossip-sim"};
  app.footer(
      "Exit codes: 0 all seeds passed, 1 one failed, 2 usage. tests/README.md tells what is "
      "injected and checked.");
  std::string seeds = "1..100", mutant;
  CampaignOptions options;
  bool as_json = false, list = false, check = false;
  app.add_option("--seeds", seeds, "A..B, or one")->capture_default_str();
  app.add_option("--jobs", options.jobs, "processes")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  app.add_option("--mutant", mutant, "a mutant to run, one of --list-mutants");
  app.add_flag("--json", as_json, "the report as JSON");
  app.add_flag("--trace", options.trace, "tell every event on stderr");
  app.add_flag("--list-mutants", list, "the mutants, and the checker that finds it");
  app.add_flag("--check-mutants", check, "each mutant must be found within --seeds by its checker")
      ->excludes("--mutant");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "gossip-sim: %s; gossip-sim --help tells more\n",
                 gossipd::refused_words(app, error).c_str());
    return 2;
  }
  if (list) {
    for (const Mutant& p : mutants()) std::printf("%-22s %-14s %s\n", p.name, p.checker, p.what);
    return 0;
  }
  if (!parse_seeds(seeds, options)) {
    std::fprintf(
        stderr,
        "--seeds: '%s' is no range of seeds; write A..B with A <= B, or one number; at most %llu\n",
        seeds.c_str(), static_cast<unsigned long long>(seed_max));
    return 2;
  }
  options.mutant = mutant.empty() ? nullptr : find_mutant(mutant);
  if (!mutant.empty() && options.mutant == nullptr) {
    std::fprintf(stderr, "--mutant: there is no '%s'; --list-mutants tells which there are\n",
                 mutant.c_str());
    return 2;
  }
  try {
    return check ? check_mutants(options) : run(options, as_json);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gossip-sim: %s\n", error.what());
    return 1;
  }
}
