// gossip-bench exchange: what an exchange of whole models costs two nodes on this machine.
//
// Both nodes run in this process with the core and the sockets of gossipd, over loopback with TLS;
// their trainers only pretend (tools/bench/exchange_node.h). For each size of a model:
//
//   exchange  as fast as they can, one exchange after the other: its length, from when the core has
//             the snapshot that opens it until the opening node has mixed the answer in (not the
//             trainer's copy of its model, nor its sum with the update), and the processor time of
//             both protocol threads and of the threads that compute with them (--threads), each
//             divided by a memcpy of the model in the same run
//   pairs     training steps with the exchange on and off in turn: the ratio of the steps made
//   memory    what a node holds after these exchanges, resident or swapped out, its trainer's model
//             included, as a multiple of the model's floats
//   stalls    the longest time that the protocol thread did one thing: by its own processor time,
//             and by the clock, which other work on the machine prolongs. On a virtual machine the
//             processor time that the host takes away counts as the thread's, so an empty loop is
//             measured as well: no figure below its longest jump says anything
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "models/devices/model_files.h"
#include "models/devices/runtime.h"
#include "models/devices/worker_pool.h"
#include "net/peer/cluster_key.h"
#include "tools/bench/commands.h"
#include "tools/bench/exchange_node.h"
#include "tools/bench/median.h"

namespace gossipd::bench {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr std::size_t floats_min = 1024;
constexpr std::size_t floats_max = 2'000'000'000;
constexpr std::uint64_t segment_floats = 2'359'296;  // a layer of a large network: 512 x 512 x 9
constexpr int memcpy_repetitions = 9;
constexpr std::uint64_t warm_up_exchanges = 3;  // the first sends whole models
constexpr std::uint64_t warm_up_turns = 2 * warm_up_exchanges;
constexpr double wait_min_s = 120;
constexpr double wait_floats_per_s = 500'000;  // beyond that: a model may have to be swapped
constexpr auto poll_interval = std::chrono::milliseconds(5);
constexpr double step_ms_max = 60'000;

struct Options {
  bool json = false;
  std::vector<std::size_t> floats{63'610, 4'000'000, 25'000'000};
  std::uint64_t exchanges = 20;
  int pairs = 9;
  double seconds = 3;
  double step_ms = 50;
  std::size_t threads = 1;
  bool busy = false;
  bool plain = false;
  std::string replicas = "auto";
  std::string memory_dir;
  std::string codec;  // empty: the default
};

struct StallSummary {
  Stall longest;
  std::string wall_at, cpu_at;  // what the thread did
};

struct SizeFigures {
  std::size_t floats = 0;
  double memcpy_seconds = 0;
  double exchange_seconds = 0, exchange_longest_seconds = 0;  // median
  double cpu_seconds = 0;  // of both nodes' threads for one exchange, not their trainers'
  double bytes_per_exchange = 0;
  double models_held = 0;      // of a node: its memory, swap included, over 4 · floats
  std::vector<double> ratios;  // of the pairs, ascending
  double steps_off = 0;        // per second, of a node, median of the pairs
  double exchanges_per_second = 0;
  StallSummary opening, running;
  double empty_loop_seconds = 0;  // the longest jump of its processor time
};

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "gossip-bench exchange: %s\n", what.c_str());
  throw CLI::RuntimeError(1);
}

// Of processor time, so that other work on the machine makes the exchange no cheaper.
double median_memcpy_seconds(std::size_t floats) {
  std::vector<float> from(floats, 1.0f), to(floats);
  std::vector<double> seconds;
  for (int i = 0; i < memcpy_repetitions; ++i) {
    from[0] = static_cast<float>(i);
    const double begin = thread_cpu_seconds();
    std::memcpy(to.data(), from.data(), 4 * floats);
    asm volatile("" : : "r"(to.data()) : "memory");
    seconds.push_back(thread_cpu_seconds() - begin);
  }
  return median(seconds);
}

// Of the processor time of a thread that does nothing else than look at it.
double longest_jump_of_empty_loop(double seconds) {
  const double begin = thread_cpu_seconds();
  double longest = 0;
  for (double now = begin, last = begin; now - begin < seconds; last = now) {
    now = thread_cpu_seconds();
    longest = std::max(longest, now - last);
  }
  return longest;
}

// Of this process, now: resident or swapped out.
double held_bytes() {
  std::ifstream file("/proc/self/status");
  double kilobytes = 0, sum = 0;
  for (std::string name, line; file >> name; std::getline(file, line))
    if ((name == "VmRSS:" || name == "VmSwap:") && file >> kilobytes) sum += kilobytes;
  return 1024 * sum;
}

