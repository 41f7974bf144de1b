// core/exchange/replica_pair.h - the two replicas of a link, block by block, and what is known of
// each block.
//
// The problem: both ends of a link must hold the same pair of replicas, what one has published and
// what the other has, although records are lost, refused and cut off.
//
// The answer: every block has a version for each direction and says whether the peer's replica of
// it is known (no keyframe owed) and whether ours of the peer's is valid. A block is *paired* when
// both ends hold the same two replicas and a turn has brought news of it; only paired blocks are
// contracted, that is drawn together by the gains of the exchange, which both ends know without a
// word. A contraction that is due is made when the next turn changes the block or at the next look.
// Pure; one owner. Memory: 2·P floats, half of that in bf16.
#pragma once

#include <vector>

#include "core/exchange/replica.h"

namespace gossipd {

class ReplicaPair {
 public:
  enum class Which : std::uint8_t { published, received };
  struct BlockState {
    Version published = 0;      // of the last record said
    Version received = 0;       // of the last record taken
    bool keyframe_owed = true;  // the peer's replica of this block is unknown or wrong
    bool received_valid = false;
    bool said = false;         // in the turn spoken last
    bool heard = false;        // in the turn heard last
    bool said_whole = false;   // by a keyframe or mirror of the turn spoken last
    bool heard_whole = false;  // by a keyframe or mirror of the turn heard last
    bool contraction_due = false;
  };

  // Without replicas: no link has been opened.
  explicit ReplicaPair(const Schema& schema) : schema_(schema) {}
  // Empty replicas: every block owes a keyframe and none is valid.
  ReplicaPair(const Schema& schema, bool in_bf16);
  // Of empty replicas: both become `model`, which both ends hold, as if each had said it whole.
  void begin_with(const SharedModel& model);

  [[nodiscard]] bool exists() const { return published_.floats() > 0; }
  [[nodiscard]] bool in_bf16() const { return published_.is_narrow(); }
  [[nodiscard]] std::size_t size() const { return blocks_.size(); }  // blocks; 0 without replicas
  [[nodiscard]] const BlockState& state(std::size_t index) const { return blocks_[index]; }
  [[nodiscard]] std::size_t valid() const { return valid_; }
  [[nodiscard]] std::size_t keyframes_owed() const { return owed_; }
  // Both ends know both replicas of the block.
  [[nodiscard]] bool is_known(std::size_t index) const {
    return blocks_[index].received_valid && !blocks_[index].keyframe_owed;
  }
  // And one of the two is news. A block that goes whole starts with the next exchange: what each
  // end then takes for the other's replica may still differ.
  [[nodiscard]] bool is_paired(std::size_t index) const;

  [[nodiscard]] Replica::Look published(std::size_t index) const {
    return {published_, schema_.blocks()[index]};
  }
  [[nodiscard]] Replica::Look received(std::size_t index) const {
    return {received_, schema_.blocks()[index]};
  }
  // The received block is still that of begin_with().
  [[nodiscard]] bool received_untouched(std::size_t index) const {
    return received_.is_borrowed(schema_.blocks()[index]);
  }
  // `contracted`: as it is once a contraction that is due has been made.
  [[nodiscard]] std::uint64_t hash_of(Which which, std::size_t index, bool contracted) const;
  // Between `model + update` and what is published; in bf16 of what a replica can hold, since a
  // difference below its rounding could be said again and again.
  [[nodiscard]] ChangeNorms change_of(std::size_t index, std::span<const float> model,
                                      std::span<const float> update) const;
  // Between the received and the published block, and what the second is.
  [[nodiscard]] ChangeNorms distance(std::size_t index) const;
  // update += gain · (received − published); returns the square of what it adds.
  double transfer(std::size_t index, std::span<float> update, float gain) const;
  // As a replica would keep the values.
  void round(std::span<float> values) const { published_.round(values); }

  void owe_keyframe(std::size_t index, bool owed = true);
  void invalidate(std::size_t index);  // the received block is of no use until it comes whole
  void begin_speaking();               // a turn begins that has said nothing yet
  void begin_hearing();                // likewise of the peer's
  void mark_said(std::size_t index, bool whole);  // its version is the next one
  void mark_heard_again(std::size_t index) { blocks_[index].heard = true; }  // and nothing changed
  void mark_heard(std::size_t index, Version version, bool whole);

  // What the next contractions move each replica by: gains of this end's model and of the peer's.
  void set_contraction(float own_gain, float peer_gain);
  void set_contraction_due(std::size_t index, bool due) { blocks_[index].contraction_due = due; }
  void contract_all_paired();        // they are due
  void contract(std::size_t index);  // now, if it is due

  void publish(std::size_t index, std::span<const float> values);
  void publish_received(std::size_t index);  // what is published becomes what was received
  // Advances what is published by the delta that `out` then holds; false: nothing has changed.
  [[nodiscard]] bool encode(std::size_t index, Codec codec, std::span<const float> target,
                            std::span<std::byte> out);
  [[nodiscard]] ApplyError apply(std::size_t index, Codec codec, std::span<const std::byte> payload,
                                 float magnitude_max);
  void receive(std::size_t index, std::span<const float> values);

  void check_invariants() const;

 private:
  const Schema& schema_;
  Replica published_, received_;  // of one size and format
  std::vector<BlockState> blocks_;
  std::size_t valid_ = 0;  // blocks that are received_valid
  std::size_t owed_ = 0;   // blocks with keyframe_owed
  float own_gain_ = 0, peer_gain_ = 0;
};

}  // namespace gossipd
