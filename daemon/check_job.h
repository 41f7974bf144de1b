// daemon/check_job.h - tries a job on this machine before a cluster is founded with it.
#pragma once

#include "daemon/config/config.h"

namespace gossipd {

struct TriedJob {
  std::string comments;               // of a node file
  std::vector<std::string> warnings;  // what may be meant so, and mostly is not
};

// Reads the data and makes two steps on the device with the model that the job begins with, for
// `--check-config`. The comments: sizes, classes, the model, memory and the time of a step. Nothing
// where the configuration names no job. Codes of loading the job and the data, of making the engine
// and of start_with(); "bad-model" where the loss is not finite.
[[nodiscard]] Result<TriedJob> try_job(const DaemonConfig&);

// Whether the file of `start_from` fits the model, at the start of a founder, which has written
// nothing yet: trying the whole job costs more. Codes of loading the job, and of
// check_start_from().
[[nodiscard]] std::optional<Error> refuse_first_weights(const DaemonConfig&);

}  // namespace gossipd