Schema schema_of(std::size_t floats) {
  std::vector<Segment> segments;
  for (std::uint64_t at = 0; at < floats; at += segment_floats) {
    const std::uint64_t size = std::min<std::uint64_t>(segment_floats, floats - at);
    segments.push_back(Segment{.name = "layer" + std::to_string(segments.size()),
                               .shape = {static_cast<std::int64_t>(size)},
                               .offset = at,
                               .size = size,
                               .kind = SegmentKind::parameter});
  }
  auto schema = Schema::build(std::move(segments));
  if (!schema) fail(schema.error().text);
  return *schema;
}

// Two nodes whose link stands and has settled.
class TwoNodes {
 public:
  TwoNodes(const Options& options, std::size_t floats, Pace pace, bool exchange_on)
      : limit_(std::max(wait_min_s, static_cast<double>(floats) / wait_floats_per_s)) {
    ExchangeNodeOptions node;
    node.schema = schema_of(floats);
    node.exchange.enabled = exchange_on;
    node.exchange.replicas = options.replicas == "bf16"   ? ReplicaFormat::bf16
                             : options.replicas == "fp32" ? ReplicaFormat::fp32
                                                          : ReplicaFormat::automatic;
    node.threads = options.threads;
    if (const auto codec = parse_codec(options.codec)) node.exchange.codec = *codec;
    if (pace == Pace::exchange) node.exchange.period_steps = node.exchange.round_steps = 1;
    node.trainer = {.pace = pace, .step_seconds = options.step_ms * 1e-3, .busy = options.busy};
    if (!options.plain) {
      const auto key = generate_cluster_key();
      if (!key) fail(key.error().text);
      node.keys = *key;
    }
    node.id = NodeId{1};
    opener_ = std::make_unique<ExchangeNode>(node);
    node.id = NodeId{2};
    node.trainer.seed = 2;
    node.seed = opener_->address();
    answerer_ = std::make_unique<ExchangeNode>(node);
    const auto settled = [&](const NodeFigures& figures) {
      if (!exchange_on) return figures.steps > 0;
      return pace == Pace::exchange ? figures.exchanges >= warm_up_exchanges
                                    : figures.turns >= warm_up_turns;
    };
    await("the two nodes do not exchange", settled);
    opening_ = stalls();
    opener_->reset_figures();
    answerer_->reset_figures();
  }

  ~TwoNodes() {
    opener_->stop();
    answerer_->stop();
  }
  TwoNodes(const TwoNodes&) = delete;
  TwoNodes& operator=(const TwoNodes&) = delete;

  ExchangeNode& opener() { return *opener_; }
  ExchangeNode& answerer() { return *answerer_; }
  [[nodiscard]] const StallSummary& opening() const { return opening_; }

  // Of both.
  StallSummary stalls() {
    StallSummary summary;
    for (ExchangeNode* node : {opener_.get(), answerer_.get()}) {
      const NodeFigures figures = node->figures();
      for (std::size_t i = 0; i < figures.stalls.size(); ++i) {
        const Stall& stall = figures.stalls[i];
        // From the end of one event to the next the thread also sleeps: only its own time counts.
        if (stall.wall_seconds > summary.longest.wall_seconds) {
          summary.longest.wall_seconds = stall.wall_seconds;
          summary.wall_at = to_string(static_cast<Event>(i));
        }
        if (stall.cpu_seconds > summary.longest.cpu_seconds) {
          summary.longest.cpu_seconds = stall.cpu_seconds;
          summary.cpu_at = to_string(static_cast<Event>(i));
        }
      }
    }
    return summary;
  }

  template <typename Condition>
  void await(const char* what, Condition condition) {
    const auto limit = Clock::now() + limit_;
    while (!condition(opener_->figures())) {
      if (Clock::now() > limit)
        fail(std::string(what) + "; more memory or a smaller --floats may help");
      std::this_thread::sleep_for(poll_interval);
    }
  }

 private:
  const std::chrono::duration<double> limit_;  // of waiting for one thing
  std::unique_ptr<ExchangeNode> opener_, answerer_;
  StallSummary opening_;
};

void take_longer(StallSummary& all, const StallSummary& one) {
  if (one.longest.wall_seconds > all.longest.wall_seconds) {
    all.longest.wall_seconds = one.longest.wall_seconds;
    all.wall_at = one.wall_at;
  }
  if (one.longest.cpu_seconds > all.longest.cpu_seconds) {
    all.longest.cpu_seconds = one.longest.cpu_seconds;
    all.cpu_at = one.cpu_at;
  }
}

