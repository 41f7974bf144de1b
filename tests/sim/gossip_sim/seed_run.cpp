#include "tests/sim/gossip_sim/seed_run.h"

#include <cmath>
#include <deque>
#include <map>

#include "core/model/job_hash.h"
#include "tests/sim/gossip_sim/chaos.h"

namespace gossipd::sim {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t events_max = 5'000'000;  // a seed that needs more does not end
// Gradients halve the rest of an explosion within 7 of the slowest steps: 20 times that from 1e6,
// 100 times from the 1e30 of a poisoned step that preceded the guard's past; plus a quarantine on
// the way.
constexpr Duration recovery_bound = 20 * 7 * 7s + 640s,
                   poisoned_recovery_bound = 100 * 7 * 7s + 640s;
// for steps without gradients; an exchange needs a change in every block
constexpr float noise = 0.006f;
constexpr Duration look_period = 1s;  // in which agreement is looked for
constexpr int recovered_looks = 30;
// The steps of an extension all shrink the model, each by about as much as the noise moves it:
// together by several times what a `final` may be away from its model.
constexpr float shrink = 0.003f;
constexpr Step steps_of_extension = 12;

class SeedRun {
 public:
  SeedRun(std::uint64_t seed, const Mutant* mutant, bool trace)
      : scenario_(draw_scenario(seed)),
        cluster_(scenario_.schema,
                 [this](std::size_t node, std::span<float> x, Step) { train(node, x); }),
        checkers_(cluster_, scenario_, trace),
        hostile_(cluster_, seed, scenario_.schema),
        chaos_(cluster_, checkers_, hostile_, scenario_) {
    cluster_.network().set_random(seed);
    cluster_.set_latency(std::chrono::microseconds(100 + seed % 7 * 5000));
    cluster_.watch(checkers_);
    Hooks hooks = mutant != nullptr ? mutant->hooks(cluster_, scenario_) : Hooks{};
    hooks.wire = [this, planted = std::move(hooks.wire)](std::size_t from, std::size_t to,
                                                         Lane lane, Bytes& message) {
      chaos_.distort(from, lane, message);
      return !planted || planted(from, to, lane, message);
    };
    cluster_.set_hooks(std::move(hooks));
    for (const NodeOptions& options : scenario_.nodes) cluster_.add_off(options);
    if (scenario_.foreign) checkers_.is_foreign(cluster_.id(scenario_.nodes.size() - 1));
    checkers_.listen_for(hostile_);
    hostile_.set_host(cluster_.add_stranger(hostile_));
  }

  SeedResult run() {
    SeedResult result;
    result.seed = scenario_.seed;
    result.nodes = chaos_.nodes();
    try {
      live(result);
    } catch (const Violation& violation) {
      const auto& notes = checkers_.last_notes();
      result.failure =
          SeedFailure{violation.checker, violation.what(), {notes.begin(), notes.end()}};
    }
    result.virtual_seconds = seconds(cluster_.now() - begin_);
    result.events = cluster_.events().count();
    result.messages = cluster_.messages();
    result.replica_checks = cluster_.replica_checks();
    result.faults = chaos_.counts();
    return result;
  }

 private:
  void live(SeedResult& result) {
    chaos_.begin();
    while (cluster_.now() < begin_ + scenario_.chaos ||
           (!chaos_.over() && cluster_.now() < begin_ + 6 * scenario_.chaos))
      pass(look_period);
    GOSSIPD_SIM_REQUIRE(
        chaos_.fired() >= faults_min, "simulator",
        "only " + std::to_string(chaos_.fired()) + " faults found something to act on");
    chaos_.end();
    while (anybody_is_busy()) pass(look_period);
    chaos_.calm();
    const Instant calm = cluster_.now();
    const Duration bound = membership_bound(scenario_, checkers_.ids_ever());
    until(bound, "living", [this] { return who_disagrees(); });
    result.settling_seconds = seconds(cluster_.now() - calm);
    one_leaves(bound);
    models_agree();
    finals_agree();
    job_goes_on();
    next_job_starts(bound);
    counters_agree(bound);
    while (cluster_.now() < begin_ + virtual_time_min) pass(look_period);
    const std::string late = who_disagrees();
    GOSSIPD_SIM_REQUIRE(late.empty(), "living", "agreed once, and then no more: " + late);
  }

