// core/exchange/turn_sender.h - one end's speaking: what changed, as the messages of a turn.
//
// The problem: a turn is said block by block between training steps, its messages may be lost with
// the connection, and the peer may hold more or less of it than this end believes.
//
// The answer: begin(), prepare() to advance() for each block in order, end(). Encoded deltas are
// kept until the peer's next turn begins, which proves that it holds them; after a reconnect
// resume() says those again that the peer lacks and whose base still matches, and owes a keyframe
// for the rest. Drives the published half of the ReplicaPair. Pure; one owner. Memory: the deltas
// of one turn, with outer momentum of two.
#pragma once

#include <deque>
#include <memory>
#include <unordered_map>

#include "core/exchange/counters.h"
#include "core/exchange/policy.h"
#include "core/exchange/replica_pair.h"
#include "core/wire/turn.h"

namespace gossipd {

// What a node decides about a turn before it speaks.
struct Speech {
  Codec codec;  // for parameter blocks; small and statistic blocks take a finer one
  // Relative change beyond which a block is sent; 0: every block that changed at all; infinite:
  // none; below 0: every block, since those that no turn contains are not mixed.
  double threshold = 0;
  // What a parameter has to change by to be counted among those that go, in top_k; 0: the codec's
  // number goes.
  float entry_cut = 0;
  // the threshold, or what the whole model was held against, for the counters
  double threshold_shown = 0;
  float gain_self = 0;  // both 0: an opening
  float gain_peer = 0;
  float weight = 1;
  std::uint32_t in_flight = 1;  // own openings without an answer, this one included
  Step step = 0;
  float step_seconds = 0;
  Instant snapshot_at{};
  double trust = 1;  // factor on the peer's weight that is in the gains, for the counters
  double loss = 0;   // smoothed training loss at `step`; 0: not known
  double own_step_seconds = 0;

  [[nodiscard]] bool is_opening() const { return gain_self == 0 && gain_peer == 0; }
};

// A delta as it was encoded, to be said or added up again.
struct DeltaRecord {
  std::uint32_t block;
  Version version;
  Codec codec;
  Bytes bytes;  // at the sender with the record's header, at the receiver the payload alone
};

// Deltas in the order in which they were said.
class SaidDeltas {
 public:
  void add(DeltaRecord record) {
    latest_[record.block] = records_.size();
    records_.push_back(std::move(record));
  }
  void clear() {
    records_.clear();
    latest_.clear();
  }
  [[nodiscard]] bool empty() const { return records_.empty(); }
  [[nodiscard]] const std::vector<DeltaRecord>& all() const { return records_; }
  // Null: the block's latest one has another version, or there is none.
  [[nodiscard]] const DeltaRecord* find(std::size_t block, Version version) const {
    const auto found = latest_.find(static_cast<std::uint32_t>(block));
    if (found == latest_.end() || records_[found->second].version != version) return nullptr;
    return &records_[found->second];
  }

 private:
  std::vector<DeltaRecord> records_;
  std::unordered_map<std::uint32_t, std::size_t> latest_;  // of each block
};

class TurnSender {
 public:
  // All must outlive it. `protocol` is what both ends speak.
  TurnSender(const Schema& schema, const ExchangePolicy& policy, std::uint32_t protocol,
             ReplicaPair& replicas, ExchangeCounters& counters);

  // The order in which the first turn says the blocks, each once; empty: the schema's.
  void set_order(std::vector<std::uint32_t> order) { order_ = std::move(order); }
  void begin(const Speech& speech, std::uint32_t turn);
  // A block on its way into the turn, which says it if it owes a keyframe or its change exceeds the
  // threshold. prepare() and encode() may be done for several blocks at once, from the next one on,
  // then commit() one after the other, each before its advance().
  struct Saying {
    std::uint32_t block = 0;
    // `model` and `model + update` are; else the block is not to be encoded, nor any after it
    bool finite = true;
    std::span<float> target;  // in `values`; empty: there is nothing to say
    std::unique_ptr<float[]> values;
    Bytes bytes;  // its records
    struct Record {
      TurnRecord header;
      std::size_t bytes = 0;
    };
    std::vector<Record> records;
  };
  // Of the block `ahead` of the next one; `change` is relative.
  void prepare(Saying&, std::size_t ahead, double change, std::span<const float> model,
               std::span<const float> update) const;
  void encode(Saying&);
  void commit(const Saying&);
  void advance(Instant now);  // to the block after it; a message that is full is sent
  void end(Instant now);      // after the last block: passes the turn

