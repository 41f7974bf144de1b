// models/job/schedule.h - the learning rate as a pure function of the cluster's samples.
//
// Every node that has heard of the same samples uses the same rate, whenever it joined.
#pragma once

#include "models/job/job.h"

namespace gossipd {

[[nodiscard]] double learning_rate_at(const Job&, Samples cluster_samples);
// The same with another budget than the job's: cosine and linear end there instead.
[[nodiscard]] double learning_rate_at(const Job&, Samples cluster_samples, Samples budget_samples);
// Whether it still rises to its peak.
[[nodiscard]] bool is_warming_up(const Job&, Samples cluster_samples);
// The largest value that learning_rate_at() takes.
[[nodiscard]] double learning_rate_peak(const Job&);

}  // namespace gossipd
