// models/files/regular_file.h - refuses what only looks like a file before anything reads it.
//
// The problem: opening a FIFO for reading waits until something writes, perhaps for ever, and a
// device may never end. The user sees only that the daemon hangs. The answer: a look at the
// kind before a file is opened.
#pragma once

#include <filesystem>
#include <optional>

#include "core/base/result.h"

namespace gossipd {

// Code "bad-file", with the kind in words, if something lies there that is not a regular file.
// Nothing there, or nothing that may be looked at, is left to the one who opens it.
[[nodiscard]] std::optional<Error> refuse_irregular(const std::filesystem::path& path);

// On a file system that is mounted read-only; false also where that cannot be told.
[[nodiscard]] bool is_read_only(const std::filesystem::path& path);

}  // namespace gossipd
