// core/membership/settings.h - the keys `membership.…` by which daemon and lab set a
// MembershipPolicy.
#pragma once

#include "core/base/settings.h"

namespace gossipd {

struct MembershipPolicy;  // core/membership/policy.h

// Bound to `policy`, which must outlive them.
[[nodiscard]] std::vector<Setting> membership_settings(MembershipPolicy& policy);

}  // namespace gossipd
