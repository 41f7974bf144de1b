// core/base/printable.h - text from peers, users and files, made fit for a terminal or a log.
//
// Escape sequences, line ends and characters that turn the direction of writing would let whoever
// chose a name write what he likes on an operator's screen. Pure functions; any thread.
#pragma once

#include <string>
#include <string_view>

namespace gossipd {

[[nodiscard]] bool is_utf8(std::string_view text);

enum class Lines { one, many };  // many: line ends stay
// Each control character (C0, DEL, C1), each invisible or direction-turning one, and each byte that
// is no UTF-8 becomes one '?'; everything else stays as it is.
[[nodiscard]] std::string printable(std::string_view text, Lines lines = Lines::one);
// The same without spaces, quotes and '=' as well: one value among the `key=value` words of a log
// line.
[[nodiscard]] std::string log_word(std::string_view text);
// The text in quotes, those within it and backslashes behind a backslash: any value of a log line.
[[nodiscard]] std::string log_quoted(std::string_view text);

}  // namespace gossipd
