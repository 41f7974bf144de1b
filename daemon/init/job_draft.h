// daemon/init/job_draft.h - a commented job for the data that a directory holds. Pure.
#pragma once

#include <string>

#include "core/base/result.h"
#include "models/data/data_look.h"

namespace gossipd {

struct DraftOptions {
  std::string name;        // of the job; what it may not hold is replaced
  std::string model_file;  // TorchScript; empty: a built-in model that fits the data
};

// The text of a job file. It is parsed before it is returned, so a draft is a job. Code
// "bad-config": no built-in model takes such data.
[[nodiscard]] Result<std::string> draft_job(const DataLook&, const DraftOptions&);

}  // namespace gossipd
