#include "tools/lab/world.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "core/base/result.h"

namespace gossipd::lab {

namespace {

constexpr std::uint64_t chunk_bytes = 64 * 1024;
constexpr double retransmission_s = 0.2;  // TCP's least time-out on Linux

double exponential(Random& random) { return -std::log(1.0 - random.uniform()); }

double normal(Random& random) {
  return std::sqrt(2.0 * exponential(random)) * std::cos(2.0 * std::numbers::pi * random.uniform());
}

}  // namespace

World::World(std::vector<MachineSpec> machines, WireSpec wire, std::uint64_t seed, int threads,
             std::function<void()> prepare_thread)
    : machines_(std::move(machines)),
      lines_(machines_.size()),
      wire_(wire),
      random_(seed ^ 0x776f726c64ull),
      pool_(threads, std::move(prepare_thread)) {}

void World::at(Instant when, Action action) {
  events_.push(Event{std::max(when, now_), ++order_, std::move(action)});
}

bool World::advance() {
  if (events_.empty()) return false;
  const Action run = std::move(events_.top().run);
  now_ = events_.top().at;
  events_.pop();
  run();
  return true;
}

std::size_t World::add_machine(const MachineSpec& machine) {
  machines_.push_back(machine);
  lines_.emplace_back();
  return machines_.size() - 1;
}

void World::set_wire(std::size_t a, std::size_t b, const WireSpec& wire) {
  wires_[{a, b}] = wires_[{b, a}] = wire;
}

const WireSpec& World::wire(std::size_t a, std::size_t b) const {
  const auto found = wires_.find({a, b});
  return found == wires_.end() ? wire_ : found->second;
}

void World::cut(std::size_t a, std::size_t b, bool cut) {
  for (const auto& pair : {std::pair(a, b), std::pair(b, a)}) {
    if (cut) {
      (void)cuts_[pair];
      continue;
    }
    const auto found = cuts_.find(pair);
    if (found == cuts_.end()) continue;
    std::vector<Action> waiting = std::move(found->second);
    cuts_.erase(found);
    const Instant again = now_ + from_seconds(wire(a, b).latency_s + retransmission_s);
    for (Action& arrived : waiting)
      at(again, [this, pair, action = std::move(arrived)]() mutable {
        arrive(pair.first, pair.second, std::move(action));
      });
    // later messages queue behind it
    for (const Lane lane : {Lane::control, Lane::bulk}) {
      Instant& last = last_arrival_[{pair.first, pair.second, lane}];
      last = std::max(last, again);
    }
  }
}

bool World::is_cut(std::size_t a, std::size_t b) const { return cuts_.contains({a, b}); }

void World::arrive(std::size_t from, std::size_t to, Action arrived) {
  const auto cut = cuts_.find({from, to});
  if (cut == cuts_.end()) return arrived();
  cut->second.push_back(std::move(arrived));
}

void World::send(std::size_t from, std::size_t to, std::uint64_t bytes, Lane lane, Action arrived,
                 Action sent) {
  GOSSIPD_ASSERT(from < machines_.size() && to < machines_.size() && from != to);
  total_.bytes += bytes;
  ++total_.messages;
  const WireSpec& spec = wire(from, to);
  const double out_bps = machines_[from].uplink_bps, in_bps = machines_[to].downlink_bps;
  const double bits = 8.0 * static_cast<double>(bytes);
  const Duration out_time = from_seconds(bits / out_bps), in_time = from_seconds(bits / in_bps);
  // Control waits for at most the current chunk; bulk waits for everything requested before.
  Instant out_from = std::max(now_, lines_[from].out);
  if (lane == Lane::control)
    out_from = std::min(out_from, now_ + from_seconds(8.0 * chunk_bytes / out_bps));
  Instant out = out_from + out_time;
  lines_[from].out = std::max(lines_[from].out, now_) + out_time;
  // What waits for its own pair holds up nothing else on the two machines' lines.
  const Instant line_from = out_from;
  if (spec.bandwidth_bps > 0) {
    Instant& free = pairs_[{from, to}];
    const Duration pair_time = from_seconds(bits / spec.bandwidth_bps);
    out_from = std::max(line_from, free);
    if (lane == Lane::control)
      out_from =
          std::min(out_from, line_from + from_seconds(8.0 * chunk_bytes / spec.bandwidth_bps));
    free = std::max(free, line_from) + pair_time;
    out = std::max(out, out_from + pair_time);
  }
  double delay = spec.latency_s;
  if (spec.jitter_s > 0) delay += spec.jitter_s * exponential(random_);
  if (spec.loss > 0) {
    const std::uint64_t packets = (bytes + packet_bytes - 1) / packet_bytes;
    const double any = 1.0 - std::pow(1.0 - spec.loss, static_cast<double>(packets));
    for (double hit = any; random_.uniform() < hit; hit = spec.loss)
      delay += 2.0 * spec.latency_s + (packets < 4 ? retransmission_s : 0.0);
  }
  // The receiver takes in data while the sender still sends; its own line may be busier.
  const Instant first = out_from + from_seconds(delay);
  Instant in_from = std::max(first, lines_[to].in);
  if (lane == Lane::control)
    in_from = std::min(in_from, first + from_seconds(8.0 * chunk_bytes / in_bps));
  lines_[to].in = std::max(lines_[to].in, line_from + from_seconds(delay)) + in_time;
  Instant& last = last_arrival_[{from, to, lane}];
  last = std::max({last, in_from + in_time, out + from_seconds(delay)});
  if (sent) at(out, std::move(sent));
  at(last, [this, from, to, action = std::move(arrived)]() mutable {
    arrive(from, to, std::move(action));
  });
}

double World::mean_step_seconds(std::size_t machine, std::uint32_t batch) const {
  const MachineSpec& spec = machines_[machine];
  return (spec.step_base_s + spec.step_per_sample_s * batch) / spec.speed;
}

Duration World::step_time(std::size_t machine, std::uint32_t batch) {
  const MachineSpec& spec = machines_[machine];
  double factor = 1.0;
  switch (spec.jitter) {
    case MachineSpec::Jitter::none: break;
    case MachineSpec::Jitter::lognormal:
      factor = std::exp(spec.jitter_scale * normal(random_) -
                        0.5 * spec.jitter_scale * spec.jitter_scale);
      break;
    case MachineSpec::Jitter::pareto:
      factor = (spec.jitter_scale - 1.0) / spec.jitter_scale *
               std::pow(1.0 - random_.uniform(), -1.0 / spec.jitter_scale);
      break;
  }
  return std::max(from_seconds(mean_step_seconds(machine, batch) * factor), Duration(1));
}

void World::compute(std::size_t machine, std::uint32_t batch, std::function<double()> work,
                    std::function<void(double)> done) {
  auto result = std::make_shared<std::future<double>>(pool_.submit(std::move(work)));
  const std::uint64_t step = steps_begun_++;
  const Instant end = now_ + step_time(machine, batch);
  steps_.emplace(step,
                 Step{machine, end, [result, done = std::move(done)] { done(result->get()); }});
  at(end, [this, step] { end_step(step); });
}

// Its speed may have changed meanwhile: then an event at another time ends it.
void World::end_step(std::uint64_t step) {
  const auto found = steps_.find(step);
  if (found == steps_.end() || found->second.end > now_) return;
  const Action done = std::move(found->second.done);
  steps_.erase(found);
  done();
}

void World::set_speed(std::size_t machine, double speed) {
  const double factor = std::exchange(machines_[machine].speed, speed) / speed;
  for (auto& [id, step] : steps_) {
    if (step.machine != machine) continue;
    step.end = now_ + from_seconds(seconds(step.end - now_) * factor);
    at(step.end, [this, step = id] { end_step(step); });
  }
}

}  // namespace gossipd::lab
