// tools/gossipctl/progress.h - how far a job is, in one line, for files and plain terminals.
#pragma once

#include <chrono>
#include <string>

#include "tools/gossipctl/answers.h"

namespace gossipd {

// Between two lines.
inline constexpr std::chrono::seconds progress_interval{10};

// "42.3 %, 39 s left, step 2 025, loss 0.342, accuracy 85.74 %, 3 members, sent 1.1 MB"
[[nodiscard]] std::string progress_line(const Json& status);
// "3 members alive"
[[nodiscard]] std::string members_alive(const Json& status);
// "85.74 %"
[[nodiscard]] std::string percentage(double share, int digits);

}  // namespace gossipd