  // ---- the trainer ----
  void train(std::size_t node, std::span<float> x) {
    checkers_.trained(node, cluster_.options(node).batch);
    for (std::size_t p = 0; p < x.size(); ++p)
      x[p] += pulls_     ? scenario_.pull * (scenario_.targets[node][p] - x[p])
              : shrinks_ ? -shrink * x[p]
                         : noise * static_cast<float>(noise_.uniform() - 0.5);
    checkers_.stepped(node);
  }

  void pass(Duration length) {
    const Instant end = cluster_.now() + length;
    while (cluster_.step(end))
      GOSSIPD_SIM_REQUIRE(cluster_.events().count() < events_max, awaited_,
                          "the events do not come to an end");
    cluster_.events().skip_to(end);
  }

  // `what` names what is still missing; empty when done.
  void until(Duration bound, const char* checker, const std::function<std::string()>& what) {
    const Instant end = cluster_.now() + bound;
    awaited_ = checker;
    for (std::string missing = what(); !missing.empty(); missing = what()) {
      GOSSIPD_SIM_REQUIRE(cluster_.now() < end, checker,
                          missing + ", " + std::to_string(static_cast<int>(seconds(bound))) +
                              " s after the last fault");
      pass(look_period);
    }
    awaited_ = "core";
  }

  // Frozen or leaving. A leaving node cannot be told to join again yet, and it may have the only
  // model.
  [[nodiscard]] bool anybody_is_busy() {
    for (std::size_t i = 0; i < chaos_.nodes(); ++i)
      if (cluster_.alive(i) && (cluster_.frozen(i) || cluster_.node(i).phase() == Phase::leaving))
        return true;
    return false;
  }

  // ---- agreement ----
  [[nodiscard]] bool is_member(std::size_t i) const {
    return i < chaos_.nodes() && cluster_.alive(i) && !chaos_.gone(i);
  }
  [[nodiscard]] std::vector<std::size_t> living() {
    std::vector<std::size_t> nodes;
    for (std::size_t i = 0; i < chaos_.nodes(); ++i)
      if (is_member(i) && cluster_.node(i).phase() != Phase::left &&
          cluster_.node(i).phase() != Phase::leaving)
        nodes.push_back(i);
    return nodes;
  }

  [[nodiscard]] std::string who_disagrees() {
    const std::vector<std::size_t> nodes = living();
    std::set<NodeId> ids;
    for (const std::size_t i : nodes)
      if (cluster_.job(i) != cluster_.job(nodes.front()))
        return "node" + std::to_string(i) + " has job " + to_hex(cluster_.job(i)) + ", node" +
               std::to_string(nodes.front()) + " " + to_hex(cluster_.job(nodes.front()));
    for (const std::size_t i : nodes)
      if (!ids.insert(cluster_.id(i)).second)
        return "node" + std::to_string(i) + " and another live under one id, " +
               to_hex(cluster_.id(i));
    for (const std::size_t i : nodes) {
      const NodeView view = cluster_.view(i);
      const std::string who = "node" + std::to_string(i);
      const bool works = view.phase == Phase::training || view.phase == Phase::finishing ||
                         view.phase == Phase::finished || view.phase == Phase::paused;
      if (!works) return who + " is " + to_string(view.phase);
      std::set<NodeId> missing = ids;
      for (const MemberView& member : view.members) {
        const MemberState state = member.record.state;
        const bool lives = ids.contains(member.record.id);
        if ((state == MemberState::alive) != lives)
          return who + " holds " + to_hex(member.record.id) +
                 (lives ? ", which lives, for " : ", which does not live, for ") + to_string(state);
        missing.erase(member.record.id);
      }
      if (!missing.empty()) return who + " does not know " + to_hex(*missing.begin());
      const bool open = std::any_of(view.links.begin(), view.links.end(),
                                    [](const LinkView& link) { return link.state == "open"; });
      if (nodes.size() > 1 && !open) return who + " has no open link";
    }
    return "";
  }

