#include "core/wire/reject.h"

#include "core/base/result.h"

namespace gossipd {

const char* to_string(Reject reject) {
  switch (reject) {
    case Reject::malformed: return "malformed";
    case Reject::too_large: return "too_large";
    case Reject::foreign_schema: return "foreign_schema";
    case Reject::unknown_block: return "unknown_block";
    case Reject::out_of_turn: return "out_of_turn";
    case Reject::base_mismatch: return "base_mismatch";
    case Reject::not_finite: return "not_finite";
    case Reject::absurd_magnitude: return "absurd_magnitude";
    case Reject::bad_gain: return "bad_gain";
    case Reject::hash_mismatch: return "hash_mismatch";
    case Reject::endless_turn: return "endless_turn";
    case Reject::count_: break;
  }
  GOSSIPD_ASSERT(!"a Reject without a name");
}

}  // namespace gossipd
