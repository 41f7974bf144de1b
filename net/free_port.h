// net/free_port.h - whether this process could listen somewhere, before it makes anything else.
#pragma once

#include <optional>

#include "core/base/result.h"
#include "core/base/types.h"

namespace gossipd {

// Listens there for a moment. Error "listen", with a remedy.
[[nodiscard]] std::optional<Error> refuse_busy_port(const Endpoint& where);

}  // namespace gossipd