  // A node that leaves in peace is known to have left, not to have failed.
  void one_leaves(Duration bound) {
    const std::vector<std::size_t> nodes = living();
    if (nodes.size() < 3) return;
    const std::size_t leaver = nodes[scenario_.seed % nodes.size()];
    checkers_.note("node" + std::to_string(leaver) + " leaves in peace");
    // Asked again: a node that goes on to another job refuses, and it starts again then.
    const auto ask = [&] {
      cluster_.act(leaver, [](Node& node, Instant local) { (void)node.leave(local); });
    };
    until(bound, "living", [&]() -> std::string {
      if (cluster_.alive(leaver)) ask();
      if (!cluster_.alive(leaver) || cluster_.node(leaver).phase() != Phase::left)
        return "node" + std::to_string(leaver) + " does not come to leave";
      for (const std::size_t i : living())
        for (const MemberView& member : cluster_.view(i).members)
          if (member.record.id == cluster_.id(leaver) && member.record.state != MemberState::left)
            return "node" + std::to_string(i) + " holds node" + std::to_string(leaver) +
                   ", which has left, for " + to_string(member.record.state);
      return who_disagrees();
    });
  }

  // Without gradients except for some noise, at the end of the schedule, only the exchange brings
  // the models together.
  void models_agree() {
    // An exploded model that is admitted again after refusals moves models that had recovered.
    const bool poisoned = scenario_.rates[static_cast<std::size_t>(Fault::poisoned_step)] > 0;
    until(poisoned ? poisoned_recovery_bound : recovery_bound, "model",
          [this, looks = 0]() mutable -> std::string {
            for (const std::size_t i : living())
              for (const float x : cluster_.model(i))
                if (!(std::fabs(x) < 10)) {
                  looks = 0;
                  return "node" + std::to_string(i) + " does not come back from an explosion";
                }
            return ++looks > recovered_looks ? "" : "no model has been sane for long";
          });
    pulls_ = false;
    cluster_.learning_rate(calm_rate, rate_peak);
    until(agreement_bound(scenario_), "model", [this]() -> std::string {
      const double consensus_distance = relative_distance();
      return consensus_distance <= consensus_after_calm
                 ? ""
                 : "a model is " + std::to_string(consensus_distance) +
                       " of its norm away from the mean" + links();
    });
  }

  // The job ends, if it has not yet, and all final models are one.
  void finals_agree() {
    if (scenario_.budget == 0) return;
    for (const std::size_t i : living())
      cluster_.act(
          i, [](Node& node, Instant local) { node.end_early("the scenario is over", local); });
    until(final_bound(scenario_), "final", [this]() -> std::string {
      const std::vector<std::size_t> nodes = living();
      for (const std::size_t i : nodes)
        if (const NodeView view = cluster_.view(i);
            view.phase != Phase::finished || !view.waiting_for.empty())
          return "node" + std::to_string(i) + " is " + to_string(view.phase) + ", waiting for " +
                 view.waiting_for + links();
      for (const std::size_t i : nodes)
        if (cluster_.final_distance_to_own(i) > final_distance_max(0))
          return "the final model of node" + std::to_string(i) + " is not its model";
      const auto distance = cluster_.final_distance(nodes);
      if (!distance) return "a node that has finished has written no final model";
      return *distance <= final_distance_max(hops_max())
                 ? ""
                 : "two final models are " + std::to_string(*distance) + " of their norm apart" +
                       links();
    });
  }

