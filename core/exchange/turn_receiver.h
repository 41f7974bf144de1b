// core/exchange/turn_receiver.h - one end's hearing: a peer's turn, message by message, taken into
// the replica of the peer's model.
//
// The problem: messages come from outside, in pieces, perhaps twice after a reconnect, perhaps with
// a base that this end does not hold, perhaps wrong.
//
// The answer: a message whose structure, turn or bounds do not fit changes nothing. A record that
// does not fit changes nothing but its own block: that one is not used until it comes whole, which
// take_resync() asks for. Blocks that go whole are decoded beside the replica and copied only if
// their hash is right. Drives the received half of the ReplicaPair. Pure; one owner. Memory: with
// outer momentum the deltas of one turn.
#pragma once

#include <optional>
#include <unordered_map>

#include "core/base/workers.h"
#include "core/exchange/counters.h"
#include "core/exchange/policy.h"
#include "core/exchange/replica_pair.h"
#include "core/exchange/turn_bounds.h"
#include "core/exchange/turn_sender.h"
#include "core/wire/turn.h"

namespace gossipd {

inline constexpr float keyframe_magnitude_max = 1e6f;  // of a value of a block that goes whole

// What the peer's turns have told of the peer itself.
struct PeerReport {
  float weight = 1;
  std::uint32_t in_flight = 1;  // exchanges it has opened and that are not answered, at least 1
  double step_seconds = 0;
  double loss = 0;     // smoothed, by its last complete turn; 0: none yet
  Instant heard_at{};  // when the snapshot of the last message was taken, by our clock
  // The same of the last complete turn.
  std::optional<Instant> received_at;
};

class TurnReceiver {
 public:
  // All must outlive it. `protocol` is what both ends speak.
  // `workers` take several blocks at once; null: one after the other.
  TurnReceiver(const Schema& schema, const ExchangePolicy& policy, std::uint32_t protocol,
               ReplicaPair& replicas, ExchangeCounters& counters, PeerReport& report,
               Workers* workers = nullptr);

  // `turn`: the one that the peer may say now; 0: none. Nothing: the message is taken, and
  // is_hearing() tells whether its turn goes on.
  [[nodiscard]] std::optional<Reject> hear(std::span<const std::byte> message, std::uint32_t turn,
                                           double rtt_seconds, Instant now);
  // A turn has begun on this session and not ended.
  [[nodiscard]] bool is_hearing() const { return hearing_; }
  [[nodiscard]] std::uint32_t heard() const { return last_.turn; }  // the last complete turn
  [[nodiscard]] const TurnHeader& last() const { return last_; }    // and what it said
  // It wants an answer.
  [[nodiscard]] bool heard_opening() const {
    return heard() > 0 && last_.gain_speaker == 0 && last_.gain_listener == 0;
  }

  void disconnect() { hearing_ = false; }
  // What the peer has said without an answer it may now say again.
  void reconnect();

  // Blocks that were refused since the last call.
  [[nodiscard]] std::vector<std::uint32_t> take_resync() { return std::exchange(resync_, {}); }
  // Of the last message.
  [[nodiscard]] const std::vector<std::uint32_t>& blocks_heard() const { return blocks_heard_; }
  // The delta of this version of a block in the turn heard last; null: none.
  [[nodiscard]] const DeltaRecord* heard_delta(std::size_t block, Version version) const;

 private:
  [[nodiscard]] std::optional<Reject> admit(std::span<const std::byte> message, std::uint32_t turn,
                                            TurnHeader& header, std::vector<TurnRecord>& records);
  // A record on its way into the replica.
  struct Taking {
    const TurnRecord* record;
    bool duplicate = false;
    std::optional<Reject> reject;
  };
  void take_all(std::span<const TurnRecord> records);
  void take(Taking&);          // of several blocks at once
  void commit(const Taking&);  // in their order
  [[nodiscard]] std::optional<Reject> take_whole(const TurnRecord& record);
  [[nodiscard]] std::optional<Reject> take_delta(const TurnRecord& record);
  void refuse(std::size_t block, Reject reason);

  const Schema& schema_;
  const ExchangePolicy& policy_;
  const std::uint32_t protocol_;
  ReplicaPair& replicas_;
  ExchangeCounters& counters_;
  PeerReport& report_;
  Workers* const workers_;
  TurnHeader last_;  // of the last message of the last complete turn
  bool hearing_ = false;
  bool repeats_ = false;            // no turn has been heard to its end since the last reconnect
  std::uint32_t hearing_turn_ = 0;  // to which the flags `heard` of the blocks belong
  TurnBounds bounds_;               // of that turn
  std::unordered_map<std::uint32_t, DeltaRecord> deltas_;  // its latest of each block
  std::vector<std::uint32_t> resync_;
  std::vector<std::uint32_t> blocks_heard_;
};

}  // namespace gossipd
