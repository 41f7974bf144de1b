#include "tests/sim/gossip_sim/chaos.h"

#include <algorithm>
#include <cmath>

namespace gossipd::sim {
namespace {

using namespace std::chrono_literals;

constexpr double gone_for_ever = 0.25;  // of those that are dead when calm begins
constexpr Duration backup_period = 60s;
constexpr Duration end_look_period = 250ms;
constexpr double end_fault_rate = 0.15;  // of the looks at a node that finishes
constexpr std::size_t ends_disturbed_max = 12;
constexpr double next_job_rate = 0.03;  // of the looks at a job that has ended
constexpr std::size_t jobs_started_max = 8;

}  // namespace

Chaos::Chaos(VirtualCluster& cluster, Checkers& checkers, Hostile& hostile,
             const Scenario& scenario)
    : cluster_(cluster),
      checkers_(checkers),
      hostile_(hostile),
      scenario_(scenario),
      random_(scenario.seed ^ 0xc4a05) {}

void Chaos::begin() {
  for (std::size_t i = 0; i < scenario_.nodes.size(); ++i)
    if (i < nodes() - scenario_.late || is_foreign(i)) cluster_.power_on(i);
  next();
  if (scenario_.budget > 0) watch_the_end();
  // Checkpoints every 15 s, as a trainer writes them, and now and then a backup.
  const std::function<void()> save = [this] {
    for (std::size_t i = 0; i < cluster_.size(); ++i)
      if (is_running(i)) cluster_.write_checkpoint(i);
    if (const auto node = pick_running(); node && cluster_.disk(*node).cluster != ClusterId{} &&
                                          (!backups_.contains(*node) || chance(0.2)))
      backups_[*node] = cluster_.whole_disk(*node);
  };
  for (Duration at = 15s; at < scenario_.chaos; at += 15s)
    cluster_.events().at(cluster_.now() + at, save);
}

// Spreads the faults over the chaos; those without a target move the rest closer together.
void Chaos::next() {
  const Duration mean = scenario_.chaos / static_cast<int>(scenario_.faults + 2);
  cluster_.events().at(
      cluster_.now() + from_seconds(seconds(mean) * (0.2 + 1.2 * random_.uniform())), [this] {
        if (calm_) return;
        double sum = 0;
        for (const double rate : scenario_.rates) sum += rate;
        double draw = random_.uniform() * sum;
        std::size_t chosen = 0;
        while (chosen + 1 < fault_classes && draw >= scenario_.rates[chosen])
          draw -= scenario_.rates[chosen++];
        // Every scenario can at least reset, kill or freeze.
        if (!inject(static_cast<Fault>(chosen)) && !inject(Fault::reset) && !inject(Fault::kill))
          (void)inject(Fault::freeze);
        next();
      });
}

// The final exchange takes seconds in minutes of chaos, so faults are aimed at it.
void Chaos::watch_the_end() {
  cluster_.events().at(cluster_.now() + end_look_period, [this] {
    if (calm_) return;
    if (ends_disturbed_ < ends_disturbed_max && chance(end_fault_rate) && inject(Fault::at_the_end))
      ++ends_disturbed_;
    if (jobs_started_ < jobs_started_max && chance(next_job_rate)) (void)inject(Fault::next_job);
    watch_the_end();
  });
}

bool Chaos::inject(Fault fault) {
  static constexpr Action actions[] = {&Chaos::reset,
                                       &Chaos::half_open,
                                       &Chaos::one_way_cut,
                                       &Chaos::partition,
                                       &Chaos::delay,
                                       &Chaos::clog,
                                       &Chaos::duplicate_session,
                                       &Chaos::kill,
                                       &Chaos::kill_at_effect,
                                       &Chaos::power_loss,
                                       &Chaos::lost_write,
                                       &Chaos::stop,
                                       &Chaos::freeze,
                                       &Chaos::clock_jump,
                                       &Chaos::old_disk,
                                       &Chaos::empty_disk,
                                       &Chaos::foreign_disk,
                                       &Chaos::disk_error,
                                       &Chaos::slow_disk,
                                       &Chaos::stuck_disk,
                                       &Chaos::lost_checkpoint,
                                       &Chaos::late_join,
                                       &Chaos::operator_race,
                                       &Chaos::wrong_cluster,
                                       &Chaos::not_a_number,
                                       &Chaos::explosion,
                                       &Chaos::hostile_bytes,
                                       &Chaos::hostile_member,
                                       &Chaos::connection_flood,
                                       &Chaos::at_the_end,
                                       &Chaos::endless_turn,
                                       &Chaos::cloned_disk,
                                       &Chaos::reflected_dial,
                                       &Chaos::lying_member,
                                       &Chaos::poisoned_step,
                                       &Chaos::lie,
                                       &Chaos::next_job};
  static_assert(std::size(actions) == fault_classes);
  // Separate, since within one call GCC 12's bounds check reads the index before it is set.
  const Action action = actions[static_cast<std::size_t>(fault)];
  if (!(this->*action)()) return false;
  checkers_.note(std::string("fault ") + to_string(fault));
  ++counts_[static_cast<std::size_t>(fault)];
  ++fired_;
  return true;
}

// ---- what the faults share ----------------------------------------------------------------------

std::optional<std::size_t> Chaos::pick(const std::function<bool(std::size_t)>& fits) {
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < nodes(); ++i)
    if (fits(i)) found.push_back(i);
  if (found.empty()) return std::nullopt;
  return found[random_.below(found.size())];
}

