// core/balance/settings.h - the keys `balance.…` by which daemon and lab set a BalancePolicy.
#pragma once

#include "core/balance/batch_balancer.h"
#include "core/base/settings.h"

namespace gossipd {

// Bound to `policy`, which must outlive them.
[[nodiscard]] std::vector<Setting> balance_settings(BalancePolicy& policy);
// The first contradiction between settings, and how to resolve it; none: they fit together.
[[nodiscard]] std::optional<std::string> balance_mistake(const BalancePolicy& policy);

}  // namespace gossipd
