#include "tests/sim/virtual_cluster.h"

#include <algorithm>
#include <cmath>

namespace gossipd::sim {

std::size_t VirtualCluster::add(NodeOptions options) {
  const std::size_t i = nodes_.size();
  nodes_.push_back(std::make_unique<Host>());
  Host& host = *nodes_.back();
  host.options = std::move(options);
  host.batch = host.options.batch;
  host.disk.id = id(i);
  if (host.options.seeds.empty()) {
    host.disk.cluster = ClusterId{0xc1u + i};
    host.job = JobHash{0x10bu};
  }
  host.parameters = host.options.start.empty() ? std::vector<float>(schema_.floats(), 0.5f) : host.options.start;
  start(i, !host.options.start.empty());
  return i;
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
  host.node = std::make_unique<Node>(std::move(config), host.disk, now_);
  carry_out(i);
  // A schema-only job: the text's hash is checked by the core, so every node is given it directly.
  host.node->on_job("job", JobHash{0x10bu}, host.options.budget, now_);
  host.node->on_model_ready(schema_, has_model, host.samples, host.step, now_);
  host.model_ready = true;
  host.node->on_time(now_);
  carry_out(i);
  arm_timer(i);
}

void VirtualCluster::kill(std::size_t i) {
  Host& host = *nodes_[i];
  ++host.life;
  host.node.reset();
  host.held.reset();
  host.stepping = false;
  host.timer_armed = false;
  std::vector<std::shared_ptr<Session>> mine;
  for (auto& [key, session] : sessions_)
    if (key.first == i) mine.push_back(session);
  for (const auto& session : mine) break_session(session, "connection reset by peer");
}

void VirtualCluster::restart(std::size_t i, bool keep_model) {
  if (nodes_[i]->node) kill(i);
  start(i, keep_model);
}

void VirtualCluster::freeze(std::size_t i, Duration length) { nodes_[i]->frozen_until = now_ + length; }

void VirtualCluster::block(std::size_t a, std::size_t b, bool blocked) {
  for (const auto& pair : {std::pair(a, b), std::pair(b, a)}) blocked ? (void)blocked_.insert(pair) : (void)blocked_.erase(pair);
}

void VirtualCluster::for_host(std::size_t i, Instant when, std::function<void(Host&)> run) {
  const std::uint64_t life = nodes_[i]->life;
  at(when, [this, i, life, run = std::move(run)]() mutable {
    Host& host = *nodes_[i];
    if (host.life != life || !host.node) return;
    if (now_ < host.frozen_until) return for_host(i, host.frozen_until, std::move(run));
    run(host);
    carry_out(i);
    if (host.node) host.node->check_invariants();
  });
}

void VirtualCluster::arm_timer(std::size_t i) {
  Host& host = *nodes_[i];
  if (host.timer_armed) return;
  host.timer_armed = true;
  for_host(i, std::max(now_ + std::chrono::microseconds(1), host.node->next_deadline()), [this, i](Host& h) {
    h.timer_armed = false;
    h.node->on_time(now_);
    arm_timer(i);
  });
}

void VirtualCluster::carry_out(std::size_t i) {
  Host& host = *nodes_[i];
  while (true) {
    auto effects = host.node->take_effects();
    if (effects.empty()) {
      if (!host.node->has_work()) return;
      host.node->work(now_);
      continue;
    }
    for (Effect& effect : effects) {
      if (auto* send = std::get_if<SendEffect>(&effect)) deliver(i, send->session, send->lane, send->message);
      else if (auto* dialled = std::get_if<DialEffect>(&effect)) dial(i, dialled->endpoint);
      else if (auto* closed = std::get_if<CloseEffect>(&effect)) {
        const auto found = sessions_.find({i, closed->session});
        if (found == sessions_.end()) continue;
        const auto session = found->second;
        sessions_.erase(found);
        const int other = session->ids[0] == closed->session && session->ends[0] == i ? 1 : 0;
        // What was sent goes out first; then the other end learns of it.
        for_host(session->ends[other], std::max(now_ + latency_, session->last[other]) + std::chrono::nanoseconds(1), [this, session, other, why = closed->reason](Host& h) {
          if (sessions_.erase({session->ends[other], session->ids[other]}) > 0)
            h.node->on_session_closed(session->ids[other], "closed by peer: " + why, now_);
        });
      } else if (auto* persisted = std::get_if<PersistEffect>(&effect)) {
        REQUIRE(persisted->state.incarnation >= host.disk.incarnation);
        host.disk = persisted->state;
      } else if (auto* update = std::get_if<UpdateEffect>(&effect)) {
        REQUIRE(!host.held);
        host.held = std::move(update->update);
        host.batch = host.held->batch > 0 ? host.held->batch : host.options.batch;
        for (std::size_t p = 0; p < host.parameters.size(); ++p)
          host.parameters[p] = host.held->replace ? host.held->values[p] : host.parameters[p] + host.held->values[p];
        host.snapshot_due = host.step + host.held->steps_until_snapshot;
        host.training = host.held->training;
        if (!host.training) {
          for_host(i, now_ + std::chrono::microseconds(50), [this, i](Host&) { answer(i); });
        } else if (!host.stepping) {
          host.stepping = true;
          for_host(i, now_ + host.step_time(), [this, i](Host&) { train(i); });
        }
      } else if (std::holds_alternative<RecallEffect>(effect)) {
        host.snapshot_due = host.step;
      } else if (auto* progress = std::get_if<ProgressEffect>(&effect)) host.others = progress->others_samples;
      else if (auto* words = std::get_if<LogEffect>(&effect)) host.log.push_back(words->text);
    }
  }
}

void VirtualCluster::train(std::size_t i) {
  Host& host = *nodes_[i];
  if (!host.training) {
    host.stepping = false;
    return;
  }
  ++host.step;
  host.samples += host.batch;
  if (step_) step_(i, host.parameters, host.step);
  if (host.held && host.step >= host.snapshot_due) answer(i);
  for_host(i, now_ + host.step_time(), [this, i](Host&) { train(i); });
}

void VirtualCluster::answer(std::size_t i) {
  Host& host = *nodes_[i];
  if (!host.held) return;
  Snapshot snapshot;
  snapshot.model = std::move(host.held->values);
  host.held.reset();
  std::copy(host.parameters.begin(), host.parameters.end(), snapshot.model.begin());
  snapshot.step = host.step;
  snapshot.samples = host.samples;
  snapshot.loss = host.options.loss;
  snapshot.learning_rate = rate_;
  snapshot.learning_rate_peak = rate_peak_;
  snapshot.step_seconds = seconds(host.step_time());
  snapshot.batch = host.batch;
  snapshot.job_batch = host.options.batch;
  snapshot.finite = std::all_of(host.parameters.begin(), host.parameters.end(), [](float x) { return std::isfinite(x); });
  host.node->on_snapshot(std::move(snapshot), now_);
}

void VirtualCluster::dial(std::size_t from, const Endpoint& where) {
  const std::size_t to = static_cast<std::size_t>(std::stoul(where.host.substr(4)));
  const bool reachable = to < nodes_.size() && nodes_[to]->node && !blocked_.contains({from, to});
  for_host(from, now_ + latency_ * 2, [this, from, to, where, reachable](Host& h) {
    if (!reachable || !nodes_[to]->node) return h.node->on_dial_failed(where, "connection refused", now_);
    auto session = std::make_shared<Session>();
    session->ends[0] = from;
    session->ends[1] = to;
    for (int e : {0, 1}) {
      session->ids[e] = SessionId{++next_session_};
      session->lives[e] = nodes_[session->ends[e]]->life;
      session->last[e] = now_;
      sessions_[{session->ends[e], session->ids[e]}] = session;
    }
    h.node->on_session_open(session->ids[0], true, where, now_);
    for_host(to, now_, [this, session, from](Host& other) {
      if (sessions_.contains({session->ends[1], session->ids[1]}))
        other.node->on_session_open(session->ids[1], false, Endpoint{"node" + std::to_string(from), 40000}, now_);
    });
  });
}

void VirtualCluster::deliver(std::size_t from, SessionId id, Lane lane, SharedBytes message) {
  const auto found = sessions_.find({from, id});
  if (found == sessions_.end()) return;
  const auto session = found->second;
  const int mine = session->ids[0] == id && session->ends[0] == from ? 0 : 1;
  const int other = 1 - mine;
  const std::size_t to = session->ends[other];
  if (blocked_.contains({from, to})) return;
  ++messages_;
  bytes_ += message->size();
  if (cut_after_ != 0 && messages_ >= cut_after_) {
    cut_after_ = 0;  // this message and everything still under way is lost
    std::set<std::shared_ptr<Session>> all;
    for (auto& [key, s] : sessions_) all.insert(s);
    at(now_, [this, all] {
      for (const auto& s : all) break_session(s, "connection reset by peer");
    });
    for (const auto& s : all) s->open = false;
    return;
  }
  if (!session->open) return;
  Bytes copy = *message;
  if (tamper_ && !tamper_(from, to, lane, copy)) return;
  session->last[other] = std::max(session->last[other], now_ + latency_);
  if (lane == Lane::bulk)
    for_host(from, now_, [this, session, mine, size = message->size()](Host& h) {
      if (session->open) h.node->on_bulk_sent(session->ids[mine], size, now_);
    });
  for_host(to, session->last[other], [this, session, other, lane, copy = std::move(copy)](Host& h) {
    if (session->open && sessions_.contains({session->ends[other], session->ids[other]}))
      h.node->on_message(session->ids[other], lane, copy, now_);
    if (lane == Lane::bulk) at(now_ + std::chrono::nanoseconds(1), [this, session] { check(*session); });
  });
}

void VirtualCluster::break_session(const std::shared_ptr<Session>& session, const std::string& why) {
  session->open = false;
  for (int e : {0, 1})
    if (sessions_.erase({session->ends[e], session->ids[e]}) > 0 && nodes_[session->ends[e]]->node &&
        nodes_[session->ends[e]]->life == session->lives[e])
      for_host(session->ends[e], now_, [this, session, e, why](Host& h) { h.node->on_session_closed(session->ids[e], why, now_); });
}

bool VirtualCluster::run_until(const std::function<bool()>& condition, Duration limit) {
  const Instant end = now_ + limit;
  while (!events_.empty() && events_.top().at <= end) {
    const Event event = events_.top();
    events_.pop();
    now_ = std::max(now_, event.at);
    event.run();
    if (condition()) return true;
  }
  now_ = end;
  return condition();
}

// Both ends of a link that nobody is speaking on, and on whose way nothing is, hold the same bits.
void VirtualCluster::check(const Session& session) {
  const std::size_t a = session.ends[0], b = session.ends[1];
  if (replicas_unchecked_ || !session.open || !nodes_[a]->node || !nodes_[b]->node || session.last[0] >= now_ || session.last[1] >= now_) return;
  if (nodes_[a]->node->has_work() || nodes_[b]->node->has_work() || now_ < nodes_[a]->frozen_until || now_ < nodes_[b]->frozen_until) return;
  const auto conversed = [](const NodeView& v, NodeId peer) {
    return std::any_of(v.links.begin(), v.links.end(), [&](const LinkView& l) {
      return l.peer == peer && l.state == "open" && l.counters.turns_heard > 0 && l.counters.turns_spoken > 0;
    });
  };
  if (!conversed(view(a), id(b)) || !conversed(view(b), id(a))) return;
  ++replica_checks_;
  REQUIRE(nodes_[a]->node->published_to(id(b)) == nodes_[b]->node->received_from(id(a)));
  REQUIRE(nodes_[b]->node->published_to(id(a)) == nodes_[a]->node->received_from(id(b)));
}

std::vector<double> VirtualCluster::mean() const {
  std::vector<double> mean(schema_.floats(), 0.0);
  double count = 0;
  for (const auto& host : nodes_) {
    if (!host->node) continue;
    ++count;
    for (std::size_t p = 0; p < mean.size(); ++p) mean[p] += static_cast<double>(host->parameters[p]);
  }
  for (double& m : mean) m /= count;
  return mean;
}

double VirtualCluster::spread() const {
  const std::vector<double> centre = mean();
  double most = 0;
  for (const auto& host : nodes_) {
    if (!host->node) continue;
    double sum = 0;
    for (std::size_t p = 0; p < centre.size(); ++p) sum += std::pow(static_cast<double>(host->parameters[p]) - centre[p], 2);
    most = std::max(most, std::sqrt(sum / static_cast<double>(centre.size())));
  }
  return most;
}

}  // namespace gossipd::sim