std::optional<std::size_t> Chaos::pick_running() {
  return pick([this](std::size_t i) { return is_running(i); });
}

std::optional<VirtualNetwork::Pair> Chaos::pick_session() {
  const auto sessions = cluster_.network().sessions();
  if (sessions.empty()) return std::nullopt;
  return sessions[random_.below(sessions.size())];
}

bool Chaos::has_model(std::size_t node) const {
  if (!cluster_.alive(node)) return false;
  const Phase phase = cluster_.node(node).phase();
  return cluster_.disk(node).cluster == own_cluster &&
         (phase == Phase::training || phase == Phase::finished || phase == Phase::finishing ||
          phase == Phase::paused);
}

bool Chaos::others_have_model(std::size_t node) const {
  for (std::size_t i = 0; i < nodes(); ++i)
    if (i != node && has_model(i) && !cluster_.whole_disk(i).checkpoint.parameters.empty())
      return true;
  return false;
}

// Log-uniform from 1 s, to cover every scale.
Duration Chaos::length(Duration longest) {
  return from_seconds(std::exp(random_.uniform() * std::log(std::max(1.0, seconds(longest)))));
}

void Chaos::hold(std::size_t from, std::size_t to, Duration length) {
  cluster_.network().way(from, to).held = true;
  cluster_.events().at(cluster_.now() + length,
                       [this, from, to] { cluster_.network().release(from, to); });
}

void Chaos::start_later(std::size_t node) {
  cluster_.events().at(cluster_.now() + length(60s), [this, node] {
    if (calm_) return;
    if (!cluster_.alive(node))
      start(node);
    else if (cluster_.is_to_die(node))
      start_later(node);
  });
}

// gossipd does not start where it cannot write its state.
void Chaos::start(std::size_t node) {
  if (cluster_.disk_fails(node)) return start_later(node);
  cluster_.start_from_disk(node);
}

// A node without a cluster, or that has not written its cluster yet, takes the first that answers.
bool Chaos::all_have_cluster() const {
  for (std::size_t i = 0; i < nodes() - scenario_.late + came_; ++i)
    if (cluster_.disk(i).cluster == ClusterId{}) return false;
  return true;
}

void Chaos::spoil_disk(std::size_t node) { checkers_.disk_spoiled(node); }

