#include "tools/lab/gossip.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/balance/settings.h"
#include "core/codec/kernels.h"
#include "core/exchange/settings.h"
#include "core/membership/settings.h"
#include "core/wire/turn.h"
#include "models/job/schedule.h"

namespace gossipd::lab {

namespace {

// Added to messages on the wire (net/peer/FRAME.md): a frame of 16 bytes and a TLS record of 22 for
// every 64 KiB or part of it; a handshake with a shared key in both directions.
constexpr std::uint64_t chunk_bytes = 64 * 1024;
constexpr std::uint64_t frame_and_record_bytes = 16 + 22;
constexpr std::uint64_t handshake_bytes = 700;
constexpr int age_sample_steps = 16;
// As in models/training/trainer.cpp.
constexpr double loss_smoothing = 0.02;
constexpr double step_seconds_smoothing = 0.1;

std::uint64_t on_the_wire(std::size_t message) {
  return message + (message + chunk_bytes - 1) / chunk_bytes * frame_and_record_bytes;
}

Endpoint endpoint_of(std::size_t i) {
  return Endpoint{"node" + std::to_string(i + 1), peer_port_default};
}
std::size_t index_of(const Endpoint& endpoint) {
  return static_cast<std::size_t>(std::stoul(endpoint.host.substr(4))) - 1;
}

}  // namespace

struct GossipStrategy::Host {
  struct Disk {  // what survives a crash
    NodeState state;
    Instant written{};  // the state
    std::vector<float> model;
    OptimizerState optimizer;
    Step step = 0;
    Samples samples = 0, position = 0;
  };
  struct Loan {
    std::vector<float> buffer;
    Step due = 0;
  };

  std::unique_ptr<Node> node;
  GradientEngine* engine = nullptr;
  Disk disk;
  std::uint64_t life = 0;  // +1 at every end of a process; events of former lives are void
  Instant frozen_until{};
  Instant timer_at = Instant::max();
  std::uint64_t timer = 0;
  std::uint64_t link_steps = 0;  // of former lives

  // the trainer
  std::optional<Update> given;
  std::optional<Loan> loan;
  bool computing = false;
  bool told_to_train = true, holding = true, not_finite = false;
  Step step = 0;
  Samples samples = 0, position = 0, others = 0;
  double loss = 0, loss_worst = 0, step_seconds = 0, rate_scale = 1;
  std::uint32_t batch = 0;  // 0: the job's
  bool first_step = true;
  Instant checkpoint_at{};
  std::vector<float> shown;
};

struct GossipStrategy::Session {
  std::size_t ends[2];
  SessionId ids[2];
  bool open = true;
  [[nodiscard]] int end_of(std::size_t machine, SessionId id) const {
    return ends[0] == machine && ids[0] == id ? 0 : 1;
  }
};

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
    hosts_.push_back(std::make_unique<Host>());
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
      host.step = host.disk.step;
      host.samples = host.disk.samples;
      host.position = host.disk.position;
    }
    host.holding = !founds && !restored;
    host.node->on_model_ready(host.engine->schema(),
                              make_round_buffers(host.engine->schema().floats()), !host.holding,
                              host.samples, host.step, now);
  }
  host.checkpoint_at = now + from_seconds(checkpoint_every_s_);
  host.node->on_time(now);
  carry_out(i);
  arm_timer(i);
}

// ---- faults ----

void GossipStrategy::kill(std::size_t i) {
  Host& host = *hosts_[i];
  if (!host.node) return;
  host.link_steps += host.node->view(setup_->world.now()).link_steps;
  ++host.life;
  host.node.reset();
  host.given.reset();
  host.loan.reset();
  host.timer_at = Instant::max();
  host.told_to_train = host.holding = host.first_step = true;
  host.not_finite = false;
  host.loss = host.step_seconds = 0;
  host.batch = 0;
  host.rate_scale = 1;
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
    for (Effect& effect : effects) carry_out(i, effect);
  }
}