void measure_exchanges(const Options& options, SizeFigures& figures) {
  return_free_memory();  // or the nodes take what the memcpy and smaller models have left behind
  const double held_before = held_bytes();
  TwoNodes nodes(options, figures.floats, Pace::exchange, true);
  nodes.await("exchanges do not end",
              [&](const NodeFigures& opener) { return opener.exchanges >= options.exchanges; });
  const NodeFigures opener = nodes.opener().figures(), answerer = nodes.answerer().figures();
  figures.exchange_seconds = median(opener.exchange_seconds);
  figures.exchange_longest_seconds = *std::ranges::max_element(opener.exchange_seconds);
  const auto count = static_cast<double>(opener.exchanges);
  for (const NodeFigures& node : {opener, answerer})
    figures.cpu_seconds += (node.protocol_cpu_seconds + node.worker_cpu_seconds) / count;
  figures.bytes_per_exchange = static_cast<double>(opener.bytes_sent + answerer.bytes_sent) / count;
  figures.models_held = (held_bytes() - held_before) / 2 / static_cast<double>(4 * figures.floats);
  figures.opening = nodes.opening();
  figures.running = nodes.stalls();
}

struct Paced {
  double steps_per_second = 0;  // of both nodes
  double exchanges_per_second = 0;
};

Paced train_for_a_while(const Options& options, SizeFigures& figures, bool exchange_on) {
  TwoNodes nodes(options, figures.floats, Pace::free, exchange_on);
  const auto begin = Clock::now();
  std::this_thread::sleep_for(std::chrono::duration<double>(options.seconds));
  const NodeFigures opener = nodes.opener().figures(), answerer = nodes.answerer().figures();
  const double passed = std::chrono::duration<double>(Clock::now() - begin).count();
  if (exchange_on) {
    take_longer(figures.opening, nodes.opening());
    take_longer(figures.running, nodes.stalls());
  }
  return {static_cast<double>(opener.steps + answerer.steps) / passed,
          static_cast<double>(opener.turns) / 2 / passed};
}

void measure_pairs(const Options& options, SizeFigures& figures) {
  std::vector<double> off_rates, exchange_rates;
  for (int i = 0; i < options.pairs; ++i) {
    // Which comes first alternates, so that a drift of the machine favours neither.
    Paced on, off;
    for (const bool exchange_on : {i % 2 == 0, i % 2 != 0})
      (exchange_on ? on : off) = train_for_a_while(options, figures, exchange_on);
    figures.ratios.push_back(on.steps_per_second / off.steps_per_second);
    off_rates.push_back(off.steps_per_second / 2);
    exchange_rates.push_back(on.exchanges_per_second);
  }
  std::ranges::sort(figures.ratios);
  figures.steps_off = median(off_rates);
  figures.exchanges_per_second = median(exchange_rates);
}

SizeFigures measure(const Options& options, std::size_t floats) {
  SizeFigures figures;
  figures.floats = floats;
  figures.empty_loop_seconds = longest_jump_of_empty_loop(options.seconds);
  const double before = median_memcpy_seconds(floats);
  measure_exchanges(options, figures);
  figures.memcpy_seconds = (before + median_memcpy_seconds(floats)) / 2;
  measure_pairs(options, figures);
  return figures;
}

json stall_json(const StallSummary& stalls) {
  return {{"wall_ms", 1e3 * stalls.longest.wall_seconds},
          {"wall_event", stalls.wall_at},
          {"cpu_ms", 1e3 * stalls.longest.cpu_seconds},
          {"cpu_event", stalls.cpu_at}};
}

json json_of(const SizeFigures& f) {
  json out = {{"floats", f.floats},
              {"memcpy_ms", 1e3 * f.memcpy_seconds},
              {"exchange_ms", 1e3 * f.exchange_seconds},
              {"exchange_longest_ms", 1e3 * f.exchange_longest_seconds},
              {"exchange_memcpys", f.exchange_seconds / f.memcpy_seconds},
              {"cpu_ms", 1e3 * f.cpu_seconds},
              {"cpu_memcpys", f.cpu_seconds / f.memcpy_seconds},
              {"bytes", f.bytes_per_exchange},
              {"models_held", f.models_held},
              {"empty_loop_ms", 1e3 * f.empty_loop_seconds},
              {"stall_opening", stall_json(f.opening)},
              {"stall", stall_json(f.running)}};
  if (!f.ratios.empty()) {
    out["throughput_ratio"] = median(f.ratios);
    out["throughput_ratios"] = f.ratios;
    out["steps_per_second_off"] = f.steps_off;
    out["exchanges_per_second"] = f.exchanges_per_second;
  }
  return out;
}

