#include "core/node/dialer.h"

#include <algorithm>

#include "core/base/backoff.h"

namespace gossipd {
namespace {

constexpr std::uint32_t doublings_max = 10;
constexpr std::uint32_t failures_of_a_refusal = 4;  // at least: the next dial waits that long
constexpr Duration failed_period = std::chrono::seconds(10);
constexpr Duration lost_period = std::chrono::seconds(30);
constexpr Duration failed_look_period = std::chrono::seconds(1);  // while none may be dialled

}  // namespace

Dialer::Dialer(const MembershipPolicy& policy, Endpoint self,
               std::function<bool(const Endpoint&)> leads_here, std::vector<Endpoint> seeds,
               ClusterId founds, bool self_by_operator)
    : policy_(policy),
      self_(std::move(self)),
      leads_here_(std::move(leads_here)),
      founding_(founds, seeds),
      seeds_(std::move(seeds)),
      reach_(self_, self_by_operator) {
  GOSSIPD_ASSERT(seeds_.size() <= seeds_max);
}

// ---- seeds --------------------------------------------------------------------------------------

std::optional<Error> Dialer::append_seeds(std::vector<Endpoint>& all,
                                          const std::vector<Endpoint>& seeds) const {
  for (const Endpoint& seed : seeds) {
    if (seed.host.empty() || seed.port == 0)
      return Error{"not-dialled", to_string(seed) + " is no address that can be dialled"};
    if (seed == self_ || (leads_here_ && leads_here_(seed)))
      return Error{"self", to_string(seed) + " is this node itself"};
    if (std::ranges::find(all, seed) == all.end()) all.push_back(seed);
  }
  if (all.size() > seeds_max)
    return Error{"too-many-seeds", "this node would have " + std::to_string(all.size()) +
                                       " seeds and keeps at most " + std::to_string(seeds_max) +
                                       "; restart it to drop those that `join` has added"};
  return std::nullopt;
}

void Dialer::set_seeds(std::vector<Endpoint> all) {
  seeds_ = std::move(all);
  founding_.set_seeds(seeds_);
}

std::optional<Error> Dialer::add_seeds(const std::vector<Endpoint>& seeds) {
  std::vector<Endpoint> all = seeds_;
  if (auto refused = append_seeds(all, seeds)) return refused;
  set_seeds(std::move(all));
  return std::nullopt;
}

void Dialer::replace_seeds(const std::vector<Endpoint>& seeds) {
  GOSSIPD_ASSERT(seeds.size() <= seeds_max);
  std::vector<Endpoint> all;
  for (const Endpoint& seed : seeds) (void)append_seeds(all, {seed});  // a refused one is left out
  set_seeds(std::move(all));
}

// ---- dials --------------------------------------------------------------------------------------

Dialer::Dial& Dialer::at(const Endpoint& endpoint) {
  if (dials_.size() >= dials_max && !dials_.contains(endpoint))
    dials_.erase(std::ranges::min_element(dials_, {}, [](const auto& item) {
      return std::pair(item.second.in_flight, item.second.next);
    }));
  return dials_[endpoint];
}

bool Dialer::may_dial(const Endpoint& endpoint, Instant now) const {
  if (endpoint.host.empty() || endpoint.port == 0) return false;
  if (!budget_.admits(endpoint, now)) return false;
  const auto found = dials_.find(endpoint);
  return found == dials_.end() ||
         (!found->second.in_flight && now >= found->second.self_until && now >= found->second.next);
}

void Dialer::on_dial(const Endpoint& endpoint, NodeId probed, Random& random, Instant now) {
  budget_.spend(endpoint, now);
  Dial& dial = at(endpoint);
  dial.in_flight = true;
  dial.probed = probed;
  const Duration backoff = std::min(
      policy_.redial_max, policy_.redial_min * (1u << std::min(dial.failures, doublings_max)));
  dial.next = now + spread(backoff, 0.25, random);
}

std::size_t Dialer::under_way() const {
  return static_cast<std::size_t>(std::ranges::count_if(dials_, [](const auto& item) {
    return item.second.in_flight && item.second.probed == NodeId{};
  }));
}

void Dialer::forgive(Instant now) {
  for (auto& [endpoint, dial] : dials_) {
    dial.next = dial.self_until = now;
    dial.failures = 0;
  }
}

// ---- what came of them --------------------------------------------------------------------------

NodeId Dialer::on_connected(const Endpoint& endpoint) {
  Dial& dial = at(endpoint);
  dial.in_flight = false;
  return std::exchange(dial.probed, NodeId{});
}

bool Dialer::on_failed(const Endpoint& endpoint, const std::string& reason) {
  Dial& dial = at(endpoint);
  dial.in_flight = false;
  dial.probed = NodeId{};
  ++dial.failures;
  return std::exchange(dial.last_reason, reason) != reason;
}

void Dialer::on_refused(const Endpoint& endpoint) {
  Dial& dial = at(endpoint);
  dial.failures = std::max(failures_of_a_refusal, dial.failures + 1);
}

bool Dialer::on_reflected(const Endpoint& endpoint, const std::string& reason, Instant now) {
  Dial& dial = at(endpoint);
  dial.self_until = now + self_rest;
  return std::exchange(dial.last_reason, reason) != reason;
}

void Dialer::on_linked(const Endpoint& endpoint) {
  budget_.answered(endpoint);
  Dial& dial = at(endpoint);
  dial.failures = 0;
  dial.last_reason.clear();
}

void Dialer::on_probe_answered(const Endpoint& endpoint) {
  dials_.erase(endpoint);
  budget_.answered(endpoint);
}

// ---- by time ------------------------------------------------------------------------------------

void Dialer::on_failed_looked(bool dialled, Random& random, Instant now) {
  next_failed_ = now + (dialled ? spread(failed_period, 0.5, random) : failed_look_period);
}

bool Dialer::lost_due(Random& random, Instant now) {
  if (now < next_lost_) return false;
  next_lost_ = now + spread(lost_period, 0.5, random);
  return true;
}

bool Dialer::rotation_due(Random& random, Instant now) {
  if (policy_.rotate == Duration{} || now < next_rotation_) return false;
  const bool first = next_rotation_ == Instant{};
  next_rotation_ = now + spread(policy_.rotate, 0.25, random);
  return !first;
}

bool Dialer::room_due(Instant now) {
  if (now < next_room_) return false;
  next_room_ = now + policy_.tick;
  return true;
}

void Dialer::check_invariants() const {
  GOSSIPD_ASSERT(seeds_.size() <= seeds_max && dials_.size() <= dials_max);
  reach_.check_invariants();
}

}  // namespace gossipd
