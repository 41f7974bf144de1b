// models/devices/model_files.h - memory of whole models in files without a name
// (core/base/large_memory.h).
//
// Their room is reserved when they are made; the kernel reads and writes them as it needs room, and
// they end with the process. Without LibTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace gossipd {

struct ModelFiles {
  std::uint64_t bytes = 0;          // put into files so far, also what has been freed since
  std::uint64_t bytes_refused = 0;  // that should have been and is main memory
  std::string why_refused;          // the last time
};

// Before the first model is made, and before other threads exist; empty: no files. Returns what is
// wrong with the directory: no file can be made there, or it is in main memory itself.
[[nodiscard]] std::optional<std::string> use_model_files(const std::string& directory);
[[nodiscard]] ModelFiles model_files();  // any thread

}  // namespace gossipd