  [[nodiscard]] bool is_speaking() const { return speaking_; }
  [[nodiscard]] std::uint32_t spoken() const { return speaking_ ? turn_before_ : turn_; }
  [[nodiscard]] bool is_done() const { return next_ == schema_.blocks().size(); }
  [[nodiscard]] std::size_t blocks_left() const { return schema_.blocks().size() - next_; }
  [[nodiscard]] std::size_t block_ahead(std::size_t ahead) const {
    return order_.empty() ? next_ + ahead : order_[next_ + ahead];
  }
  // until is_done()
  [[nodiscard]] std::size_t next_block() const { return block_ahead(0); }
  [[nodiscard]] const Speech& speech() const { return speech_; }  // of the last turn begun
  [[nodiscard]] std::uint64_t bytes_of_turn() const {
    return counters_.bytes_sent - bytes_before_turn_;
  }

  // The peer's next turn has begun, so it holds all that was said.
  void acknowledge();
  // The session is gone, and with it what was not handed over.
  void disconnect() { outgoing_ = {}; }
  // A session stands again; `last_turn_unheard`: the peer has not heard the last turn to its end.
  void reconnect(bool last_turn_unheard) { last_turn_unheard_ = last_turn_unheard; }
  // Goes on from what the peer then turns out to hold. False: the last turn would have to be said
  // again with more whole blocks than may wait for the socket, and nothing is; the peer may say
  // that it holds none.
  [[nodiscard]] bool resume(const ReplicaState& held, Instant now);
  // What is published may yet be said again, so nothing may change it but this sender.
  [[nodiscard]] bool may_repeat() const { return speaking_ || last_turn_unheard_; }

  // The delta of this version of a block in this end's latest turn of the exchange; null: none.
  [[nodiscard]] const DeltaRecord* said(std::size_t block, Version version) const;
  // Messages ready to be sent, in order.
  [[nodiscard]] std::vector<SharedBytes> take_messages();

 private:
  // What has not been handed over: a lost session loses it.
  struct Outgoing {
    Bytes message;              // under construction; empty: none is begun
    std::uint16_t records = 0;  // in it
    std::size_t floats = 0;     // that its records tell of: work for the peer, in one piece
    std::deque<SharedBytes> ready;
  };

  void encode_whole(Saying&);
  void encode_record(Saying&, Codec codec, std::span<const float> target, bool fresh = false);
  void append(const DeltaRecord& record);
  void flush_if_full(Instant now);
  void flush(bool last, Instant now);
  [[nodiscard]] Codec codec_for(const Block& block) const;
  // The codec with as many entries as have changed by more than the turn's cut; none: nothing has.
  [[nodiscard]] std::optional<Codec> counted(Codec codec, std::span<const float> target,
                                             std::span<const float> published) const;
  void keep_what_peer_lacks(const ReplicaState& held);
  [[nodiscard]] std::uint64_t floats_owed() const;

  const Schema& schema_;
  const ExchangePolicy& policy_;
  const std::uint32_t protocol_;
  ReplicaPair& replicas_;
  ExchangeCounters& counters_;
  Speech speech_;
  bool speaking_ = false;
  std::uint32_t turn_ = 0;            // the one begun last
  std::uint32_t turn_before_ = 0;     // and the one ended before it
  std::size_t next_ = 0;              // so many blocks of it are said …
  std::vector<std::uint32_t> order_;  // … in this order; empty: the schema's
  Outgoing outgoing_;
  SaidDeltas unacknowledged_;  // and mirrors; the peer has not answered for them
  SaidDeltas answered_;        // of the turn before; only with outer momentum
  bool last_turn_unheard_ = false;
  std::uint64_t bytes_before_turn_ = 0;
};

}  // namespace gossipd
