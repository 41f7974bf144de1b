#include "daemon/disk/job_files.h"

#include <sys/stat.h>

#include <fstream>

#include "daemon/disk/durable_file.h"
#include "models/files/model_file.h"

namespace gossipd {

namespace {

namespace fs = std::filesystem;

Error cannot(const fs::path& path, const std::string& doing) {
  return Error{"io-error", path.string() + ": cannot " + doing +
                               "; check the disk's space and who owns the directory"};
}

std::optional<Error> make_directory(const fs::path& directory) {
  std::error_code error;
  fs::create_directories(directory, error);
  if (!error) (void)::chmod(directory.c_str(), 0700);
  return error ? std::optional(cannot(directory, "create it: " + error.message())) : std::nullopt;
}

}  // namespace

fs::path JobFiles::path(const JobFile& file) const { return directory_ / to_hex(file); }
fs::path JobFiles::part(const JobFile& file) const { return directory_ / (to_hex(file) + ".part"); }

Result<bool> JobFiles::holds(const JobFile& file) const {
  std::error_code error;
  const std::uint64_t bytes = fs::file_size(path(file), error);
  if (error == std::errc::no_such_file_or_directory) return false;
  if (error) return cannot(path(file), "look at it: " + error.message());
  if (bytes == file.bytes) {
    const Result<JobFile> content = identify_file(path(file));
    if (!content) return content.error();
    if (*content == file) return true;
  }
  fs::remove(path(file), error);
  return false;
}

std::optional<Error> JobFiles::keep(const fs::path& from, const JobFile& file) const {
  if (auto error = make_directory(directory_)) return error;
  std::error_code error;
  fs::copy_file(from, part(file), fs::copy_options::overwrite_existing, error);
  if (error) return cannot(part(file), "copy " + from.string() + " there: " + error.message());
  const Result<JobFile> content = identify_file(part(file));
  if (!content) return content.error();
  if (*content != file)
    return Error{"bad-config", from.string() + ": has changed since it was read; start again"};
  return put_in_place(file);
}

Result<bool> JobFiles::add_piece(const JobFile& file, std::uint64_t offset,
                                 const Bytes& bytes) const {
  if (auto error = make_directory(directory_)) return *error;
  std::ofstream out(part(file), std::ios::binary | (offset == 0 ? std::ios::trunc : std::ios::app));
  out.write(reinterpret_cast<const char*>(bytes.data()),
            static_cast<std::streamsize>(bytes.size()));
  out.close();
  if (!out) return cannot(part(file), "write it");
  if (offset + bytes.size() < file.bytes) return false;
  const Result<JobFile> content = identify_file(part(file));
  if (!content) return content.error();
  if (*content != file) {
    std::error_code ignored;
    fs::remove(part(file), ignored);
    return Error{"corrupt-file", "the job's file came as " + to_hex(*content) + ", the job names " +
                                     to_hex(file) + "; it is asked for again"};
  }
  if (auto error = put_in_place(file)) return *error;
  return true;
}

std::optional<Error> JobFiles::put_in_place(const JobFile& file) const {
  (void)::chmod(part(file).c_str(), 0600);
  if (auto error = flush_file(part(file))) return error;
  std::error_code error;
  fs::rename(part(file), path(file), error);
  if (error) return cannot(path(file), "put it in place: " + error.message());
  return flush_directory(directory_);
}

Bytes JobFiles::read(const JobFile& file, std::uint64_t offset, std::size_t bytes) const {
  Bytes out(bytes);
  std::ifstream in(path(file), std::ios::binary);
  in.seekg(static_cast<std::streamoff>(offset));
  in.read(reinterpret_cast<char*>(out.data()), static_cast<std::streamsize>(out.size()));
  out.resize(in ? bytes : 0);
  return out;
}

}  // namespace gossipd
