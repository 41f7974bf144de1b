// daemon/disk/durable_file.h - small files that survive a power cut: the old content or the new,
// never a mix.
//
// Temporary file → fsync → (the current one becomes NAME.previous.EXT) → rename → fsync of the
// directory. When write_durably() returns without an error the content is on disk. Any thread,
// one writer per path.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/result.h"

namespace gossipd {

inline constexpr std::size_t durable_file_bytes_max = std::size_t{16} << 20;

// Codes "no-space", "io-error"; the text names the path, the reason and the way out.
[[nodiscard]] std::optional<Error> write_durably(const std::filesystem::path& path,
                                                 std::string_view content);
// What was written to a file, or renamed in a directory, is on disk when this returns. Codes as
// above.
[[nodiscard]] std::optional<Error> flush_file(const std::filesystem::path& path);
[[nodiscard]] std::optional<Error> flush_directory(const std::filesystem::path& directory);
// "node.json" → "node.previous.json".
[[nodiscard]] std::filesystem::path previous_of(const std::filesystem::path& path);
// Renames a file that was found damaged to NAME.corrupt.EXT, so that it never becomes the previous
// one.
void set_aside(const std::filesystem::path& path);
// Codes "not-found", "io-error", "too-large", "bad-file" (not a regular file).
[[nodiscard]] Result<std::string> read_whole(const std::filesystem::path& path,
                                             std::size_t bytes_max = durable_file_bytes_max);

}  // namespace gossipd
