// core/base/nesting.h - how deeply a text nests, found before anything recurses over what it says.
//
// Parsers, and the destructors and printers of what they build, recurse over what their input
// nests: 30 KB of "a.a.a.…" or of brackets are a stack's worth. These look at a text once, build
// nothing and understand no more of the format than what nests; whether the text is well formed,
// the parser says. Pure.
#pragma once

#include <cstddef>
#include <string_view>

namespace gossipd {

inline constexpr std::size_t json_levels_max = 16;     // our documents and answers have 5 at most
inline constexpr std::size_t toml_key_parts_max = 32;  // of "a.b.c"

// Whether arrays and objects lie within each other beyond `levels_max`.
[[nodiscard]] bool json_nests_deeper(std::string_view text,
                                     std::size_t levels_max = json_levels_max);
// Whether a key, or the name of a table, has more parts than `parts_max`, each of which is a table
// in a table.
[[nodiscard]] bool toml_key_is_longer(std::string_view text,
                                      std::size_t parts_max = toml_key_parts_max);

}  // namespace gossipd
