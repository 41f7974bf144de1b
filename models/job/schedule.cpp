#include "models/job/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace gossipd {

double learning_rate_peak(const Job& job) { return job.optimizer.learning_rate; }

bool is_warming_up(const Job& job, Samples cluster_samples) {
  return cluster_samples < job.schedule.warmup_samples;
}

double learning_rate_at(const Job& job, Samples cluster_samples) {
  return learning_rate_at(job, cluster_samples, job.budget_samples);
}

double learning_rate_at(const Job& job, Samples cluster_samples, Samples budget_samples) {
  const ScheduleSpec& schedule = job.schedule;
  const double peak = job.optimizer.learning_rate;
  if (is_warming_up(job, cluster_samples)) {
    // The first step already moves: it counts the batch that it is about to train on.
    const Samples after_step =
        std::min<Samples>(cluster_samples + job.batch, schedule.warmup_samples);
    const double rate =
        peak * static_cast<double>(after_step) / static_cast<double>(schedule.warmup_samples);
    return std::min(rate, peak);  // the last may be rounded up
  }
  switch (schedule.kind) {
    case ScheduleSpec::Kind::constant: return peak;
    case ScheduleSpec::Kind::step: {
      const auto passed =
          std::count_if(schedule.milestones.begin(), schedule.milestones.end(),
                        [&](Samples milestone) { return milestone <= cluster_samples; });
      return peak * std::pow(schedule.gamma, static_cast<double>(passed));
    }
    case ScheduleSpec::Kind::cosine:
    case ScheduleSpec::Kind::linear: break;
  }
  // ended before its warm-up
  if (budget_samples <= schedule.warmup_samples) return peak * schedule.final_fraction;
  const double span = static_cast<double>(budget_samples - schedule.warmup_samples);
  const double done =
      std::min(1.0, static_cast<double>(cluster_samples - schedule.warmup_samples) / span);
  const double height = schedule.kind == ScheduleSpec::Kind::linear
                            ? 1.0 - done
                            : 0.5 * (1.0 + std::cos(std::numbers::pi * done));
  return peak * (schedule.final_fraction + (1.0 - schedule.final_fraction) * height);
}

}  // namespace gossipd
