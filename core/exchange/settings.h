// core/exchange/settings.h - the keys `exchange.…` by which daemon and lab set an ExchangePolicy.
#pragma once

#include "core/base/settings.h"
#include "core/exchange/policy.h"

namespace gossipd {

// A key whose value is a codec, bound to `target`, which must outlive it.
void add_codec(SettingTable& table, std::string key, Codec& target, std::string help);
// Bound to `policy`, which must outlive them.
[[nodiscard]] std::vector<Setting> exchange_settings(ExchangePolicy& policy);
// What does not fit together, and what would do.
[[nodiscard]] std::optional<std::string> exchange_mistake(const ExchangePolicy& policy);

}  // namespace gossipd