void print_table(const Options& options, const std::vector<SizeFigures>& all) {
  std::printf(
      "two nodes in one process, loopback, %s, replicas in %s, %u processors, %zu threads; an "
      "exchange is the "
      "median of %llu, "
      "CPU is that of both\nprotocol threads; MODELS: memory of a node in models, swap included; "
      "on/off: "
      "median of %d pairs of %.1f s, steps of %.0f "
      "ms, %s; stalls: processor time (wall); empty: the same of an empty loop\n\n",
      options.plain ? "plain" : "TLS", options.replicas.c_str(),
      std::thread::hardware_concurrency(), options.threads,
      static_cast<unsigned long long>(options.exchanges), options.pairs, options.seconds,
      options.step_ms, options.busy ? "busy" : "asleep");
  std::printf("%11s %10s %12s %10s %8s %10s %7s %7s %15s  %s\n", "FLOATS", "MEMCPY MS",
              "EXCHANGE MS", "OF MEMCPY", "CPU MS", "OF MEMCPY", "MODELS", "ON/OFF", "RANGE",
              "LONGEST STALL MS");
  for (const SizeFigures& f : all) {
    char range[32] = "-", ratio[16] = "-";
    if (!f.ratios.empty()) {
      std::snprintf(range, sizeof range, "%.3f-%.3f", f.ratios.front(), f.ratios.back());
      std::snprintf(ratio, sizeof ratio, "%.3f", median(f.ratios));
    }
    std::printf(
        "%11zu %10.3f %12.2f %10.1f %8.2f %10.1f %7.2f %7s %15s  %.2f %s (%.2f %s), empty %.2f\n",
        f.floats, 1e3 * f.memcpy_seconds, 1e3 * f.exchange_seconds,
        f.exchange_seconds / f.memcpy_seconds, 1e3 * f.cpu_seconds,
        f.cpu_seconds / f.memcpy_seconds, f.models_held, ratio, range,
        1e3 * f.running.longest.cpu_seconds, f.running.cpu_at.c_str(),
        1e3 * f.running.longest.wall_seconds, f.running.wall_at.c_str(),
        1e3 * f.empty_loop_seconds);
  }
}

void run(const Options& options) {
  keep_freed_memory();  // as the daemon
  if (const auto wrong = use_model_files(options.memory_dir))
    fail(options.memory_dir + ": " + *wrong + "; name a directory on a disk with room");
  std::vector<SizeFigures> all;
  for (const std::size_t floats : options.floats) all.push_back(measure(options, floats));
  if (!options.json) return print_table(options, all);
  json report = {
      {"benchmark", "exchange"},        {"processors", std::thread::hardware_concurrency()},
      {"tls", !options.plain},          {"threads", options.threads},
      {"codec", options.codec},         {"replicas", options.replicas},
      {"exchanges", options.exchanges}, {"pairs", options.pairs},
      {"seconds", options.seconds},     {"step_ms", options.step_ms},
      {"step_is_busy", options.busy},   {"sizes", json::array()}};
  for (const SizeFigures& figures : all) report["sizes"].push_back(json_of(figures));
  std::printf("%s\n", report.dump().c_str());
}

}  // namespace

void add_exchange_command(CLI::App& app) {
  const auto options = std::make_shared<Options>();  // kept alive by the callback
  CLI::App* command = app.add_subcommand(
      "exchange",
      "an exchange between two nodes against memcpy of the model, and what it costs "
      "their training");
  command->add_flag("--json", options->json, "print one JSON object instead of a table");
  command
      ->add_option("--floats", options->floats,
                   "parameters of the models, one measurement for each")
      ->check(CLI::Range(floats_min, floats_max))
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--exchanges", options->exchanges, "exchanges whose median is taken")
      ->check(CLI::Range(1, 100'000))
      ->capture_default_str();
  command->add_option("--pairs", options->pairs, "runs with and without exchange; 0: none")
      ->check(CLI::Range(0, 1000))
      ->capture_default_str();
  command->add_option("--seconds", options->seconds, "length of each of these runs")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  command->add_option("--step-ms", options->step_ms, "length of a training step in these runs")
      ->check(CLI::Range(0.0, step_ms_max))
      ->capture_default_str();
  command
      ->add_option("--threads", options->threads,
                   "threads of each node that compute an exchange (exchange.threads)")
      ->check(CLI::Range(std::size_t{1}, worker_threads_max))
      ->capture_default_str();
  command->add_flag("--busy", options->busy,
                    "a step computes all the time, as on a CPU; else it sleeps, as beside a GPU");
  command->add_flag("--plain", options->plain, "no TLS");
  command->add_option("--replicas", options->replicas, "format of replicas (exchange.replicas)")
      ->check(CLI::IsMember({"auto", "fp32", "bf16"}))
      ->capture_default_str();
  command->add_option("--codec", options->codec, "encoding of changes (exchange.codec)")
      ->check([](const std::string& name) {
        return parse_codec(name) ? std::string() : name + " is no codec";
      });
  command->add_option("--memory-dir", options->memory_dir,
                      "hold the exchange's models in files there (exchange.memory_dir)");
  command->callback([options] { run(*options); });
}

}  // namespace gossipd::bench
