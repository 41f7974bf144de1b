// tools/lab/poison.h - what one bad node does to a cluster: bad data, a wild learning rate, or
// lies.
//
// The damage is done where it would be done: to the samples that one node reads, to the rate its
// optimiser steps with (it reports the right one), or to what it says to its neighbours. Only the
// healthy nodes are evaluated. A scenario's [poison] table; README.md beside this file has its
// keys.
#pragma once

#include <memory>

#include "models/data_order.h"
#include "models/data_set.h"

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
    absent,           // the node never starts: what the healthy are due
  };
  Kind kind = Kind::none;
  std::size_t node = 0;  // from 0
  double value = 1e6;
  std::size_t samples = 1;  // value: so many, spread over the shard
  double at_s = 0;
};

// Of one shard whose order is `order`: the same samples, spoilt. Kinds that are not about data give
// `set` back.
[[nodiscard]] std::shared_ptr<const DataSet> poisoned(const PoisonSpec&, const DataSpec&,
                                                      std::shared_ptr<const DataSet> set,
                                                      DataOrder order);

}  // namespace gossipd::lab
