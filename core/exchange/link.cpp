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
      receiver(link.schema_, link.policy_, protocol, replicas, link.counters_, link.report_,
               link.workers_),
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
           TransferGuard* guard, Workers* workers)
    : self_(self), peer_(peer), schema_(schema), policy_(policy), guard_(guard), workers_(workers) {
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

std::size_t Link::on_resync(const Resync& resync) {
  const std::size_t owed = epoch_->replicas.keyframes_owed();
  for (const std::uint32_t block : resync.blocks)
    if (block < epoch_->replicas.size()) epoch_->replicas.owe_keyframe(block);
  return epoch_->replicas.keyframes_owed() - owed;
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

void Link::look(std::size_t first, std::span<const float> model, std::span<float> update,
                std::span<const float> drift, std::size_t count) {
  Epoch& epoch = *epoch_;
  Workers* const workers = drift.empty() ? workers_ : nullptr;  // a drift is followed in order
  GOSSIPD_ASSERT(drift.empty() || count == 1);
  struct Piece {
    OwnModel own;
    std::optional<Mixer::Half> half;
    ChangeNorms change;
  };
  std::vector<Piece> pieces(count);
  for (std::size_t i = 0; i < count; ++i) {
    pieces[i].own = block_of(first + i, model, update, drift);
    pieces[i].half = epoch.mixer.begin_half(first + i, pieces[i].own);
  }
  for_each(workers, count, [&](std::size_t i) {
    if (pieces[i].half) epoch.mixer.measure(*pieces[i].half);
  });
  for (Piece& piece : pieces)
    if (piece.half) epoch.mixer.decide(*piece.half);
  for_each(workers, count, [&](std::size_t i) {
    Piece& piece = pieces[i];
    if (piece.half) epoch.mixer.apply(*piece.half);
    epoch.replicas.contract(first + i);
    if (!epoch.replicas.state(first + i).keyframe_owed)
      piece.change = epoch.replicas.change_of(first + i, piece.own.model, piece.own.update);
  });
  for (std::size_t i = 0; i < count; ++i) {
    const Piece& piece = pieces[i];
    if (piece.half) {
      epoch.mixer.account(*piece.half);
      epoch.mixer.end_half(*piece.half);
    }
    const bool owed = epoch.replicas.state(first + i).keyframe_owed;
    epoch.changes[first + i] =
        owed ? 1.0f : static_cast<float>(relative(piece.change, piece.own.model.size()));
    if (!owed) add(unpublished_change_, piece.change);
  }
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
  epoch_->mixer.begin_turn(speech, position(static_cast<double>(speech.gain_self),
                                            speech.snapshot_at, speech.own_step_seconds, now));
  epoch_->sender.begin(speech, epoch_->next_turn());
}

bool Link::speak(std::span<const float> model, std::span<float> update,
                 std::span<const float> drift, Instant now, std::size_t count) {
  Epoch& epoch = *epoch_;
  Workers* const workers = drift.empty() ? workers_ : nullptr;
  GOSSIPD_ASSERT(drift.empty() || count == 1);
  const float gain = epoch.sender.speech().gain_self;
  struct Piece {
    TurnSender::Saying saying;
    OwnModel own;
    Mixer::Half half;
  };
  std::vector<Piece> pieces(count);
  for_each(workers, count, [&](std::size_t i) {
    const std::size_t index = epoch.sender.block_ahead(i);
    Piece& piece = pieces[i];
    piece.own = block_of(index, model, update, drift);
    piece.half = epoch.mixer.half_of_turn(index, gain, epoch.replicas.is_known(index), piece.own);
    epoch.sender.prepare(piece.saying, i, static_cast<double>(epoch.changes[index]),
                         piece.own.model, piece.own.update);
  });
  const auto bad = std::ranges::find_if(pieces, [](const Piece& p) { return !p.saying.finite; });
  const bool finite = bad == pieces.end();
  pieces.erase(bad, pieces.end());
  for_each(workers, pieces.size(), [&](std::size_t i) { epoch.sender.encode(pieces[i].saying); });
  for (Piece& piece : pieces) {
    epoch.sender.commit(piece.saying);
    epoch.sender.advance(now);
  }
  // What we have to say, then our half of this turn; an opening has none.
  if (!epoch.sender.speech().is_opening()) {
    for_each(workers, pieces.size(), [&](std::size_t i) { epoch.mixer.measure(pieces[i].half); });
    for (Piece& piece : pieces) epoch.mixer.decide(piece.half);
    for_each(workers, pieces.size(), [&](std::size_t i) { epoch.mixer.apply(pieces[i].half); });
    for (const Piece& piece : pieces) epoch.mixer.account(piece.half);
  }
  for (const Piece& piece : pieces) {
    epoch.replicas.set_contraction_due(piece.half.block,
                                       gain > 0 && epoch.replicas.is_paired(piece.half.block));
  }
  return finite;
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
