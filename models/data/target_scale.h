// models/data/target_scale.h - whether targets that are numbers are of a size that is learned.
//
// The problem: a model's outputs begin near 0, and the steps of an optimiser are of about the
// learning rate, so targets of 500,000 are out of reach within any budget, and nothing says so.
#pragma once

#include <optional>
#include <string>

#include "models/data/data_set.h"

namespace gossipd {

// What to say of targets whose mean or deviation is far from 1, with the way out; nothing of
// classes, tokens and others. Reads as many samples as their mean takes. Throws DataError.
[[nodiscard]] std::optional<std::string> note_on_targets(const DataSet& set);

}  // namespace gossipd
