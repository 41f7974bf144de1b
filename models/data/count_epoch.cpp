#include "models/data/count_epoch.h"

#include "models/data/data_set.h"
#include "models/job/epochs.h"
#include "models/job/toml_reader.h"

namespace gossipd {

Result<std::optional<Samples>> count_epoch(const std::string& job_path,
                                           const std::string& data_dir) {
  using Count = std::optional<Samples>;
  const auto text = read_text_file(job_path, job_bytes_max);
  if (!text) return Count();
  const auto epochs = epochs_of(*text, job_path);
  if (!epochs) return epochs.error();
  if (*epochs == 0) return Count();
  if (data_dir.empty())
    return Error{"no-data", job_path +
                                ": epochs count the samples of the data directory; give --data "
                                "DIR, or write budget_samples. Where the cluster has the job "
                                "already, leave --job out"};
  // The budget is not known yet; any that the rest of the file allows does.
  const auto with_any =
      with_budget(*text, static_cast<Samples>(job_budget_samples_max / (*epochs + 1)), job_path);
  if (!with_any) return with_any.error();
  const auto job = Job::parse(*with_any, job_path);
  if (!job) return job.error();
  LoadOptions options;
  options.directory = data_dir;
  options.seed = job->seed;
  options.held_out = false;
  options.check_values = false;  // whoever loads them does
  const auto sets = load_data(job->data, options);
  if (!sets) return sets.error();
  return Count(sets->train->count());
}

}  // namespace gossipd