void GossipStrategy::carry_out(std::size_t i, Effect& effect) {
  Host& host = *hosts_[i];
  const Instant now = setup_->world.now();
  if (auto* sent = std::get_if<SendEffect>(&effect))
    return send(i, sent->session, sent->lane, std::move(sent->message));
  if (auto* dialled = std::get_if<DialEffect>(&effect)) return dial(i, dialled->endpoint);
  if (auto* closed = std::get_if<CloseEffect>(&effect))
    return close(i, closed->session, closed->reason);
  if (auto* persisted = std::get_if<PersistEffect>(&effect)) {
    host.disk.state = std::move(persisted->state);
    host.disk.written = setup_->world.now();
    host.node->on_persisted(host.disk.state, now);
  } else if (std::holds_alternative<JobEffect>(effect)) {
    for_host(i, now, [this](Host& h) {
      h.node->on_model_ready(h.engine->schema(), make_round_buffers(h.engine->schema().floats()),
                             false, h.samples, h.step, setup_->world.now());
    });
  } else if (auto* update = std::get_if<UpdateEffect>(&effect)) {
    host.given = std::move(update->update);
    if (!host.computing)
      for_host(i, now, [this, i](Host& h) {
        if (!h.computing) boundary(i);
      });
  } else if (std::holds_alternative<RequestSnapshotEffect>(effect)) {
    if (host.loan) host.loan->due = host.step;
    if (host.given) host.given->steps_until_snapshot = 0;
  } else if (auto* progress = std::get_if<ProgressEffect>(&effect)) {
    host.others = progress->others_samples;
  } else if (std::holds_alternative<RestoreEffect>(effect)) {
    for_host(i, now, [this](Host& h) { h.node->on_restored(h.disk.model, setup_->world.now()); });
  }
}

// ---- the trainer's loop, as models/training/trainer.cpp has it ----

Samples GossipStrategy::cluster_samples(const Host& host) const {
  return host.samples + host.others;
}

void GossipStrategy::boundary(std::size_t i) {
  Host& host = *hosts_[i];
  if (host.given) {
    Update update = std::move(*host.given);
    host.given.reset();
    if (update.replace) {
      host.engine->replace_model(update.values);
      host.engine->restore_optimizer({});
      host.first_step = true;
      host.not_finite = !kernels().all_finite(update.values);
    } else if (!host.not_finite) {
      host.engine->add_to_model(update.values);
    }
    host.holding = false;
    host.told_to_train = update.training;
    if (update.batch != host.batch) host.step_seconds = 0;  // is of one batch
    host.batch = update.batch;
    host.rate_scale = update.rate_scale;
    host.loan = Host::Loan{std::move(update.values), host.step + update.steps_until_snapshot};
  }
  const Instant now = setup_->world.now();
  if (now >= host.checkpoint_at && !host.holding && !host.not_finite) {
    host.checkpoint_at = now + from_seconds(checkpoint_every_s_);
    host.disk.model.resize(host.engine->schema().floats());
    host.engine->copy_model(host.disk.model);
    host.disk.optimizer = host.engine->optimizer_state();
    host.disk.step = host.step, host.disk.samples = host.samples,
    host.disk.position = host.position;
  }
  const bool training = !host.holding && !host.not_finite && host.told_to_train &&
                        cluster_samples(host) < setup_->job.budget_samples;
  if (host.loan && (host.step >= host.loan->due || !training)) return_loan(i);
  if (training) step(i);
}

