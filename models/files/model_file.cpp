#include "models/files/model_file.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <vector>

#include "core/base/lasting_error.h"

namespace gossipd {

namespace {

constexpr std::size_t piece_bytes = 1 << 20;

Error refused(const std::filesystem::path& path, const std::string& why) {
  return Error{"bad-config", path.string() + ": " + why};
}

// For now.
Error unreadable(const std::filesystem::path& path, int why) {
  return Error{"io-error", path.string() + ": cannot be read: " + std::strerror(why) +
                               "; look for the disk's errors in the system's log, and at the "
                               "limit of open files"};
}

}  // namespace

Result<JobFile> identify_file(const std::filesystem::path& path, std::uint64_t bytes_max) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (error && error != std::errc::no_such_file_or_directory && !is_lasting(error.value()))
    return unreadable(path, error.value());
  if (!std::filesystem::is_regular_file(status))
    return refused(
        path,
        "there is no such file; a path in a job file is relative to the job file's directory");
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  XXH3_state_t hash;
  XXH3_128bits_reset(&hash);
  JobFile out;
  std::vector<char> piece(piece_bytes);
  while (file && out.bytes <= bytes_max) {
    file.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    const auto count = static_cast<std::size_t>(file.gcount());
    XXH3_128bits_update(&hash, piece.data(), count);
    out.bytes += count;
  }
  if (!file.eof() && out.bytes <= bytes_max) {
    const int why = errno;
    if (why == 0 || is_lasting(why)) return refused(path, "cannot be read; check who may read it");
    return unreadable(path, why);
  }
  if (out.bytes == 0) return refused(path, "is empty; write it again");
  if (out.bytes > bytes_max)
    return refused(
        path, "is larger than " + std::to_string(bytes_max >> 20) +
                  " MiB, the most that travels with a job; keep large constants out of the model");
  const XXH128_hash_t digest = XXH3_128bits_digest(&hash);
  out.hash_high = digest.high64;
  out.hash_low = digest.low64;
  return out;
}

}  // namespace gossipd
