// core/node/model_buffers.h - the memory of a node's model: two buffers of P floats, three names.
//
// The problem: a round needs the model as it was handed out (own steps are measured against it),
// the snapshot, and the update under construction. Three buffers of P floats are too much, and all
// three are never needed at once.
//
// The answer: two buffers change hands, so that each name has one meaning and is empty when it
// means nothing. One of them is with the trainer while it trains.
//
//     after                 handed_out        snapshot   update
//     prepare()             zeros, unknown    -          zeros
//     give_update()         x + update        -          -         the trainer has it
//     take_snapshot()       x + update        x'         -
//     begin_update()        -                 x'         (the model as handed out, to be cleared)
//     give_update()         x' + update'      -          -         the trainer has it
//
// A round that breaks off ends in abandon(): both buffers are here, hold nothing of value, and are
// called handed_out and update, ready for adopt(). Core strand. Memory: 2·P floats, less what the
// trainer holds.
#pragma once

#include <vector>

#include "core/exchange/trainer_port.h"

namespace gossipd {

class ModelBuffers {
 public:
  // Two buffers of one size, zeros.
  void prepare(RoundBuffers buffers, Step step);

  // The trainer gives its buffer back.
  void take_snapshot(std::vector<float> model);
  // True: handed_out() is the model that the trainer was given at step handed_out_step(), with
  // whatever neighbours had moved it by. False before the first round of a model.
  [[nodiscard]] bool handed_out_known() const { return handed_out_known_; }
  [[nodiscard]] Step handed_out_step() const { return handed_out_step_; }
  [[nodiscard]] std::span<float> handed_out() { return handed_out_; }
  [[nodiscard]] std::span<const float> handed_out() const { return handed_out_; }
  [[nodiscard]] std::span<const float> snapshot() const { return snapshot_; }
  [[nodiscard]] std::span<float> update() { return update_; }
  [[nodiscard]] std::span<const float> update() const { return update_; }

  // The buffer of handed_out() is the update from now on, which its owner clears block by block;
  // the snapshot is what the trainer is at.
  void begin_update(Step step);
  // snapshot += update, from `first` on, `count` floats: returns the sum of squares of the update.
  double apply(std::size_t first, std::size_t count);
  // The update, applied to the whole snapshot, which is now what is handed out.
  [[nodiscard]] std::vector<float> give_update();
  // The snapshot is not believed: the trainer gets what it was handed out, as its parameters.
  [[nodiscard]] std::vector<float> give_back_handed_out(Step step);
  // The same, but the round goes on: the snapshot is what was handed out, and give_model() ends it.
  void undo_steps();
  // Like give_update(), but the whole model instead of the update.
  [[nodiscard]] std::vector<float> give_model();
  // An update of zeros, while neither a snapshot nor an update is under way.
  [[nodiscard]] std::vector<float> give_zeros();

  // The round ends here, whatever it had come to.
  void abandon();
  // After prepare() or abandon(): both are filled with one model, which adopt() hands out.
  struct Copies {
    std::span<float> a, b;
  };
  [[nodiscard]] Copies copies() { return {update_, handed_out_}; }
  [[nodiscard]] std::vector<float> adopt(Step step);

 private:
  std::vector<float> handed_out_, snapshot_, update_;  // each of P floats, or empty
  bool handed_out_known_ = false;
  Step handed_out_step_ = 0;
  bool update_is_zero_ = false;  // since prepare(), until it is given away
};

}  // namespace gossipd
