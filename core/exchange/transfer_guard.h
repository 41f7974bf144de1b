// core/exchange/transfer_guard.h - how much of what a neighbour's model pulls a node takes, block
// by block.
//
// The problem: the key admits a member, it does not make it right. A neighbour whose model was
// ruined, or that lies, pulls this node's model away within any bound on single values.
//
// The answer is self-centred clipping (He, Karimireddy, Jaggi 2022) with a radius that each node
// finds for itself. A transfer of norm t on one block of one link is cut to `reach` times the
// largest of
//
//   how far the node's own steps have moved that block since the last exchange on the link, but at
//     most `travel_growth` times the usual distance (a model that is pulled away makes ever larger
//     steps, and would let itself be pulled ever further);
//   what the other links have asked for lately: the lower median over links of each one's median
//     (without another link: what was taken from this one);
//   `norm_floor` of the block's own norm; `rest_floor` of it at rest, when nothing moves;
//
// and to nothing if t is beyond `absurd` times that norm. In undisturbed runs transfers stay below
// 2 times the first two. If all links pull far, this node is the one that is far away, and it
// follows. An exchange is hard if less than `hard_share` of its transfer was taken. Hard exchanges
// count up, others count down; at `strikes_max` the link offends and rests, and after each offence
// half as many are enough, until `forgiven_after` exchanges in a row were not hard. Only the
// model's update is cut: both ends contract the replicas as before, so these stay bit-identical and
// what was not taken is published again. Outer momentum, which the same exchange brings, has what
// the transfer leaves of the radius (core/exchange/mixer.h).
//
// Does not stop: collusion of more than half of the links, and pulls below the radius. One
// owner.
#pragma once

#include <array>
#include <map>
#include <vector>

#include "core/base/types.h"

namespace gossipd {

class TransferGuard {
 public:
  static constexpr double norm_floor = 0.0025, rest_floor = 0.05;
  static constexpr double travel_growth = 4;
  static constexpr double absurd = 10;
  // a block that is nearly zero counts as if its values were so large
  static constexpr double rms_min = 0.1;
  static constexpr double hard_share = 1.0 / 3;
  static constexpr std::uint32_t strikes_max = 8;
  static constexpr std::uint32_t forgiven_after = 64;
  // transfers of a block on a link that are remembered …
  static constexpr std::size_t history = 8;
  static constexpr std::size_t history_min = 3;  // … and needed

  struct Ask {
    std::size_t block = 0;
    std::size_t floats = 0;  // of the block
    double norm = 0;         // of the transfer
    double travelled = 0;    // by own steps since the last exchange on this link
    double own_norm = 0;     // of the block
    bool training = true;
  };

  // `reach` 0: everything is taken.
  TransferGuard(double reach, std::size_t blocks) : reach_(reach), blocks_(blocks) {}

  // The part of the transfer that is to be taken, 0 to 1. `most`: the furthest that the exchange
  // may move the block; infinite: not known.
  [[nodiscard]] double share(NodeId peer, const Ask&, double* most = nullptr);
  // The exchange is over. True: the link offends and should rest.
  [[nodiscard]] bool finish(NodeId peer);
  // The link is open no more; only what counts against it is kept, of so many peers at most.
  static constexpr std::size_t closed_max = 1024;
  void close(NodeId peer);
  [[nodiscard]] std::size_t remembers() const { return links_.size() + closed_.size(); }

 private:
  struct Past {
    std::array<float, history> asked{}, taken{}, travelled{};
    std::uint32_t count = 0;
    std::uint32_t travels = 0;  // whole transfers after own steps: entries of `travelled`
  };
  struct Conduct {
    std::uint32_t offences = 0, strikes = 0;
    std::uint32_t calm = 0;  // exchanges in a row that were not hard
    auto operator<=>(const Conduct&) const = default;
  };
  struct Of {
    std::vector<Past> past;                       // of each block
    double asked_squared = 0, taken_squared = 0;  // of this exchange
    Conduct conduct;
  };

  Of& link_of(NodeId peer);
  [[nodiscard]] double usual(NodeId peer, std::size_t block) const;
  [[nodiscard]] static double believed_travel(const Past& past, const Ask&);

  const double reach_;
  const std::size_t blocks_;
  bool travels_ = false;  // own steps have led somewhere
  std::map<NodeId, Of> links_;
  std::map<NodeId, Conduct> closed_;
};

}  // namespace gossipd
