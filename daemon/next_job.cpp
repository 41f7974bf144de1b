#include "daemon/next_job.h"

#include "models/data/count_epoch.h"
#include "models/data/data_set.h"
#include "models/job/epochs.h"
#include "models/training/torch_engine.h"

namespace gossipd {

Result<Job> read_next_job(const DaemonConfig& config, const std::string& file) {
  const auto samples = count_epoch(file, config.data_dir);
  if (!samples) return samples.error();
  Result<Job> job = load_job(file, *samples);
  if (!job) return job;
  if (job->model.kind == ModelSpec::Kind::external)
    return Error{"bad-job", file + ": job '" + job->name +
                                "' is trained by processes that attach, and only a new cluster "
                                "takes such a job; give it its own --state-dir"};
  if (job->model.content.bytes > 0 || job->start_content.bytes > 0)
    return Error{"bad-job", file + ": job '" + job->name +
                                "' needs a file beside its text, which members could lack when "
                                "this node is gone; found a cluster for it, with its own "
                                "--state-dir"};
  if (auto error = check_model(*job)) return *error;
  if (config.data_dir.empty())
    return Error{"no-data",
                 "the data of job '" + job->name +
                     "' is not named; start this node with --data DIR, where DIR holds " +
                     files_wanted(job->data)};
  return job;
}

}  // namespace gossipd
