// tools/lab/references/compression.h - means over all nodes for fewer bytes, as sync-sgd and local
// SGD exchange them.
//
// A MeanExchange replaces every node's vector by (nearly) their mean, bit-identical everywhere, by
// messages over the World. A lossy one keeps what it drops as each node's error and adds it next
// time (error feedback), unless its Feedback says otherwise. One run at a time.
#pragma once

#include <functional>

#include "core/model/schema.h"
#include "tools/lab/references/collectives.h"
#include "tools/lab/references/model_codec.h"

namespace gossipd::lab {

using Vectors = std::vector<std::vector<float>>;  // one of P floats for each node

class MeanExchange {
 public:
  virtual ~MeanExchange() = default;
  // `values` belongs to the caller and must not move until `done`.
  virtual void run(Vectors& values, std::function<void()> done) = 0;
  // Adds each node's error to its values and clears it, before a last exact run by another
  // exchange.
  virtual void pay_back(Vectors&) {}
  // Error, momentum and warm-start state on each node.
  [[nodiscard]] virtual std::uint64_t node_floats() const { return 0; }
};

// Encodes a part of a vector that begins at float `begin`. Returns the number of bytes; `decoded`
// is what the other end decodes.
class Compressor {
 public:
  virtual ~Compressor() = default;
  virtual std::uint64_t compress(std::size_t begin, std::span<const float> target,
                                 std::span<float> decoded) = 0;
};
// gossipd's own codecs (core/codec/codec.h).
[[nodiscard]] std::unique_ptr<Compressor> make_codec_compressor(ModelCodec);
// Sends exactly the share of entries with the largest magnitude, as {index, value}: 8 bytes each.
[[nodiscard]] std::unique_ptr<Compressor> make_top_k_compressor(std::function<double()> share);
// QSGD: each value x of a bucket becomes sign(x)·m·l/levels, m the bucket's largest magnitude and l
// one of the two whole numbers around levels·|x|/m, drawn so that the mean is x. A bucket takes 4
// bytes for m and log2(2·levels + 1) bits for each value, rounded up. Values that are not finite
// travel unchanged.
[[nodiscard]] std::unique_ptr<Compressor> make_qsgd_compressor(std::uint32_t levels,
                                                               std::size_t bucket,
                                                               std::uint64_t seed);

// all_gather: each node sends its compressed vector to all others, (N−1)·S bytes each. two_phase:
// node c receives chunk c of all nodes, averages it, compresses it again (keeping that error as
// well) and sends it to all, 2(N−1)/N·S bytes each. A node's own chunk does not travel and loses
// nothing.
enum class Gather { all_gather, two_phase };

// What a node makes of its values g before it encodes them:
//   u = momentum·u + g ;  v = error·v + u ;  v is encoded; what is decoded leaves v
struct Feedback {
  double error = 1;  // 0: what the code drops is lost
  // Not 0: DGC's momentum correction (Lin et al., ICLR 2018), all_gather only: u is cleared in the
  // entries that were sent. A node alone sends nothing and keeps u. 0: u = g.
  double momentum = 0;
};

[[nodiscard]] std::unique_ptr<MeanExchange> make_exact_exchange(AllReducePlan, Send);
[[nodiscard]] std::unique_ptr<MeanExchange> make_compressed_exchange(std::unique_ptr<Compressor>,
                                                                     Gather, Feedback, Send);
// PowerSGD: every matrix M (first extent × the rest) of at least (n + m)·rank < n·m floats is sent
// as P = M·Q, orthogonalised, and Q' = Mᵀ·P, each averaged by an all-reduce; the rest exactly. Q
// starts each round as the last one's.
[[nodiscard]] std::unique_ptr<MeanExchange> make_low_rank_exchange(const Schema&, std::size_t rank,
                                                                   std::uint64_t seed,
                                                                   AllReducePlan, Send);

}  // namespace gossipd::lab