// A new state directory: another id and a seed. Its operator has no file of a later job.
void Chaos::wipe(std::size_t node) {
  Disk& disk = cluster_.whole_disk(node);
  disk = Disk{};
  disk.state.id = NodeId{0x100000 + ++wiped_};
  if (jobs_started_ > 0) cluster_.options(node).knows_job = false;
  std::vector<std::size_t>& seeds = cluster_.options(node).seeds;
  seeds.clear();
  for (std::size_t i = 0; i < nodes(); ++i)
    if (i != node && !misplaced_.contains(i) && (has_model(i) || chance(0.3))) seeds.push_back(i);
  for (std::size_t i = 0; i < nodes() && seeds.empty(); ++i)
    if (i != node && cluster_.disk(i).cluster == own_cluster) seeds.push_back(i);
  misplaced_.erase(node);
}

bool Chaos::replace_disk(const std::function<bool(std::size_t)>& fits,
                         const std::function<void(std::size_t)>& with) {
  const auto node = pick([&](std::size_t i) {
    return fits(i) && !cluster_.frozen(i) && !cluster_.disk_fails(i) && others_have_model(i);
  });
  if (!node) return false;
  if (cluster_.alive(*node)) cluster_.kill(*node);
  with(*node);
  start(*node);
  return true;
}

// Of the nodes that could introduce it to the others.
bool Chaos::knows_nobody_alive(std::size_t node) const {
  const NodeView view = cluster_.view(node);
  for (std::size_t i = 0; i < nodes(); ++i) {
    if (i == node || !cluster_.alive(i) || cluster_.node(i).phase() == Phase::left) continue;
    const auto& seeds = cluster_.options(node).seeds;
    if (std::find(seeds.begin(), seeds.end(), i) != seeds.end()) return false;
    for (const MemberView& member : view.members)
      if (member.record.id == cluster_.id(i)) return false;
  }
  return true;
}

// ---- calm ---------------------------------------------------------------------------------------

// Wires are whole and disks work. Dead nodes return or stay dead; nodes on another cluster's disk
// get an empty one, paused nodes resume, and nodes that wait for seeds that never answer get one
// that does.
void Chaos::calm() {
  GOSSIPD_ASSERT(calm_);
  checkers_.note("calm");
  cluster_.network().heal();
  cluster_.reflect_nothing();
  hostile_.end();
  for (std::size_t i = 0; i < cluster_.size(); ++i) {
    if (cluster_.is_stranger(i)) continue;
    cluster_.fail_disk(i, false);
    cluster_.slow_disk(i, Duration{});
    cluster_.stick_disk(i, false);
    cluster_.forgive_death(i);
  }
  for (std::size_t i = 0; i < nodes(); ++i) {
    // A joiner with the file of a job before is refused for ever.
    const bool has_old_job = jobs_started_ > 0 && cluster_.disk(i).cluster == ClusterId{};
    if (misplaced_.contains(i) || has_old_job) {
      if (cluster_.alive(i)) cluster_.kill(i);
      wipe(i);
      start(i);
    } else if (!cluster_.alive(i)) {
      const bool stays_dead = chance(gone_for_ever) && others_have_model(i);
      if (stays_dead)
        gone_.insert(i);
      else
        start(i);
    }
  }
  for (std::size_t i = 0; i < nodes(); ++i) {
    if (!cluster_.alive(i)) continue;
    const Phase phase = cluster_.node(i).phase();
    // Also one that will be paused once it has found the others; one that has left keeps its pause.
    const auto resume = [&] {
      cluster_.act(i, [](Node& node, Instant local) { (void)node.resume(local); });
    };
    resume();
    if (!knows_nobody_alive(i) && (phase != Phase::left || (others_have_model(i) && chance(0.5))))
      continue;
    auto seed = pick([&](std::size_t other) { return other != i && has_model(other); });
    if (!seed) seed = pick([&](std::size_t other) { return other != i && cluster_.alive(other); });
    if (!seed) continue;
    checkers_.joined_by_operator(i);
    cluster_.act(i, [&](Node& node, Instant local) {
      (void)node.join({VirtualCluster::endpoint(*seed)}, local);
    });
    resume();
  }
}

}  // namespace gossipd::sim
