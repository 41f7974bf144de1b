// daemon/init/shell_word.h - a text as one word of a command line to paste. Pure.
#pragma once

#include <string>
#include <string_view>

namespace gossipd {

// As it is where a POSIX shell would leave it so, otherwise in single quotes.
[[nodiscard]] std::string shell_word(std::string_view text);

}  // namespace gossipd