  // An operator extends the job that has ended; it ends again, in one model that is another.
  void job_goes_on() {
    if (scenario_.budget == 0) return;
    const std::vector<std::size_t> nodes = living();
    const std::size_t chosen = nodes[scenario_.seed % nodes.size()];
    checkers_.note("the job is extended at node" + std::to_string(chosen));
    std::vector<Step> steps;
    for (const std::size_t i : nodes) steps.push_back(cluster_.view(i).step);
    std::optional<Error> refused;
    cluster_.act(chosen, [&](Node& node, Instant local) {
      refused = node.extend_budget(scenario_.budget, local);
    });
    if (refused) {  // a node that believed a liar
      const auto& faults = chaos_.counts();
      GOSSIPD_SIM_REQUIRE(faults[static_cast<std::size_t>(Fault::lying_member)] +
                                  faults[static_cast<std::size_t>(Fault::lie)] >
                              0,
                          "final", refused->text);
      return;
    }
    shrinks_ = true;
    until(final_bound(scenario_), "final", [&]() -> std::string {
      for (std::size_t k = 0; k < nodes.size(); ++k)
        if (cluster_.view(nodes[k]).step >= steps[k] + steps_of_extension) return "";
      if (lies_end_job(nodes)) return "";
      return "no node has trained on since the job was extended" + links();
    });
    shrinks_ = false;
    finals_agree();
  }

  // An operator starts the next job: all that live go on to it, and end it in one model.
  void next_job_starts(Duration bound) {
    if (scenario_.budget == 0) return;
    const std::vector<std::size_t> nodes = living();
    const std::size_t chosen = nodes[scenario_.seed / 2 % nodes.size()];
    checkers_.note("the next job starts at node" + std::to_string(chosen));
    const std::string document = "the last job";
    const auto refused = cluster_.start_job(chosen, document);
    GOSSIPD_SIM_REQUIRE(!refused, "next-job", refused->text);
    until(bound, "next-job", [&]() -> std::string {
      for (const std::size_t i : nodes)
        if (!cluster_.alive(i) || cluster_.job(i) != job_hash_of(document))
          return "node" + std::to_string(i) + " has not gone on to the next job";
      return who_disagrees();
    });
    finals_agree();
  }

  // All have finished for samples that a liar with the key claims of its own: they count, at most
  // 16 times as fast as a member trains (THREATS.md).
  [[nodiscard]] bool lies_end_job(const std::vector<std::size_t>& nodes) {
    return std::ranges::all_of(nodes, [&](std::size_t i) {
      const NodeView view = cluster_.view(i);
      Samples trained = 0;
      for (const MemberView& member : view.members)
        trained += Hostile::is_own(member.record.id) ? 0 : member.record.samples;
      return view.phase == Phase::finished && view.cluster_samples >= view.budget_samples &&
             trained < view.budget_samples;
    });
  }

  // Links on the shortest way between the two living nodes that are farthest apart; 1 at least.
  [[nodiscard]] std::size_t hops_max() {
    std::map<NodeId, std::vector<NodeId>> linked;
    for (const std::size_t i : living())
      for (const LinkView& link : cluster_.view(i).links)
        if (link.state == "open") linked[cluster_.id(i)].push_back(link.peer);
    std::size_t most = 1;
    for (const auto& [begin, peers] : linked) {
      std::map<NodeId, std::size_t> hops{{begin, 0}};
      std::deque<NodeId> next{begin};
      for (; !next.empty(); next.pop_front())
        for (const NodeId peer : linked[next.front()])
          if (hops.try_emplace(peer, hops[next.front()] + 1).second) next.push_back(peer);
      for (const auto& [id, count] : hops) most = std::max(most, count);
    }
    return most;
  }

  [[nodiscard]] std::string links() {
    std::string text;
    for (const std::size_t i : living())
      text += "\n  node" + std::to_string(i) + " final is " +
              std::to_string(cluster_.final_distance_to_own(i)) + " from its model, phase " +
              to_string(cluster_.node(i).phase());
    for (const std::size_t i : living())
      for (const LinkView& link : cluster_.view(i).links)
        if (!link.state.starts_with("down"))
          text += "\n  node" + std::to_string(i) + " to " + to_hex(link.peer) + " " + link.state +
                  " consensus_distance=" + std::to_string(link.counters.consensus_distance) +
                  " change=" + std::to_string(link.counters.change) +
                  " threshold=" + std::to_string(link.counters.threshold) +
                  " spoken=" + std::to_string(link.counters.turns_spoken) +
                  " refused=" + std::to_string(link.counters.refused_total());
    return text;
  }

