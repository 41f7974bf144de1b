// core/node/initial_model.h - the job's initial model, from which nodes that begin together begin.
//
// The problem: when a cluster starts, every link carries a model, a quarter of its fp32 bytes or
// more, to an end that could have made the same model from the job.
//
// The answer: while a node is at most `age_max` own steps away from the initial model it names its
// hash when a link opens. Where both ends name the same, both replicas begin as that model and a
// joiner trains from it; the rest follows in ordinary deltas. A node that began from another's word
// counts that node's steps too, so no chain of joiners goes on with an old model. What another
// release or LibTorch makes of the job has another hash: then a model is sent as ever. Core strand.
// Memory: P floats until the node is further away, and while a link is about to open.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "core/base/types.h"
#include "core/codec/kernels.h"

namespace gossipd {

class InitialModel {
 public:
  using Values = std::shared_ptr<const std::vector<float>>;

  // Empty: not known. `hash`: XXH3-64 of the values; 0: it is computed here.
  void hold(std::vector<float> values, std::uint64_t hash = 0) {
    hash_ = values.empty() ? 0 : hash != 0 ? hash : kernels().hash(values);
    values_ = hash_ == 0 ? nullptr : std::make_shared<const std::vector<float>>(std::move(values));
    inherited_ = 0;
  }
  // This node begins from it as a member does that is `age` steps away.
  void inherit(Step age) { inherited_ = age; }
  // This node begins from another model.
  void forget() { hold({}); }
  void on_step(Step own, Step age_max) {
    own_ = own;
    if (values_ && (own_ > age_max || inherited_ > age_max - own_)) hold({});
  }
  [[nodiscard]] const Values& values() const { return values_; }  // null: not known, or too far
  [[nodiscard]] std::uint64_t hash() const { return hash_; }      // 0: likewise
  [[nodiscard]] Step age() const { return values_ ? own_ + inherited_ : 0; }

 private:
  Values values_;
  std::uint64_t hash_ = 0;
  Step own_ = 0;
  Step inherited_ = 0;
};

}  // namespace gossipd
