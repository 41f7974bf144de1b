// What this node says of itself, to its peers and to its disk.
#include <algorithm>
#include <utility>

#include "core/node/conductor.h"

namespace gossipd {

void Conductor::persist() {
  if (job_.next.is_under_way()) return;  // a state of the job before would undo it
  state_.own_samples = progress_.own();
  state_.budget = progress_.budget();
  state_.samples_per_second = progress_.rate();
  NodeState state = persistence_.to_write(state_, directory_, detector_.looked_at());
  state.incarnation = durable_.to_reserve(state_.incarnation);
  emit(PersistEffect{std::move(state)});
}

bool Conductor::may_say_hello() const {
  return durable_.allows(state_.incarnation) && durable_.left() == (life_.is(Phase::left)) &&
         durable_.cluster() == met_as();
}

void Conductor::on_persisted(const NodeState& state, Instant now) {
  if (state.id != state_.id) return;  // the process that starts after this one has another id
  const bool could = may_say_hello();
  durable_.on_disk(state);
  if (life_.is_stopping()) return;
  if (life_.is(Phase::leaving) && state_.left && durable_.left()) say_left(now);
  if (const auto above = durable_.take_awaited()) refute(*above, now);
  if (could || !may_say_hello()) return;
  say_due_hellos(now);
  timers_.by(Duty::overlay, now);
}

void Conductor::raise_incarnation(std::uint64_t above) {
  state_.incarnation = std::min(std::max(state_.incarnation, above), counter_max - 2) + 1;
  log(Level::info, "event=refute incarnation=" + std::to_string(state_.incarnation));
  persistence_.urge();
}

MemberRecord Conductor::own_record() const {
  const Snapshot& last = round_.last();
  const Directory::Entry* known = directory_.find(state_.id);
  MemberRecord record;
  record.id = state_.id;
  record.name = config_.name;
  record.address = config_.advertise;
  record.incarnation = std::max(state_.incarnation, known ? known->record.incarnation : 0);
  record.state = life_.is(Phase::left) ? MemberState::left : MemberState::alive;
  record.phase = phase();
  record.samples = std::max(progress_.own(), known ? known->record.samples : 0);
  record.step = std::max(last.step, progress_.remembered_step());
  // At the end of a job the last rate stays in the record: a node that restarts then has no other
  // to judge claims by.
  if (life_.is_at_end() || (steps_allowed() && last.step_seconds > 0))
    record.samples_per_second = progress_.rate();
  record.batch = last.batch;
  record.loss = last.loss;
  // Of a member that trains alone nobody waits to hear that its model is the others'.
  record.consensus_distance = config_.exchange.enabled ? own_consensus_distance() : 0;
  record.budget = progress_.budget();
  record.version = config_.version;
  record.device = known ? known->record.device : std::string();
  record.accuracy = known ? known->record.accuracy : -1;
  record.reachability = dialer_.reach().own();
  return record;
}

bool Conductor::has_news_of_itself() const {
  const MemberRecord& said = directory_.self();
  const double bound = config_.exchange.consensus_bound;
  return said.phase != phase() || said.incarnation < state_.incarnation ||
         (said.state == MemberState::left) != life_.is(Phase::left) ||
         said.budget != progress_.budget() || said.reachability != dialer_.reach().own() ||
         // the others wait for it with their final models
         (life_.is(Phase::finishing) && said.consensus_distance >= bound &&
          own_consensus_distance() < bound);
}

void Conductor::renew_own_record(Instant now) {
  MemberRecord record = own_record();
  const Directory::Entry* known = directory_.find(state_.id);
  if (known == nullptr) return directory_.set_self(std::move(record), true, now);
  const MemberRecord& said = known->record;
  const double bound = config_.exchange.consensus_bound;
  const bool is_news = record.incarnation != said.incarnation || record.state != said.state ||
                       record.phase != said.phase || record.name != said.name ||
                       record.address != said.address || record.budget != said.budget ||
                       record.reachability != said.reachability ||
                       // the others wait for its final model
                       (life_.is_at_end() &&
                        (record.consensus_distance < bound) != (said.consensus_distance < bound)) ||
                       // at rest a count is final: all are to know it
                       (!steps_allowed() && record.samples != said.samples);
  // A trainer that hangs says nothing, and without a word the others would count on at its rate.
  const bool changed =
      is_news || steps_allowed() || record.samples != said.samples || record.step != said.step ||
      record.batch != said.batch || record.samples_per_second != said.samples_per_second ||
      record.loss != said.loss || record.consensus_distance != said.consensus_distance;
  if (changed) directory_.set_self(std::move(record), is_news, now);
}

// The device is news; an accuracy goes with the next stats.
void Conductor::describe(std::string device, std::optional<double> accuracy, Instant now) {
  renew_own_record(now);  // whose news, as a final count, would else go as stats
  MemberRecord record = own_record();
  if (device.size() > device_bytes_max) device.resize(device_bytes_max);
  const bool is_news = device != record.device;
  record.device = std::move(device);
  record.accuracy = accuracy.value_or(-1);
  directory_.set_self(std::move(record), is_news, now);
}

std::size_t Conductor::open_links() const { return count_open(round_links()); }

double Conductor::own_consensus_distance() const {
  return consensus_distance(round_links(), directory_.alive_others());
}

}  // namespace gossipd
