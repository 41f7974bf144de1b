// One function for each class of fault, in the order of Fault.
#include <cmath>
#include <cstring>
#include <limits>

#include "core/wire/turn.h"
#include "tests/sim/gossip_sim/chaos.h"

namespace gossipd::sim {

using namespace std::chrono_literals;

// ---- the network --------------------------------------------------------------------------------

bool Chaos::reset() {
  const auto session = pick_session();
  if (session) cluster_.network().reset(*session, true, true);
  return session.has_value();
}

bool Chaos::half_open() {
  const auto session = pick_session();
  if (!session) return false;
  const bool first = chance(0.5);
  cluster_.network().reset(*session, first, !first && chance(0.7));
  return true;
}

bool Chaos::one_way_cut() {
  const auto session = pick_session();
  if (!session) return false;
  const bool first = chance(0.5);
  hold(session->hosts[first ? 0 : 1], session->hosts[first ? 1 : 0], length(60s));
  return true;
}

bool Chaos::partition() {
  const std::size_t hosts = nodes();
  std::vector<bool> side(hosts);
  for (std::size_t i = 0; i < hosts; ++i) side[i] = chance(0.5);
  side[0] = !side[hosts - 1];
  const Duration lasts = length(120s);
  for (std::size_t a = 0; a < hosts; ++a)
    for (std::size_t b = 0; b < hosts; ++b)
      if (side[a] != side[b]) hold(a, b, lasts);
  return true;
}

bool Chaos::delay() {
  const auto session = pick_session();
  if (!session) return false;
  for (const int end : {0, 1}) {
    auto& way = cluster_.network().way(session->hosts[end], session->hosts[1 - end]);
    way.latency = from_seconds(0.001 + 2 * random_.uniform() * random_.uniform());
    way.jitter = way.latency;
  }
  return true;
}

// So narrow that bulk accumulates and control overtakes it.
bool Chaos::clog() {
  const auto session = pick_session();
  if (!session) return false;
  const std::size_t from = session->hosts[0], to = session->hosts[1];
  cluster_.network().way(from, to).bytes_per_s = 50 + 2000 * random_.uniform();
  cluster_.events().at(cluster_.now() + length(60s),
                       [this, from, to] { cluster_.network().way(from, to).bytes_per_s = 0; });
  return true;
}

bool Chaos::duplicate_session() {
  const auto session = pick_session();
  if (!session || cluster_.is_stranger(session->hosts[0]) ||
      cluster_.is_stranger(session->hosts[1]))
    return false;
  for (const int end : {0, 1})
    if (chance(0.7))
      cluster_.network().dial(session->hosts[end], session->hosts[1 - end],
                              VirtualCluster::endpoint(session->hosts[1 - end]));
  cluster_.network().dial(session->hosts[1], session->hosts[0],
                          VirtualCluster::endpoint(session->hosts[0]));
  return true;
}

void Chaos::die_and_start_later(std::size_t node) {
  cluster_.events().at(cluster_.now() + length(20s), [this, node] {
    if (calm_ || !cluster_.alive(node)) return;
    cluster_.kill(node,
                  chance(0.5) ? VirtualCluster::Death::killed : VirtualCluster::Death::power_lost);
    start_later(node);
  });
}

// ---- processes ----------------------------------------------------------------------------------

bool Chaos::kill() {
  const auto node = pick([this](std::size_t i) { return cluster_.alive(i); });
  if (!node) return false;
  cluster_.kill(*node);
  start_later(*node);
  return true;
}

bool Chaos::kill_at_effect() {
  const auto node = pick_running();
  if (!node) return false;
  cluster_.kill_at_effect(
      *node, 1 + random_.below(40),
      chance(0.5) ? VirtualCluster::Death::killed : VirtualCluster::Death::power_lost);
  start_later(*node);
  return true;
}

bool Chaos::power_loss() {
  const auto node = pick([this](std::size_t i) { return cluster_.alive(i); });
  if (!node) return false;
  cluster_.kill(*node, VirtualCluster::Death::power_lost);
  start_later(*node);
  return true;
}

bool Chaos::lost_write() {
  const auto node = pick_running();
  if (!node) return false;
  cluster_.kill_at_effect(*node, 0, VirtualCluster::Death::power_lost);
  start_later(*node);
  return true;
}

bool Chaos::stop() {
  const auto node = pick_running();
  if (!node) return false;
  cluster_.write_checkpoint(*node);
  cluster_.stop(*node);
  start_later(*node);
  return true;
}

bool Chaos::freeze() {
  const auto node = pick_running();
  if (node) cluster_.freeze(*node, length(scenario_.freeze_max));
  return node.has_value();
}

bool Chaos::clock_jump() {
  const auto node = pick_running();
  if (node) cluster_.jump_clock(*node, length(3600s));
  return node.has_value();
}

// ---- disks --------------------------------------------------------------------------------------

bool Chaos::old_disk() {
  return replace_disk(
      [this](std::size_t i) {
        return backups_.contains(i) && backups_[i].state.id == cluster_.id(i);
      },
      [this](std::size_t i) {
        cluster_.whole_disk(i) = backups_[i];
        spoil_disk(i);
      });
}

bool Chaos::empty_disk() {
  return replace_disk([this](std::size_t) { return misplaced_.empty(); },
                      [this](std::size_t i) { wipe(i); });
}

bool Chaos::foreign_disk() {
  return replace_disk([this](std::size_t) { return all_have_cluster(); },
                      [this](std::size_t i) {
                        wipe(i);
                        cluster_.whole_disk(i).state.cluster = ClusterId{0xf000 + i};
                        cluster_.whole_disk(i).state.incarnation = random_.below(5);
                        checkers_.is_foreign(cluster_.id(i));
                        misplaced_.insert(i);
                      });
}

bool Chaos::disk_error() {
  const auto node = pick_running();
  if (!node) return false;
  cluster_.fail_disk(*node, true);
  cluster_.events().at(cluster_.now() + length(60s),
                       [this, node = *node] { cluster_.fail_disk(node, false); });
  return true;
}

// A write takes seconds. Some processes die meanwhile and find the earlier state or the one being
// written.
bool Chaos::slow_disk() {
  const auto node = pick_running();
  if (!node) return false;
  cluster_.slow_disk(*node, from_seconds(0.2 + 15 * random_.uniform()));
  cluster_.events().at(cluster_.now() + length(120s),
                       [this, node = *node] { cluster_.slow_disk(node, Duration{}); });
  if (chance(0.4)) die_and_start_later(*node);
  return true;
}

bool Chaos::stuck_disk() {
  const auto node = pick_running();
  if (!node) return false;
  cluster_.stick_disk(*node, true);
  cluster_.events().at(cluster_.now() + length(120s),
                       [this, node = *node] { cluster_.stick_disk(node, false); });
  if (chance(0.4)) die_and_start_later(*node);
  return true;
}

bool Chaos::lost_checkpoint() {
  return replace_disk(
      [this](std::size_t i) { return !cluster_.whole_disk(i).checkpoint.parameters.empty(); },
      [this](std::size_t i) { cluster_.whole_disk(i).checkpoint = {}; });
}

// ---- people -------------------------------------------------------------------------------------

bool Chaos::late_join() {
  if (came_ == scenario_.late || !misplaced_.empty()) return false;
  const std::size_t node = nodes() - scenario_.late + came_++;
  if (cluster_.alive(node)) return false;
  if (jobs_started_ > 0) cluster_.options(node).knows_job = false;
  cluster_.power_on(node);
  return true;
}

void Chaos::operate(std::size_t i) {
  const std::uint64_t what = random_.below(5);
  const std::size_t seed = random_.below(nodes());
  if (what >= 3) checkers_.joined_by_operator(i);
  cluster_.act(i, [&](Node& node, Instant local) {
    if (what == 0)
      (void)node.leave(local);
    else if (what == 1)
      (void)node.pause(local);
    else if (what == 2)
      (void)node.resume(local);
    else
      (void)node.join({VirtualCluster::endpoint(seed)}, local);
  });
}

// Several commands on several nodes, some at the same moment.
bool Chaos::operator_race() {
  if (!pick_running()) return false;
  for (std::uint64_t i = 0; i < 2 + random_.below(4); ++i)
    cluster_.events().at(
        cluster_.now() + 1ms * static_cast<int>(random_.below(2) * random_.below(3000)), [this] {
          if (calm_) return;
          if (const auto node = pick_running()) operate(*node);
        });
  return true;
}

bool Chaos::wrong_cluster() {
  const std::size_t foreign = nodes();
  if (!scenario_.foreign || !cluster_.alive(foreign)) return false;
  const auto node = pick(
      [this](std::size_t i) { return is_running(i) && cluster_.disk(i).cluster != ClusterId{}; });
  if (!node) return false;
  if (cluster_.node(*node).phase() == Phase::left) return false;
  cluster_.act(*node, [&](Node& n, Instant local) {
    (void)n.join({VirtualCluster::endpoint(foreign)}, local);
  });
  return true;
}

// ---- models -------------------------------------------------------------------------------------

bool Chaos::not_a_number() {
  const auto node = pick([this](std::size_t i) { return is_running(i) && has_model(i); });
  if (!node) return false;
  const auto model = cluster_.model(*node);
  model[random_.below(model.size())] = chance(0.5) ? std::numeric_limits<float>::quiet_NaN()
                                                   : std::numeric_limits<float>::infinity();
  checkers_.stepped(*node);
  return true;
}

bool Chaos::explosion() {
  const auto node = pick([this](std::size_t i) { return is_running(i) && has_model(i); });
  if (!node) return false;
  const float factor = std::pow(10.0f, static_cast<float>(1 + random_.below(6)));
  for (float& x : cluster_.model(*node)) x *= factor;
  checkers_.stepped(*node);
  return true;
}

// One parameter of a model, as far as 1e30 away; some keep doing so, about once a step.
bool Chaos::poisoned_step() {
  const auto node = pick([this](std::size_t i) { return is_running(i) && has_model(i); });
  if (!node) return false;
  throw_away(*node, std::pow(10.0f, static_cast<float>(3 + random_.below(28))),
             chance(0.3) ? static_cast<int>(random_.below(40)) : 0);
  return true;
}

void Chaos::throw_away(std::size_t node, float by, int again) {
  if (!is_running(node) || !has_model(node)) return;
  const auto model = cluster_.model(node);
  model[random_.below(model.size())] += chance(0.5) ? by : -by;
  checkers_.stepped(node);
  if (again == 0) return;
  cluster_.events().at(cluster_.now() + cluster_.options(node).step_time, [this, node, by, again] {
    if (!calm_) throw_away(node, by, again - 1);
  });
}

// For a while a member fills the headers of its turns with extreme values.
bool Chaos::lie() {
  const auto node = pick([this](std::size_t i) { return is_running(i) && has_model(i); });
  if (node) lies_until_[*node] = cluster_.now() + length(60s);
  return node.has_value();
}

void Chaos::distort(std::size_t from, Lane lane, Bytes& message) {
  const auto found = lies_until_.find(from);
  if (calm_ || found == lies_until_.end() || cluster_.now() > found->second) return;
  if (lane != Lane::bulk || bulk_kind(message) != BulkKind::turn ||
      message.size() < turn_header_bytes)
    return;
  // Except gains: they move both ends' replicas, and a difference between the ends is a fault of
  // the wire.
  constexpr std::size_t weight = 16, in_flight = 20, step = 24, step_seconds = 32, age = 36,
                        loss = 40;
  constexpr float values[] = {
      0, 1e-30f, 1, 32, 1e6f, 1e9f, 3e38f, -1, std::numeric_limits<float>::quiet_NaN()};
  for (const std::size_t field : {weight, step_seconds, age, loss})
    if (chance(0.3))
      std::memcpy(message.data() + field, &values[random_.below(std::size(values))], sizeof(float));
  if (chance(0.3)) std::memset(message.data() + in_flight, chance(0.5) ? 0xff : 0, 4);
  if (chance(0.3)) std::memset(message.data() + step, chance(0.5) ? 0xff : 0, 8);
}

// ---- strangers ----------------------------------------------------------------------------------

bool Chaos::hostile_bytes() {
  const auto node = pick([this](std::size_t i) {
    return cluster_.alive(i) && cluster_.disk(i).cluster != ClusterId{};
  });
  if (node) hostile_.strike(Hostile::Kind::bytes, *node);
  return node.has_value();
}

bool Chaos::hostile_member() {
  const auto node = pick([this](std::size_t i) {
    return cluster_.alive(i) && cluster_.disk(i).cluster == own_cluster;
  });
  if (node) hostile_.strike(Hostile::Kind::member, *node);
  return node.has_value();
}

bool Chaos::endless_turn() {
  const auto node = pick([this](std::size_t i) {
    return is_running(i) && has_model(i) && cluster_.disk(i).cluster == own_cluster;
  });
  if (node) hostile_.strike(Hostile::Kind::endless, *node);
  return node.has_value();
}

bool Chaos::connection_flood() {
  const auto node = pick([this](std::size_t i) { return cluster_.alive(i); });
  if (node) hostile_.strike(Hostile::Kind::flood, *node);
  return node.has_value();
}

// ---- the end of the job -------------------------------------------------------------------------

// While a node finishes, it or another dies or freezes.
bool Chaos::at_the_end() {
  const auto finishes = [this](std::size_t i) {
    return is_running(i) && cluster_.node(i).phase() == Phase::finishing;
  };
  if (!pick(finishes)) return false;
  const auto node = chance(0.5) ? pick(finishes) : pick_running();
  const double what = random_.uniform();
  if (what < 0.3) {
    cluster_.freeze(*node, length(60s));
    return true;
  }
  if (what < 0.5)
    cluster_.kill_at_effect(
        *node, 1 + random_.below(40),
        chance(0.5) ? VirtualCluster::Death::killed : VirtualCluster::Death::power_lost);
  else
    cluster_.kill(*node,
                  what < 0.75 ? VirtualCluster::Death::killed : VirtualCluster::Death::power_lost);
  start_later(*node);
  return true;
}

// The cluster's next job starts on a member that has finished; at times on two at once, or the
// member dies on the way.
bool Chaos::next_job() {
  const auto fits = [this](std::size_t i) { return has_finished(i); };
  const auto node = pick(fits);
  if (!node || !start_job(*node)) return false;
  if (chance(0.3))
    if (const auto another = pick(fits)) (void)start_job(*another);
  if (chance(0.3)) {
    cluster_.kill_at_effect(
        *node, 1 + random_.below(40),
        chance(0.5) ? VirtualCluster::Death::killed : VirtualCluster::Death::power_lost);
    start_later(*node);
  }
  return true;
}

bool Chaos::start_job(std::size_t node) {
  const bool started = !cluster_.start_job(node, "job " + std::to_string(jobs_started_ + 2));
  jobs_started_ += started ? 1 : 0;
  return started;
}

bool Chaos::lying_member() {
  const auto node = pick([this](std::size_t i) {
    return cluster_.alive(i) && cluster_.disk(i).cluster == own_cluster;
  });
  if (node) hostile_.strike(Hostile::Kind::liar, *node);
  return node.has_value();
}

// ---- identities ---------------------------------------------------------------------------------

// A machine starts from the image of another's disk while that one goes on running.
bool Chaos::cloned_disk() {
  if (!misplaced_.empty()) return false;
  const auto original = pick([this](std::size_t i) {
    return is_running(i) && has_model(i) && !cluster_.disk_fails(i) &&
           !cluster_.whole_disk(i).checkpoint.parameters.empty();
  });
  if (!original) return false;
  return replace_disk(
      [&](std::size_t i) { return i != *original && cluster_.disk(i).incarnation > 0; },
      [&](std::size_t i) {
        cluster_.whole_disk(i) = cluster_.whole_disk(*original);
        backups_.erase(i);
        checkers_.disk_cloned(i);
      });
}

// Dials from one node to another return to it, for a while or until calm.
bool Chaos::reflected_dial() {
  const auto from = pick_running();
  const auto to = pick([&](std::size_t i) { return from && i != *from; });
  if (!from || !to) return false;
  cluster_.reflect(*from, *to, true);
  for (const VirtualNetwork::Pair& pair : cluster_.network().sessions_of(*from))
    if (chance(0.5)) cluster_.network().reset(pair, true, true);
  if (chance(0.7))
    cluster_.events().at(cluster_.now() + length(120s),
                         [this, from = *from, to = *to] { cluster_.reflect(from, to, false); });
  return true;
}

}  // namespace gossipd::sim
