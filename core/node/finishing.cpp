// The final exchange, in two parts. First the models are mixed until any of them is as good as their mean. Then the one of the
// lowest id is the final model, and it goes from neighbour to neighbour: over a tree, while agreement by mixing has to bring every link's two
// replicas together again and again (in the lab's table of bytes a third of the bytes, and half the distance at the end).
#include <algorithm>
#include <limits>

#include "core/node/node_impl.h"

namespace gossipd {
namespace {

// Relative. In the lab, models so close are as accurate as their mean; with skewed labels, at twice as much, 0.2 points less.
constexpr double mixed_spread = 0.05;
constexpr double final_change_share = 0.5;         // of `spread_bound`: a change of the final model still worth saying
constexpr double heartbeat_threshold_share = 0.1;  // what stayed below a threshold for so long is said after all
constexpr double pace_steps = 2;                   // of training, between two rounds: every turn tells of many others
constexpr double pace_max_s = 0.5;
constexpr float final_weight = 1e6f;               // of a final model beside one that is not …
constexpr float contested_weight = 1e4f;           // … and of one that has met another final model
constexpr std::uint64_t turns_until_spoken = 2;    // of the giver, without a word of the taker's own
constexpr double nothing = std::numeric_limits<double>::infinity();  // is said

}  // namespace

float NodeImpl::weight_at_rest() const {
  if (phase_ != Phase::finished) return 1;
  return settled_ ? final_weight : contested_weight;
}

bool NodeImpl::is_final(float weight) { return weight > contested_weight / 2; }

bool NodeImpl::is_contested(float weight) { return is_final(weight) && weight < final_weight / 2; }

Duration NodeImpl::finish_pace() const { return from_seconds(std::clamp(pace_steps * last_.step_seconds, 0.0, pace_max_s)); }

double NodeImpl::mixed_bound() const { return std::max(config_.exchange.spread_bound, mixed_spread); }

double NodeImpl::finish_threshold() const {
  const bool mixing = phase_ == Phase::finishing && !final_source_;
  return mixing ? mixed_bound() : final_change_share * config_.exchange.spread_bound;
}

bool NodeImpl::has_final_model(NodeId peer) const {
  const Directory::Entry* entry = directory_.find(peer);
  const auto neighbour = neighbours_.find(peer);
  if (entry == nullptr || entry->suspect || entry->record.state != MemberState::alive || neighbour == neighbours_.end()) return false;
  if (!neighbour->second.link || !neighbour->second.link->is_open()) return false;
  return entry->record.phase == Phase::finished || (entry->record.phase == Phase::finishing && is_final(neighbour->second.link->peer_weight()));
}

// The same one as long as it can be asked. Who has the turn opens: this node, or the other one has with an offer.
void NodeImpl::choose_final_source() {
  if (phase_ != Phase::finishing || (final_source_ && has_final_model(final_source_->peer))) return;
  final_source_.reset();
  for (const auto& [id, neighbour] : neighbours_) {
    if (!has_final_model(id) || !neighbour.link->my_turn() || neighbour.link->owes_transfer()) continue;
    final_source_ = FinalSource{id, neighbour.link->counters().turns_heard};
    return;
  }
}

// It has been told since, and taken whole, and there was hardly anything left to take.
bool NodeImpl::has_taken_final_model() const {
  const Link& link = *neighbours_.at(final_source_->peer).link;
  const ExchangeCounters& counters = link.counters();
  return counters.turns_heard > final_source_->turns_heard && !is_exchange_under_way() &&
         (counters.weight >= static_cast<double>(whole_gain) || !is_final(link.peer_weight())) && counters.spread < config_.exchange.spread_bound;
}

bool NodeImpl::takes_from(NodeId peer) const { return final_source_ && final_source_->peer == peer; }

// A neighbour that lacks the final model, on a link where it is this node that opens: first an offer that says nothing, since the neighbour may
// be taking it from another one. Its answer tells.
bool NodeImpl::gives_to(NodeId peer, const Neighbour& neighbour, Instant now) const {
  const Directory::Entry* entry = directory_.find(peer);
  if (phase_ != Phase::finished || entry == nullptr || entry->suspect || entry->record.phase != Phase::finishing) return false;
  const Link& link = *neighbour.link;
  return link.gain_of_peer() >= whole_gain || link.spoken_at() <= finished_at_ || now - link.spoken_at() >= config_.exchange.heartbeat;
}

// It would still move this model.
bool NodeImpl::is_exchange_under_way() const {
  return std::any_of(neighbours_.begin(), neighbours_.end(), [this](const auto& item) {
    const Directory::Entry* entry = directory_.find(item.first);
    const Link* link = item.second.link.get();
    return entry != nullptr && !entry->suspect && link != nullptr && link->is_open() && (link->owes_at_once() || link->awaits_answer());
  });
}

// All that are not suspected have done their steps and are mixed, and none has the final model: it is the one of the lowest id.
bool NodeImpl::is_elected() const {
  if (own_spread() >= mixed_bound() || is_exchange_under_way()) return false;
  for (const auto& [id, entry] : directory_.entries()) {
    const MemberRecord& record = entry.record;
    if (id == state_.id || record.state != MemberState::alive || entry.suspect) continue;
    if (record.phase == Phase::training || record.phase == Phase::paused || record.phase == Phase::finished) return false;
    if (record.phase != Phase::finishing) continue;  // it has no model yet, or none any more
    if (record.spread >= mixed_bound() || raw(id) < raw(state_.id)) return false;
  }
  return true;
}

void NodeImpl::check_finish(Instant now) {
  if (phase_ != Phase::finishing) return;
  if (config_.exchange.enabled) choose_final_source();
  settled_ = !config_.exchange.enabled || (final_source_ ? has_taken_final_model() : is_elected());
  if (!settled_ && now < finish_deadline_) return;
  std::string why = "the models agree, and this one is the final one";
  if (!settled_) why = "time for the final exchange is up, spread=" + std::to_string(own_spread());
  else if (final_source_) why = "the final model has been taken from peer=" + to_hex(final_source_->peer);
  final_spread_ = final_source_ ? finish_threshold() : 0;  // less than that was not said
  set_phase(Phase::finished, why);
  finished_at_ = now;
  final_source_.reset();
  final_checkpoint_due_ = true;
  renew_own_record(now);
  gossip(now);
  persist_due_ = true;
  if (stage_ == RoundStage::waiting) {
    final_checkpoint_due_ = false;
    emit(CheckpointEffect{true});
  }
}

// Who has settled opens no exchange, but on a link that has come since: the other end may have another final model, after a partition.
bool NodeImpl::rests_on(const Neighbour& neighbour) const {
  if (phase_ != Phase::finished || !settled_) return false;
  const auto session = sessions_.find(neighbour.session);
  return session == sessions_.end() || session->second.opened <= finished_at_;
}

// Two final models that differ, where a link has come since: they are averaged like any others, and every neighbour that hears of it joins in.
void NodeImpl::note_other_final(const Link& link) {
  if (phase_ != Phase::finished || !settled_) return;
  const ExchangeCounters& counters = link.counters();
  const bool mixed = counters.weight > 0.1 && counters.weight < static_cast<double>(whole_gain);  // neither declined nor taken whole
  const bool differs = is_final(link.peer_weight()) && !link.owes_answer() && mixed && counters.spread >= config_.exchange.spread_bound;
  if (differs || is_contested(link.peer_weight())) settled_ = false;
}

// An offer is of no use to who takes the final model from another neighbour, or has it.
bool NodeImpl::declines(NodeId peer, const Link& link) const {
  if (!is_final(link.peer_weight())) return false;
  return phase_ == Phase::finishing ? !takes_from(peer) : rests_on(neighbours_.at(peer));
}

Trigger::Decision NodeImpl::decision_at_rest(const Neighbour& neighbour, NodeId peer, Instant now) const {
  const Link& link = *neighbour.link;
  const double least = finish_threshold();
  if (takes_from(peer)) {
    // What is taken whole needs nothing said; if that does not end it, what the other end has not said.
    const bool long_enough = link.counters().turns_heard > final_source_->turns_heard + turns_until_spoken;
    return {true, long_enough ? least : nothing};
  }
  const bool gives = gives_to(peer, neighbour, now);
  if (gives && !link.owes_answer()) return {true, link.gain_of_peer() >= whole_gain ? least : nothing};
  const bool must = link.owes_answer() || link.owes_keyframes() || phase_ == Phase::leaving;
  if (must || final_source_ || rests_on(neighbour)) return {must, least};
  const bool due = now - link.spoken_at() >= config_.exchange.heartbeat * (phase_ == Phase::finished ? 5 : 1);
  const bool apart = phase_ == Phase::finishing && link.counters().spread >= mixed_bound();
  return {link.largest_change() > least || apart || due, due ? least * heartbeat_threshold_share : least};
}

}  // namespace gossipd
