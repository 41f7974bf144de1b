#include "core/model/job_hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace gossipd {

JobHash job_hash_of(std::string_view text) {
  return JobHash{XXH3_64bits(text.data(), text.size())};
}

}  // namespace gossipd
