// models/files/state_names.h - which tensors of a checkpoint are the optimiser's, by their names.
//
// A checkpoint keeps what the optimiser knows of NAME as momentum.NAME and variance.NAME, and a
// model may have tensors that begin so (a head for a variance). A prefix alone says nothing: such a
// name is the optimiser's if, and only if, the file has the tensor of the model that it speaks of.
// For that no model may have both NAME and momentum.NAME; ambiguous_name() finds those that do.
// tools/python/src/gossipd/checkpoint.py follows the same rule.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/model/schema.h"

namespace gossipd {

inline constexpr std::string_view momentum_prefix = "momentum.";
inline constexpr std::string_view variance_prefix = "variance.";

// `has`: whether the file has a tensor of that name.
[[nodiscard]] bool is_optimizer_state(std::string_view name,
                                      const std::function<bool(std::string_view)>& has);

// Why a checkpoint of the model could not be read, with the way out; nothing: it can.
[[nodiscard]] std::optional<std::string> ambiguous_name(const std::vector<Segment>&);

}  // namespace gossipd
