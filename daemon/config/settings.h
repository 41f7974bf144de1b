// daemon/config/settings.h - the one table of node settings that files, environment, flags and
// reference share.
#pragma once

#include "core/base/settings.h"
#include "daemon/config/config.h"

namespace gossipd {

// Bound to the DaemonConfig, which must outlive them; those of exchange and membership are the
// core's.
[[nodiscard]] std::vector<Setting> settings_of(DaemonConfig&);
// "exchange.codec" → "GOSSIPD_EXCHANGE_CODEC".
[[nodiscard]] std::string environment_name(std::string_view key);

}  // namespace gossipd