void GossipStrategy::step(std::size_t i) {
  Host& host = *hosts_[i];
  const double wild = is_bad(i, PoisonSpec::Kind::rate) ? poison_.value : 1;
  const double rate = learning_rate_at(setup_->job, cluster_samples(host)) * host.rate_scale * wild;
  const std::uint32_t batch = host.batch > 0 ? host.batch : setup_->job.batch;
  const Instant began = setup_->world.now();
  host.computing = true;
  setup_->world.compute(
      i, batch,
      [engine = host.engine, position = host.position, rate, batch] {
        return engine->step(position, rate, batch);
      },
      [this, i, batch, began, life = host.life](double loss) {
        Host& h = *hosts_[i];
        const Instant now = setup_->world.now();
        const auto made = [this, i, batch, began, loss](Host& trained) {
          trained.computing = false;
          ++trained.step;
          trained.loss_worst = std::max(trained.loss_worst, loss);
          trained.samples += batch;
          trained.position += batch;
          if (!std::isfinite(loss))
            trained.not_finite = true;
          else
            trained.loss =
                trained.first_step ? loss : trained.loss + loss_smoothing * (loss - trained.loss);
          const double wall = seconds(setup_->world.now() - began);
          trained.step_seconds =
              trained.step_seconds == 0
                  ? wall
                  : trained.step_seconds + step_seconds_smoothing * (wall - trained.step_seconds);
          trained.first_step = false;
          double age = NAN;
          if (trained.step % age_sample_steps == 0) {
            double sum = 0;
            std::size_t open = 0;
            for (const LinkView& link : trained.node->view(setup_->world.now()).links)
              if (link.state == "open") sum += link.age_steps, ++open;
            if (open > 0) age = sum / static_cast<double>(open);
          }
          setup_->recorder.trained(i, batch, loss, age);
          boundary(i);
        };
        if (h.life != life) {
          h.computing = false;  // the step of a process that has died meanwhile
          return;
        }
        for_host(i, std::max(now, h.frozen_until), made);
      });
}

void GossipStrategy::return_loan(std::size_t i) {
  Host& host = *hosts_[i];
  Snapshot snapshot;
  snapshot.model = std::move(host.loan->buffer);
  host.loan.reset();
  host.engine->copy_model(snapshot.model);
  if (!kernels().all_finite(snapshot.model)) host.not_finite = true;
  if (is_bad(i, PoisonSpec::Kind::lie)) lie(snapshot);
  snapshot.step = host.step;
  snapshot.samples = host.samples;
  snapshot.loss = host.loss;
  snapshot.loss_worst = std::exchange(host.loss_worst, 0.0);
  snapshot.learning_rate = learning_rate_at(setup_->job, cluster_samples(host)) * host.rate_scale;
  snapshot.learning_rate_peak = learning_rate_peak(setup_->job) * host.rate_scale;
  snapshot.step_seconds = host.step_seconds;
  snapshot.batch = host.batch > 0 ? host.batch : setup_->job.batch;
  snapshot.job_batch = setup_->job.batch;
  snapshot.finite = !host.not_finite;
  host.node->on_snapshot(std::move(snapshot), setup_->world.now());
}

// ---- one bad node ----

bool GossipStrategy::is_bad(std::size_t i, PoisonSpec::Kind kind) const {
  return poison_.kind == kind && poison_.node == i && setup_->world.seconds_now() >= poison_.at_s;
}

// First so far away that every block goes whole, then 60 further for each model.
void GossipStrategy::lie(Snapshot& snapshot) {
  const auto value = static_cast<float>(poison_.value + 60.0 * static_cast<double>(lies_++));
  std::fill(snapshot.model.begin(), snapshot.model.end(), value);
  snapshot.loss = 1e-3;
  snapshot.finite = true;
}

// ---- sessions ----

void GossipStrategy::dial(std::size_t from, const Endpoint& where) {
  const std::size_t to = index_of(where);
  const auto refused = [this, from, where](const char* why) {
    for_host(from, setup_->world.now(), [this, where, why](Host& h) {
      h.node->on_dial_failed(where, why, setup_->world.now());
    });
  };
  if (to >= hosts_.size() || !reaches(from, to)) return refused("no route to host");
  // Connect and handshake: there and back, twice.
  World& world = setup_->world;
  const auto opened = [this, from, to, where, refused] {
    if (!hosts_[to]->node) return refused("connection refused");
    auto session = std::make_shared<Session>();
    session->ends[0] = from, session->ends[1] = to;
    for (int e : {0, 1}) {
      session->ids[e] = SessionId{++next_session_};
      sessions_[{session->ends[e], session->ids[e]}] = session;
    }
    for_host(from, setup_->world.now(), [this, session, where](Host& h) {
      if (sessions_.contains({session->ends[0], session->ids[0]}))
        h.node->on_session_open(session->ids[0], true, where, setup_->world.now());
    });
    for_host(to, setup_->world.now(), [this, session, from](Host& h) {
      if (sessions_.contains({session->ends[1], session->ids[1]}))
        h.node->on_session_open(session->ids[1], false, Endpoint{endpoint_of(from).host, 40000},
                                setup_->world.now());
    });
  };
  world.send(from, to, handshake_bytes / 2, Lane::control, [this, from, to, opened] {
    setup_->world.send(to, from, handshake_bytes / 2, Lane::control, [this, from, to, opened] {
      setup_->world.send(from, to, handshake_bytes / 2, Lane::control, opened);
    });
  });
}

