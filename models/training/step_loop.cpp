#include "models/training/step_loop.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "core/base/result.h"
#include "core/codec/kernels.h"

namespace gossipd {
namespace {

constexpr double loss_smoothing = 0.02;          // least weight of the newest batch
constexpr double step_seconds_smoothing = 0.1;   // weight of the newest step
constexpr double outside_batch_smoothing = 0.1;  // weight of the newest word of outside steps
constexpr double batch_max = std::numeric_limits<std::uint32_t>::max();

double smoothed(double before, double now, double weight, bool first) {
  return first ? now : before + weight * (now - before);
}

}  // namespace

// The mean of all at first, so that a slow node does not report the first batch's loss for long.
void StepLoop::note_loss(double loss) {
  ++losses_;
  loss_ = smoothed(loss_, loss, std::max(loss_smoothing, 1 / static_cast<double>(losses_)),
                   losses_ == 1);
}

void StepLoop::restore(const Counters& counters, std::optional<double> loss) {
  step_ = counters.step;
  samples_ = counters.samples;
  data_position_ = counters.data_position;
  loss_ = loss.value_or(0);
  losses_ = loss ? static_cast<Step>(1 / loss_smoothing) : 0;
  if (loan_) loan_->snapshot.reset();  // was of another model
}

void StepLoop::take(Update update) {
  GOSSIPD_ASSERT(!loan_);
  if (update.replace) {
    losses_ = 0;
    loss_worst_ = 0;
    not_finite_ = !kernels().all_finite(update.values);
  }
  holding_ = false;
  told_to_train_ = update.training;
  if (!steps_outside_) {
    const std::uint32_t batch = update.batch > 0 ? update.batch : job_batch_;
    if (batch != batch_) step_seconds_ = 0;
    batch_ = batch;
    rate_scale_ = update.rate_scale;
  }
  loan_ = Loan{std::move(update.values), update.snapshot_step};
}

void StepLoop::request_snapshot() {
  if (loan_) loan_->requested = true;
}

StepLoop::State StepLoop::at_boundary(const Cluster& cluster) {
  if (holding_)
    state_ = State::holding;
  else if (samples_ + cluster.others >= cluster.budget)
    state_ = State::finished;
  else
    state_ = told_to_train_ ? State::training : State::holding;
  return state();
}

StepLoop::Next StepLoop::next() const {
  if (loan_ && !loan_->snapshot && (is_urgent() || step_ >= loan_->due))
    return Next::begin_snapshot;
  return state() == State::training ? Next::step : Next::wait;
}

bool StepLoop::is_urgent() const {
  return loan_ && (loan_->requested || state() != State::training);
}

std::span<float> StepLoop::begin_snapshot(const Rates& rates) {
  GOSSIPD_ASSERT(loan_ && !loan_->snapshot);
  Snapshot& snapshot = loan_->snapshot.emplace();
  snapshot.step = step_;
  snapshot.samples = samples_;
  snapshot.loss = loss_;
  snapshot.loss_worst = std::exchange(loss_worst_, 0.0);
  snapshot.learning_rate = rates.now * rate_scale_;
  snapshot.learning_rate_peak = rates.peak * rate_scale_;
  snapshot.step_seconds = step_seconds_;
  snapshot.batch = batch_;
  snapshot.job_batch = job_batch_;
  snapshot.batch_is_fixed = steps_outside_;
  return loan_->buffer;
}

Snapshot StepLoop::hand_over() {
  GOSSIPD_ASSERT(is_filling());
  Snapshot snapshot = std::move(*loan_->snapshot);
  snapshot.model = std::move(loan_->buffer);
  snapshot.finite = !not_finite_;
  loan_.reset();
  return snapshot;
}

void StepLoop::on_step(const MadeStep& made) {
  ++step_;
  samples_ += batch_;
  data_position_ = made.next_position;
  loss_worst_ = std::max(loss_worst_, made.loss);
  if (std::isfinite(made.loss))
    note_loss(made.loss);
  else
    not_finite_ = true;
  step_seconds_ = smoothed(step_seconds_, made.seconds, step_seconds_smoothing, step_seconds_ == 0);
}

void StepLoop::on_outside_steps(const OutsideSteps& made) {
  const bool stepped = made.step > step_;
  if (stepped && made.samples > samples_) note_outside_batch(made);
  step_ = std::max(step_, made.step);
  samples_ = data_position_ = std::max(samples_, made.samples);
  if (is_filling()) {
    loan_->snapshot->step = step_;
    loan_->snapshot->samples = samples_;
  }
  if (!stepped) return;
  if (std::isfinite(made.loss)) {
    loss_worst_ = std::max(loss_worst_, made.loss);
    note_loss(made.loss);
  }
  if (made.seconds > 0)
    step_seconds_ =
        smoothed(step_seconds_, made.seconds, step_seconds_smoothing, step_seconds_ == 0);
}

void StepLoop::note_outside_batch(const OutsideSteps& made) {
  const double newest =
      static_cast<double>(made.samples - samples_) / static_cast<double>(made.step - step_);
  outside_batch_ = smoothed(outside_batch_, newest, outside_batch_smoothing, outside_batch_ == 0);
  batch_ = static_cast<std::uint32_t>(std::clamp(std::round(outside_batch_), 1.0, batch_max));
}

}  // namespace gossipd
