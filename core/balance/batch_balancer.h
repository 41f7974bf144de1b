// core/balance/batch_balancer.h - the minibatch of a node from its speed, so that all steps take
// about equally long.
//
// The problem: machines of unlike speed make steps of unlike length, and the models of slow ones
// are always the oldest.
//
// The answer is DBS-SGD (Ji et al., 2019): b_i = B·s_i / Σ s_j, with s in samples per second and B
// the samples that the cluster takes per step. T = B / Σ s_j is then everybody's step time. Each
// node fits its own t(b) = a + c·b (step_time_fit.h) and takes the batch for which its step takes
// T: b = (T − a)/c (which is T·s_i when a = 0). Here B is the job's batch × the members that train.
// A batch is kept for `balance_steps` own steps at least, so that the smoothed time of a step is
// that of this batch. Seconds, samples. Pure; core strand.
#pragma once

#include <optional>

#include "core/balance/step_time_fit.h"

namespace gossipd {

inline constexpr double balance_dead_band = 0.1;  // a change of the batch by less is not made
inline constexpr Step balance_steps = 8;          // of one batch, before it may change again
// Where a policy sets no bounds (0). Fewer samples make the statistics of batch norm noisy.
inline constexpr std::uint32_t balance_batch_min = 8;
inline constexpr std::uint32_t balance_share_max = 8;  // times the job's

enum class BalanceWeight : std::uint8_t {
  none,
  batch,  // a node's weight in mixing is proportional to its batch
  rate,   // its learning rate is; never both
};

struct BalancePolicy {
  bool enabled = false;
  std::uint32_t batch_min = 0;  // 0: balance_batch_min, or the job's batch if that is smaller
  std::uint32_t batch_max = 0;  // 0: balance_share_max times the job's
  BalanceWeight weight = BalanceWeight::batch;
};

struct BatchBounds {
  std::uint32_t least = 1;
  std::uint32_t most = 1;
};
[[nodiscard]] BatchBounds batch_bounds(const BalancePolicy&, std::uint32_t job_batch);

class BatchBalancer {
 public:
  // What a snapshot tells of the node's own steps.
  struct Pace {
    Step step = 0;
    double step_seconds = 0;      // of a step of `batch` samples, smoothed
    std::uint32_t batch = 0;      // that the trainer has now; 0: not known yet
    std::uint32_t job_batch = 0;  // the job's
  };
  // The other members that train.
  struct Others {
    std::uint32_t members = 0;
    double samples_per_second = 0;  // of all of them together
  };

  explicit BatchBalancer(const BalancePolicy& policy) : policy_(policy) {}  // which must outlive it

  // A snapshot of a training node has come. True: the wanted batch is not the trainer's.
  bool on_snapshot(const Pace&, const Others&);
  // The batch that the trainer is to take from now on; 0: the job's.
  [[nodiscard]] std::uint32_t wanted() const { return wanted_; }
  // The wanted batch over the job's; 1 without balancing.
  [[nodiscard]] double share(std::uint32_t job_batch) const {
    return wanted_ > 0 && job_batch > 0 ? static_cast<double>(wanted_) / job_batch : 1.0;
  }
  // The largest share that any member can have: what a peer's claim is cut to.
  [[nodiscard]] double share_max(std::uint32_t job_batch) const;
  [[nodiscard]] bool weighs_mixing() const { return policy_.weight == BalanceWeight::batch; }
  [[nodiscard]] bool weighs_rate() const { return policy_.weight == BalanceWeight::rate; }

 private:
  const BalancePolicy& policy_;
  StepTimeFit fit_;
  std::uint32_t wanted_ = 0;  // 0 until the first choice
  // The trainer has had `steady_batch_` since `steady_since_`; 0: no snapshot has come yet.
  std::uint32_t steady_batch_ = 0;
  Step steady_since_ = 0;
};

// The batch for which a step takes as long as everybody's: `cluster_batch` is B,
// `others_samples_per_second` Σ s_j without this node. `current` is kept when nothing has been
// observed, or when the change would be within the dead band.
[[nodiscard]] std::uint32_t balanced_batch(BatchBounds, const StepTimeFit&, std::uint32_t current,
                                           double cluster_batch, double others_samples_per_second);

}  // namespace gossipd
