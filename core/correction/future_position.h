// core/correction/future_position.h - how far a stale replica is moved to the time it is compared with.
//
// SMEGA2 (Cohen, Hakimi, Schuster, ICPP 2022) sends a worker the model at its expected future position. Without a
// server a node knows one drift, its own: u, displacement per own step, by gradients alone. A replica received at age
// a_r (in own steps) and compared with an own replica of age a_p is moved by (a_r − a_p)·u. A speech makes two such
// comparisons (EXCHANGE.md): with what it published before, weighed by the gain of the turn it heard, and with what it
// publishes now, weighed by its own gain. Ages and steps are in own optimiser steps. Pure.
#pragma once

namespace gossipd {

struct ReplicaAges {
  double received = 0;   // since the peer took the snapshot that was received
  double published = 0;  // … since the own snapshot that was published before
  double fresh = 0;      // … since the own snapshot that is published now
};

struct FuturePosition {
  double strength = 0;     // c, usually 0.5 … 1
  double heard_steps = 0;  // age of the received − of the published replica
  double own_steps = 0;    // age of the received − of the fresh replica
  double heard_gain = 0;
  double own_gain = 0;
  // Own steps of drift that the update gets, when the drift is taken as constant.
  [[nodiscard]] double steps() const { return strength * (heard_gain * heard_steps + own_gain * own_steps); }
};

[[nodiscard]] inline FuturePosition future_position(double strength, const ReplicaAges& ages, double heard_gain, double own_gain) {
  return {strength, ages.received - ages.published, ages.received - ages.fresh, heard_gain, own_gain};
}

}  // namespace gossipd