void GossipStrategy::send(std::size_t from, SessionId id, Lane lane, SharedBytes message) {
  const auto found = sessions_.find({from, id});
  if (found == sessions_.end() || !found->second->open) return;
  const auto session = found->second;
  const int mine = session->end_of(from, id), other = 1 - mine;
  if (lane == Lane::bulk && is_bad(from, PoisonSpec::Kind::lie) &&
      bulk_kind(*message) == BulkKind::turn) {
    auto spoilt = std::make_shared<Bytes>(*message);
    const float weight = 1e9f;
    std::memcpy(spoilt->data() + turn_weight_offset, &weight, sizeof weight);
    message = std::move(spoilt);
  }
  const std::size_t to = session->ends[other];
  const auto arrived = [this, session, other, to, lane, message] {
    for_host(to, setup_->world.now(), [this, session, other, lane, message](Host& h) {
      if (!sessions_.contains({session->ends[other], session->ids[other]})) return;
      h.node->on_bytes(session->ids[other], setup_->world.now());
      h.node->on_message(session->ids[other], lane, *message, setup_->world.now());
    });
  };
  World::Action sent;
  if (lane == Lane::bulk)
    sent = [this, session, from, mine, size = message->size()] {
      for_host(from, setup_->world.now(), [this, session, mine, size](Host& h) {
        if (sessions_.contains({session->ends[mine], session->ids[mine]}))
          h.node->on_bulk_sent(session->ids[mine], size, setup_->world.now());
      });
    };
  setup_->world.send(from, to, on_the_wire(message->size()), lane, arrived, std::move(sent));
}

void GossipStrategy::close(std::size_t from, SessionId id, const std::string& why) {
  const auto found = sessions_.find({from, id});
  if (found == sessions_.end()) return;
  const auto session = found->second;
  sessions_.erase(found);
  const int other = 1 - session->end_of(from, id);
  const auto gone = [this, session, other, why] {
    for_host(session->ends[other], setup_->world.now(), [this, session, other, why](Host& h) {
      if (sessions_.erase({session->ends[other], session->ids[other]}) > 0)
        h.node->on_session_closed(session->ids[other], "closed by peer: " + why,
                                  setup_->world.now());
    });
  };
  setup_->world.send(from, session->ends[other], frame_and_record_bytes + why.size(), Lane::control,
                     gone);
}

void GossipStrategy::break_session(const std::shared_ptr<Session>& session) {
  session->open = false;
  for (int e : {0, 1}) {
    for_host(session->ends[e], setup_->world.now(), [this, session, e](Host& h) {
      if (sessions_.erase({session->ends[e], session->ids[e]}) > 0)
        h.node->on_session_closed(session->ids[e], "connection reset by peer", setup_->world.now());
    });
    if (!hosts_[session->ends[e]]->node) sessions_.erase({session->ends[e], session->ids[e]});
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

std::uint64_t GossipStrategy::dense_baseline_bytes() const {
  std::uint64_t models = 0;
  for (std::size_t i = 0; i < hosts_.size(); ++i)
    models += hosts_[i]->link_steps +
              (hosts_[i]->node ? hosts_[i]->node->view(setup_->world.now()).link_steps : 0);
  return models * hosts_[0]->engine->schema().floats() * 4;
}

}  // namespace gossipd::lab
