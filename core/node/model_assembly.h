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
  using Sources = std::map<NodeId, std::size_t>;  // how many blocks were taken from whom

  // Before a link ends: what it holds is kept.
  void keep(NodeId peer, const Link& link, const Schema& schema);
  void clear() { values_.reset(), kept_ = {}, told_ = {}; }
  // A message has come on the link of a node that never had a model: its blocks are copied at once,
  // so that little is left to copy when all are there. `into` are those that model() will be called
  // with, and zeros before the first call.
  void hear(const Link& link, const Schema& schema, const Copies& into);
  // Into both of `into`, with zeros in `local` segments. While a block is missing nothing, and they
  // stay as they are.
  [[nodiscard]] std::optional<Sources> model(const Links& links, const Schema& schema, Instant now,
                                             const Copies& into) const;
  // For each block whether anybody holds it.
  [[nodiscard]] std::vector<bool> held(const Links& links, const Schema& schema, Instant now) const;

 private:
  struct Kept {
    NodeId from{};  // 0: nothing is held
    Instant at{};   // when that node's snapshot was taken
  };
  [[nodiscard]] bool is_kept(std::size_t block, Instant now) const {
    return block < kept_.size() && kept_[block].from != NodeId{} &&
           now - kept_[block].at <= kept_age_max;
  }

  std::unique_ptr<float[]> values_;  // P floats, where kept_ names a node
  std::vector<Kept> kept_;
  // Link::received_as() of the blocks that hear() has copied
  std::vector<std::pair<std::uint64_t, Version>> told_;
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
