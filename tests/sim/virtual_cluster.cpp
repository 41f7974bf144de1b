#include "tests/sim/virtual_cluster.h"

#include <algorithm>
#include <cmath>

#include "core/model/job_hash.h"

namespace gossipd::sim {

// ---- hosts: their processes, disks and clocks ---------------------------------------------------

std::size_t VirtualCluster::add(NodeOptions options) {
  const std::size_t i = add_off(std::move(options));
  power_on(i);
  return i;
}

std::size_t VirtualCluster::add_off(NodeOptions options) {
  const std::size_t i = nodes_.size();
  nodes_.push_back(std::make_unique<Host>());
  Host& host = *nodes_.back();
  host.options = std::move(options);
  host.loop = StepLoop(host.options.batch, host.options.steps_outside);
  host.disk.state.id = NodeId{0x1000 + i};
  if (host.options.seeds.empty()) host.disk.state.cluster = ClusterId{0xc1u + i};
  host.parameters =
      host.options.start.empty() ? std::vector<float>(schema_.floats(), 0.5f) : host.options.start;
  return i;
}

void VirtualCluster::power_on(std::size_t i) {
  const bool has_model = !nodes_[i]->options.start.empty();
  nodes_[i]->job = job_hash_of(nodes_[i]->disk.job_document);
  if (has_model) write_checkpoint(i);
  start(i, has_model);
}

std::size_t VirtualCluster::add_stranger(Stranger& stranger) {
  nodes_.push_back(std::make_unique<Host>());
  nodes_.back()->stranger = &stranger;
  return nodes_.size() - 1;
}

void VirtualCluster::start(std::size_t i, bool has_model) {
  Host& host = *nodes_[i];
  NodeConfig config;
  config.name = "node" + std::to_string(i);
  config.advertise = endpoint(i);
  for (const std::size_t seed : host.options.seeds) config.seeds.push_back(endpoint(seed));
  config.random_seed = 77 + i;
  config.exchange = host.options.exchange;
  config.membership = host.options.membership;
  config.balance = host.options.balance;
  if (watcher_ != nullptr) watcher_->started(i, host.disk.state);
  Disk disk = host.disk;
  if (hooks_.boot) hooks_.boot(i, disk);
  disk.state.down_for = disk.written == Instant{} ? Duration{} : now() - disk.written;
  host.node = std::make_unique<Node>(std::move(config), disk.state, local(i));
  carry_out(i);
  const bool knows_job = host.options.knows_job || disk.state.job != JobHash{};
  host.job = knows_job ? job_hash_of(host.disk.job_document) : JobHash{};
  if (host.node && knows_job) {
    host.node->on_job(host.disk.job_document, host.job, host.options.budget, local(i));
    host.node->on_model_ready(schema_, buffers(host), has_model, host.loop.samples(),
                              host.loop.step(), local(i));
  }
  if (!host.node) return;
  host.node->on_time(local(i));
  carry_out(i);
  arm_timer(i);
}

RoundBuffers VirtualCluster::buffers(const Host& host) const {
  RoundBuffers buffers = make_round_buffers(schema_.floats());
  const std::vector<float>& kept = host.disk.checkpoint.parameters;
  if (host.loop.step() == 0 && (kept.empty() || kept == host.options.initial))
    buffers.initial = host.options.initial;
  return buffers;
}

void VirtualCluster::kill(std::size_t i, Death death) {
  Host& host = *nodes_[i];
  ++host.life;
  // A pending write may or may not have reached the disk.
  if (host.writing && !host.disk_stuck && host.writes % 2 == 0) put_on_disk(i, *host.writing);
  host.writing.reset();
  host.waiting.reset();
  host.node.reset();
  const StepLoop::Counters counters = host.loop.counters();
  host.loop = StepLoop(host.options.batch, host.options.steps_outside);
  host.loop.restore(counters);
  host.sessions.clear();
  host.stepping = false;
  host.timer_armed = false;
  host.dies_at_effect.reset();
  host.goes_on = false;
  host.frozen_until = now();
  network_.host_down(i, death == Death::power_lost);
}

void VirtualCluster::kill_at_effect(std::size_t i, std::uint64_t effects, Death death) {
  nodes_[i]->dies_at_effect = effects;
  nodes_[i]->death = death;
}

std::optional<Error> VirtualCluster::start_job(std::size_t i, const std::string& document) {
  std::optional<Error> error;
  act(i, [&](Node& node, Instant local) {
    error = node.start_job(document, job_hash_of(document), local);
  });
  return error;
}

void VirtualCluster::stop(std::size_t i) {
  act(i, [](Node& node, Instant local) { node.stop(local); });
  if (nodes_[i]->node) kill(i);
}

void VirtualCluster::restart(std::size_t i, bool keep_model) {
  if (nodes_[i]->node) kill(i);
  start(i, keep_model);
}

void VirtualCluster::start_from_disk(std::size_t i) {
  Host& host = *nodes_[i];
  if (host.node) kill(i);
  const Checkpoint& checkpoint = host.disk.checkpoint;
  const bool restored = !checkpoint.parameters.empty() &&
                        (host.disk.state.job == JobHash{} || checkpoint.job == host.disk.state.job);
  host.parameters = restored ? checkpoint.parameters : std::vector<float>(schema_.floats(), 0.5f);
  host.loop.restore(restored ? checkpoint.counters : StepLoop::Counters{});
  const bool nobody_to_ask = host.disk.state.members.empty() && host.options.seeds.empty();
  const bool begins = nobody_to_ask
                          ? host.disk.state.own_samples == 0
                          : host.disk.state.generation > 1 && nobody_has_trained(host.disk.state);
  const bool begins_anew = !restored && begins;
  start(i, restored || begins_anew);
  if (begins_anew && host.node) write_checkpoint(i);  // as the daemon does at once
}

void VirtualCluster::freeze(std::size_t i, Duration length) {
  nodes_[i]->frozen_until = now() + length;
}

std::optional<double> VirtualCluster::final_distance(std::span<const std::size_t> nodes) const {
  const auto squares = [this](const auto& at) {
    double sum = 0;
    for (const Block& block : schema_.blocks())
      for (std::size_t p = block.offset; p < block.offset + block.size; ++p) sum += at(p) * at(p);
    return sum;
  };
  double most = 0, norm = 0;
  for (const std::size_t i : nodes) {
    const std::vector<float>& a = nodes_[i]->disk.final_model;
    if (a.empty()) return std::nullopt;
    norm = std::max(norm, squares([&](std::size_t p) { return static_cast<double>(a[p]); }));
    for (const std::size_t j : nodes) {
      const std::vector<float>& b = nodes_[j]->disk.final_model;
      if (b.empty()) return std::nullopt;
      if (j < i)
        most = std::max(most, squares([&](std::size_t p) {
                          return static_cast<double>(a[p]) - static_cast<double>(b[p]);
                        }));
    }
  }
  return norm > 0 ? std::sqrt(most / norm) : 0;
}

double VirtualCluster::final_distance_to_own(std::size_t i) const {
  const Host& host = *nodes_[i];
  if (host.disk.final_model.size() != host.parameters.size()) return 1;
  double apart = 0, norm = 0;
  for (std::size_t p = 0; p < host.parameters.size(); ++p) {
    const double own = host.parameters[p];
    apart += (own - host.disk.final_model[p]) * (own - host.disk.final_model[p]);
    norm += own * own;
  }
  return norm > 0 ? std::sqrt(apart / norm) : 0;
}

void VirtualCluster::act(std::size_t i, const std::function<void(Node&, Instant local)>& action) {
  run_event(i, [&](Host& host) { action(*host.node, local(i)); });
}

// ---- events -------------------------------------------------------------------------------------

void VirtualCluster::for_host(std::size_t i, Instant when, std::function<void(Host&)> run) {
  const std::uint64_t life = nodes_[i]->life;
  events_.at(when, [this, i, life, run = std::move(run)]() mutable {
    Host& host = *nodes_[i];
    if (host.life != life || !host.node) return;
    if (now() < host.frozen_until) return for_host(i, host.frozen_until, std::move(run));
    run_event(i, run);
  });
}

void VirtualCluster::run_event(std::size_t i, const std::function<void(Host&)>& run) {
  run(*nodes_[i]);
  carry_out(i);
  if (!nodes_[i]->node) return;
  nodes_[i]->node->check_invariants();
  if (watcher_ != nullptr) watcher_->after_event(i);
}

void VirtualCluster::arm_timer(std::size_t i) {
  Host& host = *nodes_[i];
  if (host.timer_armed) return;
  host.timer_armed = true;
  const Instant due =
      host.node->next_deadline() - host.options.clock_offset + host.options.timer_slack;
  for_host(i, std::max(now() + std::chrono::microseconds(1), due), [this, i](Host& h) {
    h.timer_armed = false;
    h.node->on_time(local(i));
    arm_timer(i);
  });
}

bool VirtualCluster::run_until(const std::function<bool()>& condition, Duration limit) {
  const Instant end = now() + limit;
  while (events_.step(end))
    if (condition()) return true;
  events_.skip_to(end);
  return condition();
}

// ---- sessions -----------------------------------------------------------------------------------

void VirtualCluster::session_opened(std::size_t i, SessionId id, bool outbound,
                                    const Endpoint& remote) {
  if (nodes_[i]->stranger != nullptr) return nodes_[i]->stranger->opened(id);
  for_host(i, now(), [this, i, id, outbound, remote](Host& h) {
    if (!network_.is_open(i, id))
      return outbound ? h.node->on_dial_failed(remote, "connection reset by peer", local(i))
                      : static_cast<void>(0);
    h.sessions.insert(id);
    h.node->on_session_open(id, outbound, remote, local(i));
  });
}

void VirtualCluster::session_closed(std::size_t i, SessionId id, const std::string& reason) {
  if (nodes_[i]->stranger != nullptr) return nodes_[i]->stranger->closed(id);
  for_host(i, now(), [this, i, id, reason](Host& h) {
    h.sessions.erase(id);
    h.node->on_session_closed(id, reason, local(i));
  });
}

void VirtualCluster::dial_failed(std::size_t i, const Endpoint& where, const std::string& reason) {
  if (nodes_[i]->stranger != nullptr) return nodes_[i]->stranger->dial_failed();
  for_host(i, now(),
           [this, i, where, reason](Host& h) { h.node->on_dial_failed(where, reason, local(i)); });
}

void VirtualCluster::part_arrived(std::size_t i, SessionId id) {
  if (nodes_[i]->node) run_event(i, [&](Host& h) { h.node->on_bytes(id, local(i)); });
}

void VirtualCluster::message_arrived(std::size_t from, std::size_t to, SessionId id, Lane lane,
                                     const Bytes& message) {
  if (nodes_[to]->stranger != nullptr) return nodes_[to]->stranger->heard(id, lane, message);
  run_event(to, [&](Host& h) {
    if (watcher_ != nullptr) watcher_->before_message(from, to, lane, message);
    h.node->on_message(id, lane, message, local(to));
    if (watcher_ != nullptr) watcher_->after_message(from, to, lane, message);
  });
  if (lane == Lane::bulk && nodes_[from]->stranger == nullptr)
    events_.at(now() + std::chrono::nanoseconds(1), [this, from, to, id] { check(to, from, id); });
}

void VirtualCluster::bulk_sent(std::size_t i, SessionId id, std::size_t bytes) {
  if (nodes_[i]->stranger != nullptr || (hooks_.acknowledge && !hooks_.acknowledge(i))) return;
  for_host(i, now(), [this, i, id, bytes](Host& h) { h.node->on_bulk_sent(id, bytes, local(i)); });
}

// Both ends of a silent link with nothing in transit hold the same bits.
void VirtualCluster::check(std::size_t a, std::size_t b, SessionId at_a) {
  if (replicas_unchecked_ || !network_.is_quiet(a, at_a) || frozen(a) || frozen(b)) return;
  if (nodes_[a]->node->has_work() || nodes_[b]->node->has_work()) return;
  const auto conversed = [this](std::size_t at, NodeId peer) {
    const std::vector<LinkView> links = nodes_[at]->node->links(local(at));
    return std::any_of(links.begin(), links.end(), [&](const LinkView& l) {
      return l.peer == peer && l.state == "open" && l.counters.turns_heard > 0 &&
             l.counters.turns_spoken > 0;
    });
  };
  if (!conversed(a, id(b)) || !conversed(b, id(a))) return;
  ++replica_checks_;
  for (const auto& [from, to] : {std::pair(a, b), std::pair(b, a)}) {
    const auto published = nodes_[from]->node->published_to(id(to)),
               received = nodes_[to]->node->received_from(id(from));
    GOSSIPD_SIM_REQUIRE(published.size() == received.size(), "replicas",
                        "two ends of a link have unlike replicas");
    for (std::size_t block = 0; block < published.size(); ++block)
      GOSSIPD_SIM_REQUIRE(
          published[block] == received[block] || published[block] == 0 || received[block] == 0,
          "replicas",
          "what node" + std::to_string(from) + " has published is not what node" +
              std::to_string(to) + " has received");
  }
}

std::vector<double> VirtualCluster::mean() const {
  std::vector<double> mean(schema_.floats(), 0.0);
  double count = 0;
  for (const auto& host : nodes_) {
    if (!host->node) continue;
    ++count;
    for (std::size_t p = 0; p < mean.size(); ++p)
      mean[p] += static_cast<double>(host->parameters[p]);
  }
  for (double& m : mean) m /= count;
  return mean;
}

double VirtualCluster::consensus_distance() const {
  const std::vector<double> centre = mean();
  double most = 0;
  for (const auto& host : nodes_) {
    if (!host->node) continue;
    double sum = 0;
    for (std::size_t p = 0; p < centre.size(); ++p)
      sum += std::pow(static_cast<double>(host->parameters[p]) - centre[p], 2);
    most = std::max(most, std::sqrt(sum / static_cast<double>(centre.size())));
  }
  return most;
}

}  // namespace gossipd::sim
