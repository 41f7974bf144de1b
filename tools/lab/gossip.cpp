// The strategy's hosts: their processes, their faults, and what can be looked at.
#include <algorithm>

#include "core/balance/settings.h"
#include "core/exchange/settings.h"
#include "core/membership/settings.h"
#include "tools/lab/gossip_host.h"

namespace gossipd::lab {

GossipStrategy::GossipStrategy() = default;
GossipStrategy::~GossipStrategy() = default;

std::vector<Setting> GossipStrategy::settings() {
  std::vector<Setting> all = exchange_settings(exchange_);
  for (Setting& setting : membership_settings(membership_)) all.push_back(std::move(setting));
  for (Setting& setting : balance_settings(balance_)) all.push_back(std::move(setting));
  SettingTable(all).number("checkpoint.every_s", "", "s", checkpoint_every_s_, 0.1, setting_day_ms,
                           "what a crash may cost at most");
  return all;
}

std::optional<std::string> GossipStrategy::mistake(const Job&) const {
  if (auto wrong = exchange_mistake(exchange_)) return wrong;
  return balance_mistake(balance_);
}

void GossipStrategy::start(Setup& setup) {
  setup_ = &setup;
  document_ = setup.job.canonical_text();
  for (std::size_t i = 0; i < setup.nodes(); ++i) {
    hosts_.push_back(std::make_unique<Host>(setup.job));
    Host& host = *hosts_.back();
    host.engine = setup.engines[i].get();
    Random id(setup.seed * 1'000'003 + i);
    host.disk.state.id = NodeId{id.next() | 1};
  }
  hosts_[0]->disk.state.cluster = ClusterId{Random(setup.seed).next() | 1};
  for (std::size_t i = 0; i < setup.nodes(); ++i) {
    if (poison_.kind == PoisonSpec::Kind::absent && i == poison_.node) continue;
    const auto delay = delays_.find(i);
    setup.world.after(delay == delays_.end() ? Duration(0) : delay->second,
                      [this, i] { boot(i, i == 0); });
  }
}

void GossipStrategy::boot(std::size_t i, bool founds) {
  Host& host = *hosts_[i];
  const Instant now = setup_->world.now();
  if (host.node) return;
  if (host.computing)
    return setup_->world.after(std::chrono::milliseconds(1),
                               [this, i, founds] { boot(i, founds); });
  NodeConfig config;
  config.name = endpoint_of(i).host;
  config.advertise = endpoint_of(i);
  if (i != 0) config.seeds.push_back(endpoint_of(0));
  config.random_seed = setup_->seed * 7919 + i;
  config.membership = membership_;
  config.exchange = exchange_;
  config.balance = balance_;
  if (poison_.kind == PoisonSpec::Kind::lie && poison_.node == i)
    config.exchange.guard.step_jump = config.exchange.guard.transfer_reach = 0;
  const bool restored = !host.disk.model.empty();
  if (host.disk.written != Instant{}) host.disk.state.down_for = now - host.disk.written;
  host.node = std::make_unique<Node>(std::move(config), host.disk.state, now);
  carry_out(i);
  if (founds || host.disk.state.job != JobHash{}) {
    host.node->on_job(document_, setup_->job.hash(), setup_->job.budget_samples, now);
    if (restored) {
      host.engine->replace_model(host.disk.model);
      host.engine->restore_optimizer(host.disk.optimizer);
      host.loop.restore(host.disk.counters);
    }
    host.node->on_model_ready(host.engine->schema(), buffers(host), founds || restored,
                              host.loop.samples(), host.loop.step(), now);
  }
  host.checkpoint_at = now + from_seconds(checkpoint_every_s_);
  host.node->on_time(now);
  carry_out(i);
  arm_timer(i);
}

RoundBuffers GossipStrategy::buffers(Host& host) {
  RoundBuffers buffers = make_round_buffers(host.engine->schema().floats());
  if (host.loop.step() > 0) return buffers;
  buffers.initial.resize(buffers.base.size());
  host.engine->copy_model(buffers.initial);
  return buffers;
}

// ---- faults ----

void GossipStrategy::kill(std::size_t i) {
  Host& host = *hosts_[i];
  if (!host.node) return;
  ++host.life;
  host.node.reset();
  host.given.reset();
  host.timer_at = Instant::max();
  const StepLoop::Counters counters = host.loop.counters();
  host.loop = StepLoop(setup_->job.batch);
  host.loop.restore(counters);
  std::set<std::shared_ptr<Session>> mine;
  for (auto& [key, session] : sessions_)
    if (key.first == i) mine.insert(session);
  for (const auto& session : mine) break_session(session);
}

void GossipStrategy::restart(std::size_t i) { boot(i, false); }
void GossipStrategy::freeze(std::size_t i, Duration length) {
  hosts_[i]->frozen_until = setup_->world.now() + length;
}

void GossipStrategy::leave(std::size_t i) {
  for_host(i, setup_->world.now(),
           [this](Host& host) { (void)host.node->leave(setup_->world.now()); });
}

bool GossipStrategy::takes_part(std::size_t i) const {
  const Host& host = *hosts_[i];
  return host.node && host.node->phase() != Phase::left && setup_->world.now() >= host.frozen_until;
}

bool GossipStrategy::reaches(std::size_t a, std::size_t b) const {
  return (reachable_.empty() || reachable_.contains({a, b})) && !setup_->world.is_cut(a, b);
}

// ---- events ----

void GossipStrategy::for_host(std::size_t i, Instant when, std::function<void(Host&)> run) {
  setup_->world.at(when, [this, i, life = hosts_[i]->life, run = std::move(run)]() mutable {
    Host& host = *hosts_[i];
    if (host.life != life || !host.node) return;
    if (setup_->world.now() < host.frozen_until)
      return for_host(i, host.frozen_until, std::move(run));
    run(host);
    carry_out(i);
    arm_timer(i);
  });
}

void GossipStrategy::arm_timer(std::size_t i) {
  Host& host = *hosts_[i];
  if (!host.node) return;
  const Instant due =
      std::max(setup_->world.now() + std::chrono::microseconds(1), host.node->next_deadline());
  if (host.timer_at <= due) return;
  host.timer_at = due;
  const std::uint64_t timer = ++host.timer;
  for_host(i, due, [this, timer](Host& h) {
    if (h.timer != timer) return;
    h.timer_at = Instant::max();
    h.node->on_time(setup_->world.now());
  });
}

void GossipStrategy::carry_out(std::size_t i) {
  Host& host = *hosts_[i];
  while (host.node) {
    std::vector<Effect> effects = host.node->take_effects();
    if (effects.empty()) {
      if (!host.node->has_work()) return;
      host.node->work(setup_->world.now());
      continue;
    }
    for (Effect& effect : effects) std::visit([this, i](auto& e) { on(i, e); }, effect);
  }
}

// ---- what can be looked at ----

bool GossipStrategy::finished() const {
  bool any = false;
  for (std::size_t i = 0; i < hosts_.size(); ++i) {
    const Host& host = *hosts_[i];
    if (!host.node || host.node->phase() == Phase::left) continue;
    if (poison_.kind != PoisonSpec::Kind::none && poison_.node == i) continue;
    if (host.node->phase() != Phase::finished) return false;
    any = true;
  }
  return any;
}

std::span<const float> GossipStrategy::model(std::size_t i) {
  Host& host = *hosts_[i];
  host.shown.resize(host.engine->schema().floats());
  host.engine->copy_model(host.shown);
  return host.shown;
}

NodeView GossipStrategy::view(std::size_t i) const {
  return hosts_[i]->node ? hosts_[i]->node->view(setup_->world.now()) : NodeView{};
}

Strategy::State GossipStrategy::state() const {
  if (hosts_.empty()) return {};
  const std::uint64_t floats = hosts_[0]->engine->schema().floats();
  const std::uint64_t links = membership_.links;
  const std::uint64_t drift = exchange_.correction.future_position > 0 ? 1 : 0;
  // base and update; two replicas for each link
  return {0, floats * (optimizer_vectors(setup_->job.optimizer) + 2 + drift + 2 * links)};
}

}  // namespace gossipd::lab
