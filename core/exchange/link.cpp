#include "core/exchange/link.h"

#include <algorithm>
#include <cstring>

#include "core/base/result.h"
#include "core/exchange/change.h"

namespace gossipd {

Link::Epoch::Epoch(Link& link, std::uint64_t number, std::uint32_t protocol_spoken,
                   bool this_end_first, ReplicaPair&& pair)
    : id(number),
      protocol(protocol_spoken),
      speaks_first(this_end_first),
      replicas(std::move(pair)),
      correction(link.policy_.correction),
      sender(link.schema_, link.policy_, protocol, replicas, link.counters_),
      receiver(link.schema_, link.policy_, protocol, replicas, link.counters_, link.report_),
      mixer({link.peer_, link.schema_, link.guard_, replicas, sender, receiver, correction,
             link.counters_}),
      changes(replicas.size()) {}

std::uint32_t Link::Epoch::next_turn() const {
  return std::max(sender.spoken(), receiver.heard()) + 1;
}

// Turns alternate, so the number of the last one heard is not that of the last one spoken.
bool Link::Epoch::is_mine() const {
  if (receiver.heard() == sender.spoken()) return speaks_first;  // none has been said
  return receiver.heard() > sender.spoken();
}

bool Link::Epoch::spoke_opening() const {
  return sender.spoken() > receiver.heard() && sender.speech().is_opening();
}

Link::Link(NodeId self, NodeId peer, const Schema& schema, const ExchangePolicy& policy,
           TransferGuard* guard)
    : self_(self), peer_(peer), schema_(schema), policy_(policy), guard_(guard) {
  epoch_.emplace(*this, 0, 0, false, ReplicaPair(schema));
}

// ---- listening -------------------------------------------------------------------------------

std::optional<Reject> Link::on_turn(std::span<const std::byte> message, double rtt_seconds,
                                    Instant now) {
  Epoch& epoch = *epoch_;
  const bool begins = !epoch.receiver.is_hearing();
  const std::uint32_t turn = is_open() && !epoch.is_mine() ? epoch.next_turn() : 0;
  if (const auto reject = epoch.receiver.hear(message, turn, rtt_seconds, now)) return reject;
  if (begins) epoch.sender.acknowledge();
  if (epoch.receiver.is_hearing()) return std::nullopt;
  const TurnHeader& header = epoch.receiver.last();
  epoch.correction.observe(header.step, static_cast<double>(header.loss));
  epoch.mixer.owe(header.gain_listener);
  if (!epoch.receiver.heard_opening()) {
    epoch.replicas.set_contraction(header.gain_listener, header.gain_speaker);
    epoch.replicas.contract_all_paired();
  }
  return std::nullopt;
}

void Link::on_resync(const Resync& resync) {
  for (const std::uint32_t block : resync.blocks)
    if (block < epoch_->replicas.size()) epoch_->replicas.owe_keyframe(block);
}

// ---- looking ---------------------------------------------------------------------------------

OwnModel Link::block_of(std::size_t index, std::span<const float> model, std::span<float> update,
                        std::span<const float> drift) const {
  const Block& block = schema_.blocks()[index];
  return {block.of(model), block.of(update), drift.empty() ? drift : block.of(drift)};
}

FuturePosition Link::position(double gain, Instant own_at, double own_step_seconds,
                              Instant now) const {
  if (own_step_seconds <= 0 || epoch_->receiver.heard() == 0 || epoch_->sender.spoken() == 0)
    return {};
  // Only the difference of the two ages matters, so both are taken at the same moment.
  return epoch_->correction.position(gain, seconds(now - *report_.received_at) / own_step_seconds,
                                     seconds(now - own_at) / own_step_seconds);
}

void Link::look_begin(std::span<const float> drift, double own_step_seconds, const OuterStep& outer,
                      Instant now, bool trusted) {
  unpublished_change_ = {};
  counters_.change = 0;
  Mixer& mixer = epoch_->mixer;
  mixer.begin_look(outer, trusted,
                   drift.empty() ? FuturePosition{}
                                 : position(static_cast<double>(mixer.owed_gain()), spoken_at_,
                                            own_step_seconds, now));
}

void Link::look(std::size_t index, std::span<const float> model, std::span<float> update,
                std::span<const float> drift) {
  Epoch& epoch = *epoch_;
  const OwnModel own = block_of(index, model, update, drift);
  epoch.mixer.look(index, own);
  epoch.replicas.contract(index);
  if (epoch.replicas.state(index).keyframe_owed) {
    epoch.changes[index] = 1;
    return;
  }
  const ChangeNorms norms = epoch.replicas.change_of(index, own.model, own.update);
  epoch.changes[index] = static_cast<float>(relative(norms, own.model.size()));
  add(unpublished_change_, norms);
  counters_.change = ratio(unpublished_change_);
}

double Link::largest_change() const {
  const std::vector<float>& changes = epoch_->changes;
  double most = 0;
  for (const float change : changes) most = std::max(most, static_cast<double>(change));
  return most;
}

// ---- speaking --------------------------------------------------------------------------------

void Link::begin(const Speech& speech, Instant now) {
  GOSSIPD_ASSERT(my_turn() && !speaking());
  epoch_->mixer.begin_turn(position(static_cast<double>(speech.gain_self), speech.snapshot_at,
                                    speech.own_step_seconds, now));
  epoch_->sender.begin(speech, epoch_->next_turn());
}

bool Link::speak(std::span<const float> model, std::span<float> update,
                 std::span<const float> drift, Instant now) {
  Epoch& epoch = *epoch_;
  const std::size_t index = next_block();
  const OwnModel own = block_of(index, model, update, drift);
  // What we have to say, then our half of this turn.
  const bool paired_before = epoch.replicas.is_known(index);
  if (!epoch.sender.say(static_cast<double>(epoch.changes[index]), own.model, own.update))
    return false;
  const float gain = epoch.sender.speech().gain_self;
  epoch.mixer.speak(index, gain, paired_before, own);
  epoch.replicas.set_contraction_due(index, gain > 0 && epoch.replicas.is_paired(index));
  epoch.sender.advance(now);
  return true;
}

void Link::end(Instant now) {
  epoch_->sender.end(now);
  spoken_at_ = epoch_->sender.speech().snapshot_at;
  epoch_->mixer.end_turn(epoch_->sender.speech());
}

// ---- what can be looked at -------------------------------------------------------------------

std::uint64_t Link::hash_of(Which which, std::size_t index) const {
  return epoch_->replicas.hash_of(which, index, !epoch_->sender.may_repeat());
}

bool Link::is_known(Which which, std::size_t index) const {
  const ReplicaPair::BlockState& state = epoch_->replicas.state(index);
  return which == Which::published ? !state.keyframe_owed : state.received_valid;
}

void Link::copy_received(std::size_t block, std::span<float> out) const {
  const Replica::Look look = epoch_->replicas.received(block);
  const std::span<const float> values = look;
  GOSSIPD_ASSERT(values.size() == out.size());
  std::memcpy(out.data(), values.data(), out.size_bytes());
}

double Link::age_seconds(Instant now) const {
  return report_.received_at ? std::max(0.0, seconds(now - *report_.received_at)) : 0;
}

double Link::peer_loss(Instant now) const {
  if (report_.step_seconds <= 0) return 0;
  return epoch_->correction.peer_loss(age_seconds(now) / report_.step_seconds);
}

void Link::check_invariants() const {
  GOSSIPD_ASSERT(!(epoch_->is_mine() && epoch_->receiver.is_hearing()));
  GOSSIPD_ASSERT(!speaking() || epoch_->is_mine());
  GOSSIPD_ASSERT(!is_open() || epoch_->id != 0);
  epoch_->replicas.check_invariants();
}

}  // namespace gossipd
