// core/model/finite.h - whether a model may be shared. Pure; any thread.
#pragma once

#include "core/model/schema.h"

namespace gossipd {

// Neither NaN nor infinity in `model` but for `local` segments: they never leave the node, and what
// they hold (such as a mask of infinities) is its trainer's.
[[nodiscard]] bool is_finite(const Schema& schema, std::span<const float> model);

}  // namespace gossipd
