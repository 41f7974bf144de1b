// How the virtual cluster carries out a node's effects: one overload for each kind, so that a new
// one does not compile until the simulator has an answer. Then its disks, and what stands in for a
// trainer.
#include <algorithm>

#include "core/codec/kernels.h"
#include "tests/sim/virtual_cluster.h"

namespace gossipd::sim {
namespace {

constexpr Duration prepare_time = std::chrono::milliseconds(100);
constexpr Duration final_retry = std::chrono::seconds(5);

}  // namespace

void VirtualCluster::carry_out(std::size_t i) {
  Host& host = *nodes_[i];
  while (host.node) {
    std::vector<Effect> effects = host.node->take_effects();
    if (effects.empty()) {
      if (!host.node->has_work()) return;
      host.node->work(local(i));
      continue;
    }
    if (hooks_.effects) hooks_.effects(i, effects);
    for (Effect& effect : effects) {
      if (dies_before(host, effect)) return kill(i, host.death);
      std::visit([this, i](auto& e) { on(i, e); }, effect);
      if (!host.node) return;
    }
  }
}

bool VirtualCluster::dies_before(Host& host, const Effect& effect) {
  if (!host.dies_at_effect) return false;
  if (*host.dies_at_effect == 0) return std::holds_alternative<PersistEffect>(effect);
  if (*host.dies_at_effect == 1) return true;
  --*host.dies_at_effect;
  return false;
}

// ---- sessions -----------------------------------------------------------------------------------

void VirtualCluster::on(std::size_t i, SendEffect& effect) {
  const auto to = network_.peer_of(i, effect.session);
  if (!to) return;
  ++messages_;
  bytes_ += effect.message->size();
  if (cut_after_ != 0 && messages_ >= cut_after_) {
    cut_after_ = 0;  // this message and everything in transit is lost
    return network_.reset_all();
  }
  if (watcher_ != nullptr) watcher_->sending(i, *to, effect.session, effect.lane, *effect.message);
  if (!hooks_.wire) return (void)network_.send(i, effect.session, effect.lane, effect.message);
  auto copy = std::make_shared<Bytes>(*effect.message);
  if (hooks_.wire(i, *to, effect.lane, *copy))
    (void)network_.send(i, effect.session, effect.lane, std::move(copy));
}

void VirtualCluster::on(std::size_t i, DialEffect& effect) {
  const std::size_t to = std::stoul(effect.endpoint.host.substr(4));
  network_.dial(i, reflected_.contains({i, to}) ? i : to, effect.endpoint);
}

void VirtualCluster::on(std::size_t i, CloseEffect& effect) {
  nodes_[i]->sessions.erase(effect.session);
  network_.close(i, effect.session, effect.reason);
}

// ---- the job ------------------------------------------------------------------------------------

void VirtualCluster::on(std::size_t i, JobEffect& effect) {
  nodes_[i]->disk.job_document = effect.document;
  nodes_[i]->job = effect.hash;
  for_host(i, now() + prepare_time, [this, i](Host& h) {
    h.node->on_model_ready(schema_, buffers(h), !h.disk.checkpoint.parameters.empty(),
                           h.loop.samples(), h.loop.step(), local(i));
  });
}

void VirtualCluster::on(std::size_t i, FileReadEffect& effect) {
  Host& host = *nodes_[i];
  GOSSIPD_SIM_REQUIRE(effect.offset + effect.bytes <= effect.file.bytes, "core",
                      "a file is read beyond its end");
  const bool whole = host.file.size() == effect.file.bytes;
  const auto from = host.file.begin() + static_cast<std::ptrdiff_t>(whole ? effect.offset : 0);
  host.node->on_file_read(
      effect.session, effect.file, effect.offset,
      Bytes(from, from + static_cast<std::ptrdiff_t>(whole ? effect.bytes : 0)));
}

void VirtualCluster::on(std::size_t i, FilePieceEffect& effect) {
  Bytes& file = nodes_[i]->file;
  if (effect.offset == 0) file.clear();
  GOSSIPD_SIM_REQUIRE(effect.offset == file.size(), "core",
                      "a piece of a file does not follow the one before");
  file.insert(file.end(), effect.bytes.begin(), effect.bytes.end());
}

// ---- the process --------------------------------------------------------------------------------

// Document and state are one write, which a process that dies meanwhile has not made.
void VirtualCluster::on(std::size_t i, NextJobEffect& effect) {
  const Host& host = *nodes_[i];
  for_host(i, now() + host.disk_takes, [this, i, effect](Host& h) {
    const bool kept = !h.disk_fails && !h.disk_stuck;
    if (kept && (!hooks_.next_job || hooks_.next_job(i))) {
      put_on_disk(i, effect.state);
      h.disk.job_document = effect.document;
      h.disk.final_model.clear();
      h.writing.reset();
      h.waiting.reset();
      h.goes_on = true;
    }
    h.node->on_next_job_kept(effect.state, kept, local(i));
  });
}

void VirtualCluster::on(std::size_t i, RestartEffect&) {
  Host& host = *nodes_[i];
  write_checkpoint(i);
  const Samples trained = host.loop.samples();
  if (!std::exchange(host.goes_on, false) && watcher_ != nullptr)
    watcher_->took_new_id(i, trained - std::min(trained, host.disk.state.former_samples));
  events_.at(now() + std::chrono::milliseconds(1), [this, i, life = host.life + 1] {
    if (nodes_[i]->life == life && !nodes_[i]->node) start_from_disk(i);
  });
  kill(i);
}

void VirtualCluster::on(std::size_t i, LogEffect& effect) {
  if (watcher_ != nullptr) watcher_->logged(i, effect.text);
  if (!logs_unkept_) nodes_[i]->log.push_back(std::move(effect.text));
}

// ---- the disk -----------------------------------------------------------------------------------

void VirtualCluster::on(std::size_t i, PersistEffect& effect) {
  persist(i, std::move(effect.state));
}

// Like the daemon's disk writer: one write at a time, then the newest waiting one.
void VirtualCluster::persist(std::size_t i, NodeState state) {
  Host& host = *nodes_[i];
  if (hooks_.says_written && hooks_.says_written(i)) host.node->on_persisted(state, local(i));
  if (host.writing) {
    host.waiting = std::move(state);
    return;
  }
  ++host.writes;
  if (host.disk_takes == Duration{} && !host.disk_stuck) return written(i, state);
  host.writing = std::move(state);
  finish_write(i, host.disk_takes);
}

void VirtualCluster::finish_write(std::size_t i, Duration after) {
  for_host(i, now() + after, [this, i, write = nodes_[i]->writes](Host& host) {
    if (!host.writing || host.writes != write || host.disk_stuck) return;  // stick_disk() goes on
    written(i, *std::exchange(host.writing, std::nullopt));
    if (host.waiting) persist(i, *std::exchange(host.waiting, std::nullopt));
  });
}

void VirtualCluster::stick_disk(std::size_t i, bool stuck) {
  Host& host = *nodes_[i];
  host.disk_stuck = stuck;
  if (!stuck && host.writing) finish_write(i, Duration{});
}

void VirtualCluster::written(std::size_t i, const NodeState& state) {
  Host& host = *nodes_[i];
  if (host.disk_fails) return;  // the daemon warns and goes on
  put_on_disk(i, state);
  host.node->on_persisted(state, local(i));
}

void VirtualCluster::put_on_disk(std::size_t i, const NodeState& state) {
  Host& host = *nodes_[i];
  NodeState written = state;
  if (hooks_.write) hooks_.write(i, host.disk.state, written);
  GOSSIPD_SIM_REQUIRE(
      state.incarnation >= host.disk.state.incarnation || state.former_id == host.disk.state.id,
      "incarnation", "a state with a lower incarnation is written over a higher one");
  if (watcher_ != nullptr) watcher_->persisted(i, host.disk.state, state);
  host.disk.state = std::move(written);
  host.disk.written = now();
}

void VirtualCluster::on(std::size_t i, CheckpointEffect& effect) {
  write_checkpoint(i);
  if (effect.final_model) write_final(i);
}

void VirtualCluster::on(std::size_t i, RestoreEffect&) {
  for_host(i, now() + prepare_time,
           [this, i](Host& h) { h.node->on_restored(h.disk.checkpoint.parameters, local(i)); });
}

void VirtualCluster::write_checkpoint(std::size_t i) {
  Host& host = *nodes_[i];
  if (!host.disk_fails && !host.disk_stuck && kernels().all_finite(host.parameters))
    host.disk.checkpoint = Checkpoint{host.parameters, host.loop.counters(), host.job};
}

// Retries a failed write, as the daemon does.
void VirtualCluster::write_final(std::size_t i) {
  Host& host = *nodes_[i];
  if (host.disk_fails || host.disk_stuck)
    return for_host(i, now() + final_retry, [this, i](Host&) { write_final(i); });
  if (hooks_.final_model && !hooks_.final_model(i)) return;
  host.disk.final_model = host.parameters;
}

// ---- the trainer --------------------------------------------------------------------------------

void VirtualCluster::on(std::size_t i, ProgressEffect& effect) {
  nodes_[i]->others = effect.others_samples;
}

// Nothing: `trainer_budget` is what a test lets this trainer know of the budget.
void VirtualCluster::on(std::size_t, BudgetEffect&) {}

void VirtualCluster::on(std::size_t i, RequestSnapshotEffect&) {
  nodes_[i]->loop.request_snapshot();
}

// Every moment is a boundary: a step takes its time and then happens in an instant, so an update
// never waits for the step under way, as it does at a real trainer.
void VirtualCluster::on(std::size_t i, UpdateEffect& effect) {
  Host& host = *nodes_[i];
  Update& update = effect.update;
  GOSSIPD_SIM_REQUIRE(!host.loop.has_loan(), "delta-once",
                      "a second update is given to a trainer that has one");
  if (watcher_ != nullptr) watcher_->before_update(i, update, host.parameters);
  for (std::size_t p = 0; p < host.parameters.size(); ++p)
    host.parameters[p] = update.replace ? update.values[p] : host.parameters[p] + update.values[p];
  if (hooks_.applied) hooks_.applied(i, host.parameters, update);
  if (watcher_ != nullptr) watcher_->after_update(i, host.parameters);
  const bool to_train = update.training;
  host.loop.take(std::move(update));
  const bool trains = host.loop.at_boundary(host.cluster()) == StepLoop::State::training;
  if (to_train && !trains) ++host.vain_updates;
  if (!trains) {
    for_host(i, now() + std::chrono::microseconds(50), [this, i](Host&) { answer(i); });
  } else if (!host.stepping) {
    host.stepping = true;
    for_host(i, now() + host.step_time(), [this, i](Host&) { train(i); });
  }
}

void VirtualCluster::train(std::size_t i) {
  Host& host = *nodes_[i];
  if (host.loop.state() != StepLoop::State::training) {
    host.stepping = false;
    return;
  }
  host.loop.on_step({.next_position = host.loop.data_position() + host.loop.batch()});
  if (step_) step_(i, host.parameters, host.loop.step());
  host.loop.at_boundary(host.cluster());
  if (host.loop.next() == StepLoop::Next::begin_snapshot) answer(i);
  for_host(i, now() + host.step_time(), [this, i](Host&) { train(i); });
}

// A test says what its snapshots report, and a model that is not finite trains on: the core has to
// notice, whatever the trainer does.
void VirtualCluster::answer(std::size_t i) {
  Host& host = *nodes_[i];
  if (!host.loop.has_loan()) return;
  std::ranges::copy(host.parameters, host.loop.begin_snapshot({}).begin());
  Snapshot snapshot = host.loop.hand_over();
  snapshot.loss = host.options.loss;
  snapshot.learning_rate = rate_;
  snapshot.learning_rate_peak = rate_peak_;
  snapshot.step_seconds = seconds(host.step_time());
  snapshot.finite = kernels().all_finite(host.parameters);
  if (hooks_.snapshot) hooks_.snapshot(i, snapshot);
  host.node->on_snapshot(std::move(snapshot), local(i));
}

}  // namespace gossipd::sim
