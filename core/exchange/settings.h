// core/exchange/settings.h - the keys `exchange.…` by which daemon and lab set an ExchangePolicy.
#pragma once

#include "core/base/settings.h"
#include "core/exchange/policy.h"

namespace gossipd {

// Bound to `policy`, which must outlive them.
[[nodiscard]] std::vector<Setting> exchange_settings(ExchangePolicy& policy);
// What does not fit together, and what would do.
[[nodiscard]] std::optional<std::string> exchange_mistake(const ExchangePolicy& policy);

}  // namespace gossipd
