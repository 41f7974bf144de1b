// core/base/did_you_mean.h - the word that was probably meant by one that means nothing.
//
// Key, flag, command or choice: a slip of one letter in three, or of two neighbours swapped, is
// recognised. Pure.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace gossipd {

// The candidate that `word` most probably stood for, or empty when none is close.
[[nodiscard]] std::string did_you_mean(std::string_view word,
                                       std::span<const std::string> candidates);

}  // namespace gossipd
