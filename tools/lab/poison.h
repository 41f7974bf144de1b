// tools/lab/poison.h - one bad node in a cluster: bad data, a wild learning rate, or lies.
//
// The damage occurs where it would in reality: in the samples that the node reads, in its
// optimiser's rate (it reports the right one), or in what it publishes. Only the healthy nodes are
// evaluated. README.md beside this file has the keys of a scenario's [poison] table.
#pragma once

#include <memory>

#include "models/data/data_order.h"
#include "models/data/data_set.h"

namespace gossipd::lab {

struct PoisonSpec {
  enum class Kind : std::uint8_t {
    none,
    value,            // some samples hold one input of `value`
    scale,            // all inputs times `value`
    random_labels,    // drawn by sample
    permuted_labels,  // the next class
    rate,             // the learning rate times `value`, from at_s on
    lie,              // weight 1e9, a model of `value`, then deltas of 60; from at_s on
    absent,           // the node never starts: the baseline for the healthy
  };
  Kind kind = Kind::none;
  std::size_t node = 0;  // from 0
  double value = 1e6;
  std::size_t samples = 1;  // value: this many, spread over the shard
  double at_s = 0;
};

// The samples of one shard, whose order is `order`, with the defect. Kinds that do not concern data
// return `set`.
[[nodiscard]] std::shared_ptr<const DataSet> poisoned(const PoisonSpec&, const DataSpec&,
                                                      std::shared_ptr<const DataSet> set,
                                                      DataOrder order);

}  // namespace gossipd::lab
