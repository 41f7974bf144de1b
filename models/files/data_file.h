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

// The system did not open or read a file. Another try may work, which wrong content ("bad-data")
// never does.
inline constexpr const char* data_unreadable = "data-unreadable";

// What a sample could not be read for, in words that name the file.
class DataError : public std::runtime_error {
 public:
  explicit DataError(const std::string& what) : DataError(Error{"bad-data", what}) {}
  explicit DataError(const Error& error) : std::runtime_error(error.text), code_(error.code) {}
  [[nodiscard]] const std::string& code() const { return code_; }

 private:
  std::string code_;  // "bad-data" or "data-unreadable"
};

[[nodiscard]] Error bad_data(const std::string& origin, const std::string& why);
// Of a whole file whose content is wrong: another copy would be, too.
[[nodiscard]] Error wrong_data(const std::string& origin, const std::string& why);
// Of a file that could not be read to its end, with the code of `error`.
[[nodiscard]] Error bad_data(const std::string& origin, const DataError& error);
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
  // Codes "data-unreadable": it cannot be opened; "bad-data": it may not be, or is no regular file.
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

// Codes "bad-data", "data-unreadable".
[[nodiscard]] Result<Bytes> read_data_file(const std::filesystem::path& path,
                                           std::uint64_t bytes_max);

}  // namespace gossipd