  [[nodiscard]] double relative_distance() {
    const std::vector<std::size_t> nodes = living();
    std::vector<double> mean(scenario_.schema.floats(), 0.0);
    const auto& blocks = scenario_.schema.blocks();
    double norm = 0, most = 0;
    for (const std::size_t i : nodes)
      for (std::size_t p = 0; p < mean.size(); ++p)
        mean[p] += static_cast<double>(cluster_.model(i)[p]) / static_cast<double>(nodes.size());
    for (const Block& block : blocks)
      for (std::size_t p = block.offset; p < block.offset + block.size; ++p)
        norm += mean[p] * mean[p];
    for (const std::size_t i : nodes) {
      double square = 0;
      for (const Block& block : blocks)
        for (std::size_t p = block.offset; p < block.offset + block.size; ++p)
          square += std::pow(static_cast<double>(cluster_.model(i)[p]) - mean[p], 2);
      most = std::max(most, square);
    }
    return std::sqrt(most / std::max(norm, 1e-30));
  }

  // Describes the dead and departed members that two nodes count differently.
  static std::string differences(const NodeView& a, const NodeView& b) {
    std::map<NodeId, Samples> counted;
    std::string text;
    for (const MemberView& member : a.members) counted[member.record.id] = member.record.samples;
    for (const MemberView& member : b.members) {
      const auto found = counted.find(member.record.id);
      const std::string theirs = found == counted.end() ? "nothing" : std::to_string(found->second);
      if (theirs != std::to_string(member.record.samples))
        text += "; " + std::string(to_string(member.record.state)) + " " +
                to_hex(member.record.id) + ": " + std::to_string(member.record.samples) +
                ", others " + theirs;
      if (found != counted.end()) counted.erase(found);
    }
    for (const auto& [id, samples] : counted)
      text += "; " + to_hex(id) + ": nothing, others " + std::to_string(samples);
    return text;
  }

  // Training has stopped, so all nodes converge to the same counts, which are each node's own.
  void counters_agree(Duration bound) {
    for (const std::size_t i : living())
      cluster_.act(i, [](Node& node, Instant local) { (void)node.pause(local); });
    until(bound, "samples", [this]() -> std::string {
      const std::vector<std::size_t> nodes = living();
      std::map<NodeId, Samples> own;
      for (const std::size_t i : nodes) own[cluster_.id(i)] = cluster_.view(i).own_samples;
      std::optional<Samples> total;
      for (const std::size_t i : nodes) {
        const NodeView view = cluster_.view(i);
        for (const MemberView& member : view.members)
          if (const auto found = own.find(member.record.id);
              found != own.end() && found->second != member.record.samples &&
              !checkers_.was_cloned(member.record.id))
            return "node" + std::to_string(i) + " counts " + std::to_string(member.record.samples) +
                   " samples of " + to_hex(member.record.id) + ", which counts " +
                   std::to_string(found->second);
        // only a lie makes a node forget here
        Samples counted = view.cluster_samples - view.forgotten_samples;
        for (const MemberView& member : view.members)
          // A late node believed more; under a cloned id two processes counted, and the one that
          // keeps it does not believe what the other trained on.
          if (Hostile::is_own(member.record.id) || checkers_.was_cloned(member.record.id))
            counted -= member.record.samples;
        if (total && *total != counted)
          return "node" + std::to_string(i) + " counts " + std::to_string(counted) +
                 " in all, others " + std::to_string(*total) +
                 differences(cluster_.view(nodes.front()), view);
        total = counted;
      }
      return "";
    });
  }

  const Scenario scenario_;
  bool pulls_ = true, shrinks_ = false;
  Random noise_{scenario_.seed};
  VirtualCluster cluster_;
  Checkers checkers_;
  Hostile hostile_;
  Chaos chaos_;
  const char* awaited_ = "core";  // the checker that is awaited
  const Instant begin_ = cluster_.now();
};

}  // namespace

SeedResult run_seed(std::uint64_t seed, const Mutant* mutant, bool trace) {
  return SeedRun(seed, mutant, trace).run();
}

}  // namespace gossipd::sim
