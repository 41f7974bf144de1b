// daemon/disk/job_files.h - the files that belong to jobs (TorchScript models), kept by content:
// STATE/files/HASH.
//
// A file is written beside its place, piece by piece as it arrives or copied from the founder's,
// and gets its name only when its content has the hash it is named by: a file with that name is
// whole. One thread writes; any may read.
#pragma once

#include <filesystem>
#include <optional>

#include "core/base/result.h"
#include "core/base/types.h"

namespace gossipd {

class JobFiles {
 public:
  explicit JobFiles(std::filesystem::path directory) : directory_(std::move(directory)) {}

  [[nodiscard]] std::filesystem::path path(const JobFile&) const;
  // Reads it whole; one that is damaged is removed. An error where it cannot be read, as it may be
  // whole.
  [[nodiscard]] Result<bool> holds(const JobFile&) const;
  // Codes "io-error", "no-space", "bad-config" (not the content that it should have).
  [[nodiscard]] std::optional<Error> keep(const std::filesystem::path& from, const JobFile&) const;
  // Pieces come in order, offset 0 begins anew. True: the file is whole and in its place. Code
  // "corrupt-file": all pieces together are not the file; what came is thrown away. "io-error".
  [[nodiscard]] Result<bool> add_piece(const JobFile&, std::uint64_t offset,
                                       const Bytes& bytes) const;
  // Empty where the file is not here or ends before.
  [[nodiscard]] Bytes read(const JobFile&, std::uint64_t offset, std::size_t bytes) const;

 private:
  [[nodiscard]] std::filesystem::path part(const JobFile&) const;
  [[nodiscard]] std::optional<Error> put_in_place(const JobFile&) const;
  std::filesystem::path directory_;
};

}  // namespace gossipd
