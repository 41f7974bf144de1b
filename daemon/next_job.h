// daemon/next_job.h - the job file that an operator wants the cluster to go on to.
#pragma once

#include <string>

#include "core/base/result.h"
#include "daemon/config/config.h"
#include "models/job/job.h"

namespace gossipd {

// Only a job that every member can begin by its text and its own data; what it takes to train it is
// not looked at (job_trial.h). Counts the data of a job with epochs, which can take long. Codes as
// of Job::load(), "no-data", "bad-job".
[[nodiscard]] Result<Job> read_next_job(const DaemonConfig&, const std::string& file);

}  // namespace gossipd
