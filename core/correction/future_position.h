// core/correction/future_position.h - how far a stale replica is moved to the time it is compared
// with.
//
// SMEGA2 (Cohen, Hakimi, Schuster, ICPP 2022) sends a worker the model at its expected future
// position. Without a server a node knows one drift, its own: u, displacement per own step, by
// gradients alone. A replica received at age a_r (in own steps) and compared with an own replica of
// age a_p is moved by c·(a_r − a_p)·u, and the transfer takes `gain` of that. A turn makes two such
// comparisons (EXCHANGE.md): its listener's, when it has been heard, and its speaker's. Pure.
#pragma once

namespace gossipd {

struct FuturePosition {
  double gain = 0;   // of the transfer that is corrected
  double steps = 0;  // own steps of drift that the replica received is moved by
};

// `strength`: c, usually 0.5 … 1. Ages in own optimiser steps since the snapshot was taken that was
// received, and the own one that it is compared with.
[[nodiscard]] inline FuturePosition future_position(double strength, double gain,
                                                    double received_age, double own_age) {
  return {gain, strength * (received_age - own_age)};
}

}  // namespace gossipd
