// The job, and a model for a node that has none: from its neighbours, or from its own disk.
#include <algorithm>

#include "core/node/conductor.h"

namespace gossipd {

void Conductor::on_job(std::string document, JobHash hash, Samples budget_samples) {
  GOSSIPD_ASSERT(document.size() <= job_bytes_max);
  job_.document = std::move(document);
  progress_.on_job(budget_samples);
  const bool fresh = state_.job != hash;
  state_.job = hash;
  if (fresh) persistence_.urge();
  if (life_.is(Phase::joining))
    life_.wait_for(dialer_.seeds().empty() ? "the model" : "a seed to answer");
}

void Conductor::on_waiting_for_data(std::string what) {
  life_.wait_for(std::move(what));
  set_phase(Phase::waiting_for_data, life_.waiting_for());
}

void Conductor::on_model_ready(Schema schema, RoundBuffers buffers, bool has_model,
                               Samples own_samples, Step step, Instant now) {
  GOSSIPD_ASSERT(!source_.trainer_stands());
  schema_ = std::move(schema);
  GOSSIPD_ASSERT(buffers.initial.empty() || buffers.initial.size() == schema_.floats());
  source_.initial().hold(std::exchange(buffers.initial, {}), buffers.initial_hash);
  const bool missing = !has_model && config_.exchange.enabled;
  round_.prepare(std::move(buffers), step);
  transfer_guard_ = std::make_unique<TransferGuard>(config_.exchange.guard.transfer_reach,
                                                    schema_.blocks().size());
  source_.on_trainer_ready(has_model || !config_.exchange.enabled);
  progress_.on_trainer_ready(own_samples, known_own_samples(own_samples),
                             life_.has_outside_trainer());
  life_.look_until(now + config_.membership.isolation_grace);
  const std::vector<SessionId> established = peers_.established_ids();
  for (const SessionId id : established) send_ready(*peers_.find(id), now);
  for (const SessionId id : established)
    if (Session* session = peers_.find(id)) try_open(*session, now);
  if (progress_.budget().revision > 0 && !may_know_another_job())
    emit(BudgetEffect{progress_.in_force()});
  if (life_.is(Phase::left)) return;
  if (source_.is_missing())
    set_phase(peers_.established() > 0 ? Phase::syncing : Phase::joining,
              "the model comes from a neighbour");
  if (missing) return;  // a link that has opened may have brought it
  // A node that restarts with its cluster's model looks for the others first, but not for ever.
  const bool alone = dialer_.seeds().empty() && directory_.entries().size() == 1;
  if (alone || peers_.established() > 0)
    begin_training(now);
  else
    set_phase(Phase::joining, "looking for the cluster's other members");
}

// Own samples that count. What was trained on since the checkpoint counts as well, since members
// may hold it in their models; where none was ever met nobody can, and the steps are made anew.
Samples Conductor::known_own_samples(Samples counter) {
  const Samples known = std::max(state_.own_samples, directory_.self().samples);
  const bool alone = std::ranges::none_of(directory_.entries(), [&](const auto& item) {
    return item.first != state_.id && item.second.was_ever_met();
  });
  if (!alone || life_.has_outside_trainer() || state_.former_id != NodeId{} || counter >= known) {
    const Samples made_here = known - std::min(known, state_.former_samples);
    if (counter < made_here && !life_.has_outside_trainer())  // which has its steps itself
      log(Level::info, "event=steps-behind samples=" + std::to_string(made_here - counter) +
                           " why=\"they came after the checkpoint; a member that lived on has them "
                           "in its model, and they stay counted\"");
    return known;
  }
  log(Level::warning, "event=steps-lost samples=" + std::to_string(known - counter) +
                          " why=\"they came after the checkpoint, and no other member has them\"");
  directory_.lose_own(counter);
  return counter;
}

void Conductor::found_if_due(Instant now) {
  if (!dialer_.founding().is_due() || state_.cluster != ClusterId{} || life_.is_going()) return;
  state_.cluster = dialer_.founding().cluster();
  state_.founder = true;
  log(Level::info, "event=cluster-founded cluster=" + to_hex(state_.cluster) +
                       " why=\"no other member belongs to one\"");
  life_.wait_for("the model");
  persistence_.urge();
  dialer_.forgive(now);
  timers_.by(Duty::overlay, now);
}

ModelAssembly::Links Conductor::open_links_by_peer() const {
  ModelAssembly::Links links;
  for (const auto& [id, neighbour] : peers_.neighbours())
    if (neighbour.link && neighbour.link->is_open()) links[id] = neighbour.link.get();
  return links;
}

// The cluster, as far as this node knows, so a joiner may begin from the initial model.
bool Conductor::has_hardly_begun() const {
  constexpr Samples share = 10;  // of the budget, its inverse
  const Samples budget = progress_.in_force();
  const bool near = budget == 0 || progress_.own() + directory_.others_samples() < budget / share;
  return near && (life_.is(Phase::training) || source_.is_missing());
}

void Conductor::order_blocks(NodeId of, Ready& ready, Instant now) const {
  std::vector<ModelSource::Teller> others;
  for (const auto& [id, session] : peers_.sessions()) {
    if (!session.ready_mine || session.ready_mine->has_model || session.theirs->id == of) continue;
    if (session.ready_theirs && !session.ready_theirs->has_model) continue;
    others.push_back({.link = *peers_.neighbour(session.theirs->id)->link,
                      .first_block = session.ready_mine->first_block});
  }
  source_.order_blocks(ready, open_links_by_peer(), others, now);
}

bool Conductor::is_adopting() const {
  return source_.is_assembling() && needs_model() && round_.is_resting();
}

bool Conductor::adopt(Instant now) {
  if (!needs_model() || !round_.is_resting()) return false;
  const auto model = source_.assemble(open_links_by_peer(), now, round_.copies());
  if (!model) return false;
  if (!model->initial) source_.initial().forget();
  take_over(model->from, now);
  return true;
}

void Conductor::on_restored(std::vector<float> model, Instant now) {
  if (!life_.is(Phase::broken) || !round_.is_resting()) return;
  if (source_.restore(model, round_.copies())) {
    source_.initial().forget();
    return take_over("checkpoint", now);
  }
  log(Level::error,
      "event=no-model-to-restore hint=\"start a neighbour, or remove the state directory and "
      "join again\"");
}

// The model lies in the round's copies.
void Conductor::take_over(const std::string& from, Instant now) {
  source_.adopted();
  weight_.join(round_.last().step, round_.taken());
  log(Level::info, "event=model-adopted from=" + from);
  enter_training("the model has arrived", now);
  check_progress(now);
  hand_out(round_.adopt(steps_allowed()));
  // Two nodes that met while neither had a model start over, now that one has.
  std::vector<SessionId> again;
  for (const auto& [id, session] : peers_.sessions())
    if (session.ready_mine && session.ready_theirs && !session.ready_mine->has_model &&
        !session.ready_theirs->has_model)
      again.push_back(id);
  for (const SessionId id : again)
    close(id, "a model has arrived since; opening the link again", now, true);
}

void Conductor::seek_model(Instant now) {
  if (life_.is(Phase::joining) && source_.has_model() && life_.has_looked(now) && !state_.left) {
    log(Level::warning,
        "event=isolated hint=\"no known member answers; training goes on alone and they are asked "
        "for ever\"");
    begin_training(now);
  }
  if (!life_.is(Phase::broken) || !round_.is_resting() || adopt(now)) return;
  reopen_waiting_links(now);
  if (source_.wants_checkpoint(open_links(), now)) emit(RestoreEffect{});
}

// A broken node speaks no turn, so a link that waits for one brings no model: opened again, the
// other end speaks first.
void Conductor::reopen_waiting_links(Instant now) {
  std::vector<SessionId> waiting;
  for (const auto& [id, neighbour] : peers_.neighbours())
    if (neighbour.link && neighbour.link->my_turn() && !neighbour.link->received_complete())
      waiting.push_back(neighbour.session);
  for (const SessionId id : waiting)
    close(id, "a model is needed; opening the link again", now, true);
}

}  // namespace gossipd
