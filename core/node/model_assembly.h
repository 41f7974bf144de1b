// core/node/model_assembly.h - a model for a node that has none, put together from what its
// neighbours tell it.
//
// The problem: a neighbour that tells a joiner its model may die half-way, and one neighbour alone
// is slower than several. So a block counts if any open link holds it, or if a link that has ended
// held it, no longer than `kept_age_max` ago. Each link brings all blocks in the end, because later
// deltas stand on its replica; the joiner chooses where a link begins, so that together they have
// told everything as soon as can be. A model that one neighbour has told from end to end is
// preferred.
//
// Parameters of two nodes fit each other as far as the nodes agree, which is what the exchange is
// for. Batch-norm statistics come from the same link as most parameters, since the link with most
// blocks is asked first; where they do not, some tens of steps renew them. Core strand only.
// Memory: P floats from the first link that ended until clear().
#pragma once

#include <map>
#include <memory>
#include <optional>

#include "core/exchange/link.h"
#include "core/node/model_buffers.h"

namespace gossipd {

// A node that restarts goes on from its own checkpoint, however old; blocks of one model that are
// as far apart are worse than that.
inline constexpr Duration kept_age_max = std::chrono::minutes(10);

class ModelAssembly {
 public:
  using Links = std::map<NodeId, const Link*>;  // that are open
  using Copies = ModelBuffers::Copies;
  struct Sources {
    std::map<NodeId, std::size_t> blocks;  // how many were taken from whom
    bool initial = true;                   // all are those of the initial model
  };

  // Before a link ends: what it holds is kept.
  void keep(NodeId peer, const Link& link, const Schema& schema);
  void clear() { values_.reset(), kept_ = {}, copied_ = {}, is_under_way_ = false; }
  // A message has come on the link of a node that never had a model: its blocks are copied at once,
  // so that little is left to copy when all are there. `into` are those that model() will be called
  // with, zeros before the first call and changed by nobody else until clear().
  void hear(const Link& link, const Schema& schema, const Copies& into);
  // Into both of `into`, with zeros in `local` segments. Nothing while a block is missing, and they
  // stay as they are; or while more are to be copied than blocks of `floats_max` together (at least
  // one), which further calls do: is_under_way().
  [[nodiscard]] std::optional<Sources> model(const Links& links, const Schema& schema, Instant now,
                                             const Copies& into, std::uint64_t floats_max);
  [[nodiscard]] bool is_under_way() const { return is_under_way_; }
  // For each block whether anybody holds it.
  [[nodiscard]] std::vector<bool> held(const Links& links, const Schema& schema, Instant now) const;

 private:
  struct Kept {
    NodeId from{};  // 0: nothing is held
    Instant at{};   // when that node's snapshot was taken
    bool operator==(const Kept&) const = default;
  };
  [[nodiscard]] bool is_kept(std::size_t block, Instant now) const {
    return block < kept_.size() && kept_[block].from != NodeId{} &&
           now - kept_[block].at <= kept_age_max;
  }

  // What has been copied of a block, and so need not be again.
  struct Copied {
    std::pair<std::uint64_t, Version> as{};  // Link::received_as()
    Kept kept{};
    bool operator==(const Copied&) const = default;
  };

  std::unique_ptr<float[]> values_;  // P floats, where kept_ names a node
  std::vector<Kept> kept_;
  std::vector<Copied> copied_;
  bool is_under_way_ = false;
};

// The block that one more neighbour should begin with, where others stand at `positions` and each
// goes on from there through all blocks, past the last to the first: in the middle of what is
// missing on the longest way from one to the next, so that both are done at the same time. Without
// others at the start of the longest run of missing blocks. 0 if none is missing.
[[nodiscard]] std::size_t first_wanted(const Schema& schema, const std::vector<bool>& held,
                                       std::vector<std::size_t> positions);

// Ready::held_flips; what is held beyond the last of held_flips_max is not said.
[[nodiscard]] std::vector<std::uint32_t> flips_of(const std::vector<bool>& held);

}  // namespace gossipd
