// core/model/job_hash.h - the hash by which nodes name a job.
#pragma once

#include <string_view>

#include "core/base/types.h"

namespace gossipd {

// XXH3-64 of the job's canonical text.
[[nodiscard]] JobHash job_hash_of(std::string_view text);

}  // namespace gossipd
