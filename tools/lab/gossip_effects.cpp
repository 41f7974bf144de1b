// How the gossip strategy carries out the core's effects, one overload for each kind so that a new
// one does not compile until the lab has an answer, and what stands in for the trainer's thread.
#include <algorithm>
#include <cmath>

#include "core/codec/kernels.h"
#include "models/job/schedule.h"
#include "tools/lab/gossip_host.h"

namespace gossipd::lab {

namespace {

constexpr int age_sample_steps = 16;

}  // namespace

// ---- sessions, the disk -------------------------------------------------------------------------

void GossipStrategy::on(std::size_t i, DialEffect& effect) { dial(i, effect.endpoint); }
void GossipStrategy::on(std::size_t i, SendEffect& effect) {
  send(i, effect.session, effect.lane, std::move(effect.message));
}
void GossipStrategy::on(std::size_t i, CloseEffect& effect) {
  close(i, effect.session, effect.reason);
}

// A disk of the lab takes no time.
void GossipStrategy::on(std::size_t i, PersistEffect& effect) {
  Host& host = *hosts_[i];
  host.disk.state = std::move(effect.state);
  host.disk.written = setup_->world.now();
  host.node->on_persisted(host.disk.state, setup_->world.now());
}

// ---- the job and the trainer --------------------------------------------------------------------

// Every machine has the job and its data from the start.
void GossipStrategy::on(std::size_t i, JobEffect&) {
  for_host(i, setup_->world.now(), [this](Host& h) {
    h.node->on_model_ready(h.engine->schema(), buffers(h), false, h.loop.samples(), h.loop.step(),
                           setup_->world.now());
  });
}

void GossipStrategy::on(std::size_t i, UpdateEffect& effect) {
  Host& host = *hosts_[i];
  host.given = std::move(effect.update);
  if (host.computing) return;
  for_host(i, setup_->world.now(), [this, i](Host& h) {
    if (!h.computing) boundary(i);
  });
}

void GossipStrategy::on(std::size_t i, RequestSnapshotEffect&) {
  Host& host = *hosts_[i];
  host.loop.request_snapshot();
  if (host.given) host.given->snapshot_step = 0;
}

void GossipStrategy::on(std::size_t i, ProgressEffect& effect) {
  hosts_[i]->cluster.others = effect.others_samples;
}
void GossipStrategy::on(std::size_t i, BudgetEffect& effect) {
  hosts_[i]->cluster.budget = effect.samples;
}

void GossipStrategy::on(std::size_t i, RestoreEffect&) {
  for_host(i, setup_->world.now(),
           [this](Host& h) { h.node->on_restored(h.disk.model, setup_->world.now()); });
}

// Nothing: checkpoints are written every `checkpoint.every_s`, and the run evaluates the final
// models where they are.
void GossipStrategy::on(std::size_t, CheckpointEffect&) {}

// Nothing: nobody reads a virtual machine's log.
void GossipStrategy::on(std::size_t, LogEffect&) {}

// ---- what cannot happen in the lab --------------------------------------------------------------

void GossipStrategy::on(std::size_t, FileReadEffect&) {
  GOSSIPD_ASSERT(!"a job of the lab has no file that a node could ask for");
}
void GossipStrategy::on(std::size_t, FilePieceEffect&) {
  GOSSIPD_ASSERT(!"a job of the lab has no file that a node could be sent");
}
void GossipStrategy::on(std::size_t, RestartEffect&) {
  GOSSIPD_ASSERT(!"no two machines of the lab have one id");
}
void GossipStrategy::on(std::size_t, NextJobEffect&) { GOSSIPD_ASSERT(!"the lab has one job"); }

// ---- the trainer's thread -----------------------------------------------------------------------

StepLoop::Rates GossipStrategy::rates(const Host& host) const {
  return {.now = learning_rate_at(setup_->job, host.loop.samples() + host.cluster.others,
                                  host.cluster.budget),
          .peak = learning_rate_peak(setup_->job)};
}

void GossipStrategy::take(Host& host, Update update) {
  if (update.replace) {
    host.engine->replace_model(update.values);
    host.engine->restore_optimizer({});
  } else if (host.loop.is_finite()) {
    host.engine->add_to_model(update.values);
  }
  host.loop.take(std::move(update));
}

void GossipStrategy::write_checkpoint(Host& host) {
  host.checkpoint_at = setup_->world.now() + from_seconds(checkpoint_every_s_);
  host.disk.model.resize(host.engine->schema().floats());
  host.engine->copy_model(host.disk.model);
  host.disk.optimizer = host.engine->optimizer_state();
  host.disk.counters = host.loop.counters();
}

void GossipStrategy::boundary(std::size_t i) {
  Host& host = *hosts_[i];
  if (host.given) take(host, *std::exchange(host.given, std::nullopt));
  if (setup_->world.now() >= host.checkpoint_at && host.loop.is_finite()) write_checkpoint(host);
  host.loop.at_boundary(host.cluster);
  if (host.loop.next() == StepLoop::Next::begin_snapshot) give_snapshot(i);
  if (host.loop.next() == StepLoop::Next::step) step(i);
}

void GossipStrategy::step(std::size_t i) {
  Host& host = *hosts_[i];
  const double wild = is_bad(i, PoisonSpec::Kind::rate) ? poison_.value : 1;
  const double rate = rates(host).now * host.loop.rate_scale() * wild;
  const std::uint32_t batch = host.loop.batch();
  const Samples position = host.loop.data_position();
  const Instant began = setup_->world.now();
  host.computing = true;
  setup_->world.compute(
      i, batch,
      [engine = host.engine, position, rate, batch] { return engine->step(position, rate, batch); },
      [this, i, began, life = host.life](double loss) {
        Host& h = *hosts_[i];
        if (h.life != life) {
          h.computing = false;  // the step of a process that has died meanwhile
          return;
        }
        for_host(i, std::max(setup_->world.now(), h.frozen_until),
                 [this, i, began, loss](Host&) { on_step(i, began, loss); });
      });
}

void GossipStrategy::on_step(std::size_t i, Instant began, double loss) {
  Host& host = *hosts_[i];
  const Instant now = setup_->world.now();
  host.computing = false;
  host.loop.on_step({.loss = loss,
                     .next_position = host.loop.data_position() + host.loop.batch(),
                     .seconds = seconds(now - began)});
  double age = NAN;
  if (host.loop.step() % age_sample_steps == 0) {
    double sum = 0;
    std::size_t open = 0;
    for (const LinkView& link : host.node->links(now))
      if (link.state == "open") sum += link.age_steps, ++open;
    if (open > 0) age = sum / static_cast<double>(open);
  }
  setup_->recorder.trained(i, host.loop.batch(), loss, age);
  boundary(i);
}

void GossipStrategy::give_snapshot(std::size_t i) {
  Host& host = *hosts_[i];
  host.engine->copy_model(host.loop.begin_snapshot(rates(host)));
  if (!kernels().all_finite(host.loop.buffer())) host.loop.on_not_finite();
  Snapshot snapshot = host.loop.hand_over();
  if (is_bad(i, PoisonSpec::Kind::lie)) lie(snapshot);
  host.node->on_snapshot(std::move(snapshot), setup_->world.now());
}

// ---- one bad node ----

bool GossipStrategy::is_bad(std::size_t i, PoisonSpec::Kind kind) const {
  return poison_.kind == kind && poison_.node == i && setup_->world.seconds_now() >= poison_.at_s;
}

// First so far away that every block goes whole, then 60 further for each model.
void GossipStrategy::lie(Snapshot& snapshot) {
  const auto value = static_cast<float>(poison_.value + 60.0 * static_cast<double>(lies_++));
  std::ranges::fill(snapshot.model, value);
}

}  // namespace gossipd::lab
