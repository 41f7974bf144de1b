// tools/lab/references/reference.h - the common part of all reference rows: budget, gradients,
// messages, the end.
//
// Samples are taken before they are trained on (take()), so every row trains on the same number of
// them, however many batches are under way. A row is finished when all are taken and no gradient or
// message is under way. Reference rows have no failures: no machine dies, freezes or joins, and no
// wire is cut.
#pragma once

#include "tools/lab/references/worker.h"

namespace gossipd::lab {

class Reference : public Strategy {
 public:
  void start(Setup& setup) final;
  [[nodiscard]] bool finished() const final { return closed_ && under_way_ == 0; }

 protected:
  using Action = World::Action;

  // The first events; the accessors below are valid from here on.
  virtual void begin() = 0;
  // Once, when the samples are spent and nothing is under way; may send a last round.
  virtual void close() {}

  [[nodiscard]] Setup& setup() const { return *setup_; }
  [[nodiscard]] const Job& job() const { return setup_->job; }
  [[nodiscard]] std::size_t nodes() const { return setup_->nodes(); }
  [[nodiscard]] const Schema& schema() const { return setup_->engines[0]->schema(); }
  [[nodiscard]] std::size_t floats() const { return initial_.size(); }
  // The first ones: statistics and counters follow, which no optimiser moves.
  [[nodiscard]] std::size_t parameter_floats() const;
  [[nodiscard]] std::uint64_t model_bytes() const { return 4 * floats(); }
  [[nodiscard]] const Vector& initial() const { return initial_; }
  // Of the job's optimiser, for each model that it moves.
  [[nodiscard]] std::uint64_t optimizer_floats() const {
    return optimizer_vectors(job().optimizer) * floats();
  }
  // The schedule's rate for the samples that the cluster has trained on.
  [[nodiscard]] double learning_rate() const {
    return learning_rate_at(job(), setup_->recorder.samples());
  }
  [[nodiscard]] bool warming_up() const { return is_warming_up(job(), setup_->recorder.samples()); }

  // Takes `batch` samples of the budget; false when none are left.
  [[nodiscard]] bool take(std::uint64_t batch);
  [[nodiscard]] bool exhausted() const { return taken_ >= setup_->recorder.budget; }
  void gradient(std::size_t worker, const Vector& at, std::uint32_t batch,
                std::function<void(Gradient)> done);
  // For a row whose formula assumes SGD.
  [[nodiscard]] static std::optional<std::string> sgd_only(const Job&, const std::string& reason);
  // A message of `bytes`; its frames and TLS records are counted on top.
  void send(std::size_t from, std::size_t to, std::uint64_t bytes, Action arrived);
  void trained(const Gradient& gradient, double age_steps) {
    setup_->recorder.trained(gradient.worker, gradient.batch, gradient.loss, age_steps);
  }

 private:
  void settle();  // after everything that was under way

  Setup* setup_ = nullptr;
  Vector initial_;
  std::vector<Worker> workers_;
  Samples taken_ = 0;
  std::uint64_t under_way_ = 0;
  bool closed_ = false;
};

}  // namespace gossipd::lab
