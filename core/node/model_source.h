// core/node/model_source.h - where a node's model comes from: the trainer, neighbours or the disk.
//
// The problem: a joiner has no model, a node whose own model is no longer finite must not publish
// it, and both are to have the cluster's soon. Neighbours may end half-way through telling theirs,
// and a model that breaks again and again would be fetched again and again.
//
// The answer: what the neighbours tell is put together block by block (model_assembly.h). A node
// that broke rests first, longer each time (`rest_min`, doubled up to `rest_doublings_max` times,
// and short again after `recovered_after` looks that were believed); with no neighbour to ask it
// has its checkpoint read, once for each break. Core strand; the schema outlives it.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <utility>

#include "core/base/backoff.h"
#include "core/exchange/step_guard.h"
#include "core/node/initial_model.h"
#include "core/node/model_assembly.h"

namespace gossipd {

class ModelSource {
 public:
  static constexpr Duration rest_min = std::chrono::seconds(10);
  static constexpr std::uint32_t rest_doublings_max = 6;
  static constexpr std::uint64_t recovered_after = 500;
  static constexpr std::uint64_t piece_floats = 512 * 1024;

  explicit ModelSource(const Schema& schema) : schema_(schema) {}

  [[nodiscard]] InitialModel& initial() { return initial_; }

  // The trainer stands; `has_model`: with the cluster's parameters, else they are to come.
  void on_trainer_ready(bool has_model) { state_ = has_model ? State::held : State::missing; }
  [[nodiscard]] bool trainer_stands() const { return state_ != State::unprepared; }
  // The trainer has had the cluster's model, even if it is broken by now.
  [[nodiscard]] bool has_model() const { return state_ == State::held; }
  [[nodiscard]] bool is_missing() const { return state_ == State::missing; }

  // ---- neighbours ----
  // A link that tells this node a model, or is asked to: it goes through all blocks from
  // `first_block` on.
  struct Teller {
    const Link& link;
    std::uint32_t first_block = 0;
  };
  // In which order one more neighbour is to tell its blocks: fills that part of `ready`. `open`:
  // the links that may hold blocks; `others`: those that tell already.
  void order_blocks(Ready& ready, const ModelAssembly::Links& open, std::span<const Teller> others,
                    Instant now) const;
  // A turn has come in while the model is missing.
  void hear(const Link& link, const ModelAssembly::Copies& into) {
    assembly_.hear(link, schema_, into);
  }
  // A link ends while a model is needed.
  void keep(NodeId peer, const Link& link) { assembly_.keep(peer, link, schema_); }
  struct Assembled {
    std::string from;      // in words
    bool initial = false;  // it is the job's initial model
  };
  // All blocks are there, and the node does not rest: both copies hold the model now. None: not
  // yet, and the copies of a node that had a model are as they were. A node that never had one
  // copies `piece_floats` at a time, in as many calls as is_assembling() asks for.
  [[nodiscard]] std::optional<Assembled> assemble(const ModelAssembly::Links& open, Instant now,
                                                  const ModelAssembly::Copies& into);
  [[nodiscard]] bool is_assembling() const { return assembly_.is_under_way(); }

  // ---- broken ----
  // The model broke, by what `guard` saw, at `snapshot_at`.
  void on_broken(const StepGuard& guard, Instant snapshot_at);
  // Also of a node that has left and come back since.
  [[nodiscard]] bool is_broken() const { return broken_; }
  void ask_for_checkpoint_again() { checkpoint_asked_ = false; }
  // True, once: nobody can be asked, so the checkpoint is to be read.
  [[nodiscard]] bool wants_checkpoint(std::size_t open_links, Instant now);
  // False: the checkpoint is of no use, and the copies are as they were.
  [[nodiscard]] bool restore(std::span<const float> model, const ModelAssembly::Copies& into) const;

  // The trainer gets the model in the copies.
  void adopted();

 private:
  enum class State : std::uint8_t { unprepared, missing, held };

  const Schema& schema_;
  State state_ = State::unprepared;
  InitialModel initial_;
  ModelAssembly assembly_;  // empty unless a model is needed
  Backoff rests_{rest_min, rest_doublings_max};
  Instant rest_until_{};           // no neighbour's model is taken before
  bool checkpoint_asked_ = false;  // since the model was last sound
  bool broken_ = false;
};

}  // namespace gossipd
