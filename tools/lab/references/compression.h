// tools/lab/references/compression.h - means over all nodes that cost fewer bytes: what sync-sgd
// and local SGD exchange.
//
// A MeanExchange replaces the vector of every node by (nearly) their mean, the same bits
// everywhere, by messages over the World. What a lossy one drops is kept per node as error and
// added the next time (error feedback). One run at a time.
#pragma once

#include "core/codec/codec.h"
#include "core/model/schema.h"
#include "tools/lab/references/collectives.h"

namespace gossipd::lab {

using Vectors = std::vector<std::vector<float>>;  // one of P floats for each node

class MeanExchange {
 public:
  virtual ~MeanExchange() = default;
  // `values` stays the caller's and put until `done`.
  virtual void run(Vectors& values, std::function<void()> done) = 0;
  // Adds what is still owed to each node's values and owes nothing any more: before a last, exact
  // run by another exchange.
  virtual void pay_back(Vectors&) {}
  // Error and warm-start state on each node.
  [[nodiscard]] virtual std::uint64_t node_floats() const { return 0; }
};

// How one vector becomes bytes. Returns their number; `decoded` is what the other end makes of
// them.
class Compressor {
 public:
  virtual ~Compressor() = default;
  virtual std::uint64_t compress(std::span<const float> target, std::span<float> decoded) = 0;
};
// gossipd's own codecs (core/codec/codec.h). Values that no codec takes (not finite) travel as
// they are: a run that has diverged stays so.
[[nodiscard]] std::unique_ptr<Compressor> make_codec_compressor(Codec);
// The share of entries that are largest in magnitude, exactly, as {index, value}: 8 bytes each.
[[nodiscard]] std::unique_ptr<Compressor> make_top_k_compressor(double share);

// all_gather: everybody sends its compressed vector to everybody, (N−1)·S bytes each.
// two_phase: node c is sent chunk c of everybody, averages and compresses it once more (keeping the
// error of that as well) and sends it to everybody, 2(N−1)/N·S bytes each. A node's own chunk does
// not travel and loses nothing.
enum class Gather { all_gather, two_phase };

[[nodiscard]] std::unique_ptr<MeanExchange> make_exact_exchange(AllReducePlan, Send);
// Each round the error carried over is multiplied by `error_decay` first.
[[nodiscard]] std::unique_ptr<MeanExchange> make_compressed_exchange(std::unique_ptr<Compressor>,
                                                                     Gather, double error_decay,
                                                                     Send);
// PowerSGD: every matrix M (first extent × the rest) of at least (n + m)·rank < n·m floats is sent
// as P = M·Q, orthogonalised, and Q' = Mᵀ·P, each averaged by an all-reduce; the rest exactly. Q
// starts each round as the last one's.
[[nodiscard]] std::unique_ptr<MeanExchange> make_low_rank_exchange(const Schema&, std::size_t rank,
                                                                   std::uint64_t seed,
                                                                   AllReducePlan, Send);

}  // namespace gossipd::lab
