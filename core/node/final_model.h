// core/node/final_model.h - whether the final model that this node has written is still its model,
// and its model the cluster's.
//
// The problem: `final` is written when the members' models agree, but a node that was dead, cut off
// or frozen may come back with another model, and the exchange then moves everybody's. So a node
// that has finished adds up how far its model goes; further than the models may differ from each
// other, it has to finish again and writes `final` anew. The norms of the moves are added up, so
// the sum is an upper bound of the distance to the model that was written. Pure; core strand only.
#pragma once

#include <span>
#include <string>

#include "core/membership/directory.h"

namespace gossipd {

// How far neighbours move the model in one round at rest, relative to its norm.
class RestMove {
 public:
  // Every block of the model, then every piece of the update that moves it.
  void look(std::span<const float> block);
  void move(std::span<const float> update);
  [[nodiscard]] double share() const;

 private:
  double moved_squared_ = 0, norm_squared_ = 0;
};

class FinalModel {
 public:
  // A round at rest has moved the model by this share of its norm.
  void moved(double share) { since_written_ += share; }
  // The model is to be written as soon as it is here, however far it has moved so far; that is off
  // again.
  void want() { is_due_ = true, since_written_ = 0; }
  void cancel() { is_due_ = false; }
  [[nodiscard]] bool is_due() const { return is_due_; }
  // The model as it is goes to disk.
  void written() { is_due_ = false, since_written_ = 0; }
  [[nodiscard]] double moved_since_written() const { return since_written_; }
  [[nodiscard]] bool is_stale(double bound) const { return since_written_ > bound; }

 private:
  double since_written_ = 0;  // upper bound of the distance to what was written
  bool is_due_ = false;
};

// Why the model of another member may not be the final one, "box3 is preparing"; empty: it has made
// its last step, is dead or has left.
[[nodiscard]] std::string why_not_at_end(const Directory::Entry& member);

}  // namespace gossipd
