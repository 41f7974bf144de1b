// tools/lab/references/worker.h - a reference row's worker: gradients in virtual time.
#pragma once

#include "models/descent/optimizer.h"
#include "models/job/schedule.h"
#include "tools/lab/strategy.h"

namespace gossipd::lab {

using Vector = std::vector<float>;  // P floats

struct Gradient {
  Vector values;  // of the mean loss over the batch; the descent adds weight decay
  // The model's statistics after the batch, one after the other, and what the batch has added to
  // them; none without batch norm.
  Vector statistics, statistics_moved;
  double loss = 0;
  std::uint32_t batch = 0;
  std::size_t worker = 0;
  Duration took{};  // virtual
};

// One machine's place in its data.
class Worker {
 public:
  Worker(Setup& setup, std::size_t index) : setup_(setup), index_(index) {}
  [[nodiscard]] std::size_t index() const { return index_; }
  // Computes the gradient at `at` (copied) of the next `batch` samples of this worker's shard;
  // `done` runs when its virtual time has passed. One at a time for each worker.
  void gradient(const Vector& at, std::uint32_t batch, std::function<void(Gradient)> done);

 private:
  Setup& setup_;
  std::size_t index_;
  Samples position_ = 0;
};

// The job's initial model: the same on every engine of one seed.
[[nodiscard]] Vector initial_model(Setup& setup);

// Gradient::statistics, of a model and back into one.
[[nodiscard]] Vector statistics_of(const Schema& schema, std::span<const float> model);
void set_statistics(const Schema& schema, std::span<const float> statistics,
                    std::span<float> model);
void add_to_statistics(const Schema& schema, const Vector& moved, std::span<float> model);

}  // namespace gossipd::lab
