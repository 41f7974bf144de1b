// models/files/data_file.h - finds and reads the files of a data set, with errors that name file,
// reason and way out.
//
// Nothing is allocated on a file's word: sizes are those that the file system tells, against a
// bound.
#pragma once

#include <cstddef>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>

#include "core/base/result.h"
#include "core/base/types.h"

namespace gossipd {

// What a sample could not be read for, in words that name the file.
class DataError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

[[nodiscard]] Error bad_data(const std::string& origin, const std::string& why);
// `hint`: where such files come from; may be empty.
[[nodiscard]] Error no_data(const std::string& directory, const std::string& names,
                            const std::string& hint);

// DIRECTORY/NAME, or where an archive unpacked there would have put it: DIRECTORY/FOLDER/NAME.
[[nodiscard]] std::optional<std::filesystem::path> find_data_file(
    const std::string& directory, const std::string& name,
    std::initializer_list<const char*> folders = {});

// An open file that may be larger than memory. Any thread.
class DataFile {
 public:
  // Code "bad-data": it cannot be opened, or is no regular file.
  static Result<DataFile> open(const std::filesystem::path& path);
  ~DataFile();
  DataFile(DataFile&& other) noexcept;
  DataFile& operator=(DataFile&&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }  // when it was opened
  // All of `out`, from byte `offset` on. Throws DataError where the file ends before, or the disk
  // fails.
  void read_at(std::uint64_t offset, std::span<std::byte> out) const;

 private:
  DataFile(std::string path, int descriptor, std::uint64_t bytes)
      : path_(std::move(path)), descriptor_(descriptor), bytes_(bytes) {}
  std::string path_;
  int descriptor_;
  std::uint64_t bytes_;
};

// Code "bad-data".
[[nodiscard]] Result<Bytes> read_data_file(const std::filesystem::path& path,
                                           std::uint64_t bytes_max);

}  // namespace gossipd
