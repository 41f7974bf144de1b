// daemon/check_job.h - tries a job on this machine before a cluster is founded with it.
#pragma once

#include "daemon/config/config.h"

namespace gossipd {

// Reads the data and makes two steps on the device, for `--check-config`. Comments of a node
// file: sizes, classes, the model, memory and the time of a step. Nothing where the configuration
// names no job. Codes of loading the job and the data, and of making the engine; "bad-model" where
// the loss is not finite.
[[nodiscard]] Result<std::string> try_job(const DaemonConfig&);

}  // namespace gossipd
