#include "models/checkpoint/checkpoint.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <set>

#include "core/base/large_memory.h"
#include "core/codec/kernels.h"
#include "core/model/finite.h"
#include "models/files/regular_file.h"
#include "models/files/state_names.h"
#include "models/files/tensor_file.h"
#include "models/files/weights.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace gossipd {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "safetensors is little-endian");

namespace {

constexpr std::string_view format_name = "gossipd-checkpoint-1";
constexpr std::string_view checksum_zero = "0000000000000000";
constexpr std::uint64_t write_bytes_max = 16ull << 20;  // per system call
constexpr std::uint64_t read_bytes_max = 1ull << 20;    // in memory at once, beyond what is kept

fs::path sibling(const fs::path& path, std::string_view word) {
  fs::path out = path;
  out.replace_extension();
  out += "." + std::string(word);
  out += path.extension();
  return out;
}

// `target`: what was to be replaced.
Error system_error(const fs::path& path, const char* what, const fs::path& target) {
  const int number = errno;
  std::error_code unknown;
  const bool full = number == ENOSPC || number == EDQUOT;
  const bool gone = number == ENOENT && !fs::exists(target.parent_path(), unknown);
  const std::string kept =
      fs::exists(target, unknown) ? ": the checkpoint before this one is untouched" : "";
  return Error{full   ? "no-space"
               : gone ? "state-gone"
                      : "io-error",
               path.string() + ": " + what + " failed: " + std::strerror(number) +
                   (full   ? "; free some space" + kept
                    : gone ? "; its directory was removed, or its disk is no longer mounted"
                           : "; check the directory and its permissions")};
}

// A file descriptor that is closed whatever happens.
class File {
 public:
  File(const fs::path& path, int flags) : number_(::open(path.c_str(), flags | O_CLOEXEC, 0600)) {
    // one that a dead process left behind
    if (number_ >= 0 && (flags & O_CREAT) != 0) (void)::fchmod(number_, 0600);
  }
  ~File() {
    if (number_ >= 0) ::close(number_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  [[nodiscard]] bool open() const { return number_ >= 0; }
  bool write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t n =
          ::write(number_, bytes.data(), std::min<std::uint64_t>(bytes.size(), write_bytes_max));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return false;
      bytes = bytes.subspan(static_cast<std::size_t>(n));
    }
    return true;
  }
  bool sync() { return ::fsync(number_) == 0; }
  bool close() { return ::close(std::exchange(number_, -1)) == 0; }

 private:
  int number_;
};

bool sync_directory(const fs::path& directory) {
  File file(directory.empty() ? fs::path(".") : directory, O_RDONLY | O_DIRECTORY);
  return file.open() && file.sync();
}

template <typename T>
bool read_number(const Metadata& metadata, const std::string& key, T& out) {
  const auto found = metadata.find(key);
  if (found == metadata.end()) return false;
  const std::string& text = found->second;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc{} && end == text.data() + text.size();
}

Metadata metadata_of(const Schema& schema, const Checkpoint& checkpoint, const Metadata& more) {
  Metadata out = checkpoint.metadata;
  out.insert(more.begin(), more.end());
  out["format"] = format_name;
  out["checksum"] = checksum_zero;
  out["step"] = std::to_string(checkpoint.step);
  out["optimizer_steps"] = std::to_string(checkpoint.optimizer.steps);
  if (const auto& scale = checkpoint.optimizer.loss_scale) {
    out["loss_scale"] = number_text(scale->value());
    out["loss_scale_good_steps"] = std::to_string(scale->good_steps());
  } else {
    out.erase("loss_scale");
    out.erase("loss_scale_good_steps");
  }
  out["samples"] = std::to_string(checkpoint.samples);
  out["others_samples"] = std::to_string(checkpoint.others_samples);
  out["data_position"] = std::to_string(checkpoint.data_position);
  out["shard_index"] = std::to_string(checkpoint.shard_index);
  out["shard_count"] = std::to_string(checkpoint.shard_count);
  out["loss"] = number_text(checkpoint.loss);
  out["job_hash"] = to_hex(checkpoint.job);
  out["schema_hash"] = to_hex(schema.hash());
  return out;
}

// False: it says something else than a scale.
bool loss_scale_from(const Metadata& metadata, std::optional<LossScale>& out) {
  if (!metadata.contains("loss_scale")) return true;
  double value = 0;
  int good_steps = 0;
  if (read_number(metadata, "loss_scale", value) &&
      read_number(metadata, "loss_scale_good_steps", good_steps))
    out = LossScale::at(value, good_steps);
  return out.has_value();
}

bool numbers_from(const Metadata& metadata, Checkpoint& out) {
  std::uint64_t job = 0;
  const auto job_text = metadata.find("job_hash");
  if (job_text == metadata.end() || !from_hex(job_text->second, job)) return false;
  out.job = JobHash{job};
  out.metadata = metadata;
  if (metadata.contains("optimizer_steps") &&
      !read_number(metadata, "optimizer_steps", out.optimizer.steps))
    return false;
  if (!loss_scale_from(metadata, out.optimizer.loss_scale)) return false;
  return read_number(metadata, "step", out.step) && read_number(metadata, "samples", out.samples) &&
         read_number(metadata, "others_samples", out.others_samples) &&
         read_number(metadata, "data_position", out.data_position) &&
         read_number(metadata, "shard_index", out.shard_index) &&
         read_number(metadata, "shard_count", out.shard_count) &&
         read_number(metadata, "loss", out.loss);
}

// Where the checksum's digits stand in the header's text; npos if it does not have exactly one.
std::size_t checksum_at(std::string_view header) {
  constexpr std::string_view mark = "\"checksum\":\"";
  const std::size_t at = header.find(mark);
  if (at == std::string_view::npos || header.find(mark, at + 1) != std::string_view::npos)
    return std::string_view::npos;
  return at + mark.size() + checksum_zero.size() <= header.size() ? at + mark.size()
                                                                  : std::string_view::npos;
}

std::span<const std::byte> bytes_of_floats(const std::vector<float>& values,
                                           const Segment& segment) {
  return std::as_bytes(std::span(values).subspan(segment.offset, segment.size));
}

struct OpenFile {
  std::shared_ptr<const DataFile> file;
  SafetensorsHeader header;
};

// The codes are those of load_checkpoint.
Result<OpenFile> open_file(const fs::path& path) {
  std::error_code error;
  const bool is_there = fs::exists(path, error);
  if (error) return Error{"io-error", path.string() + ": cannot be read: " + error.message()};
  if (!is_there) return Error{"not-found", path.string() + ": is not there"};
  if (const auto refused = refuse_irregular(path)) return Error{"bad-checkpoint", refused->text};
  auto file = DataFile::open(path);
  if (!file) return Error{"io-error", path.string() + ": cannot be read; check its permissions"};
  auto header = read_safetensors_header(*file);
  if (!header) return Error{"bad-checkpoint", header.error().text};
  return OpenFile{std::make_shared<const DataFile>(std::move(*file)), std::move(*header)};
}

// By the checksum, in which its own digits count as zeros.
std::optional<Error> prove_whole(OpenFile& open) {
  const DataFile& file = *open.file;
  std::string head(static_cast<std::size_t>(open.header.data_offset), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(head)));
  const std::size_t at = checksum_at(head);
  if (at == std::string::npos) return Error{"bad-checkpoint", file.path() + ": has no checksum"};
  const std::string written = head.substr(at, checksum_zero.size());
  head.replace(at, checksum_zero.size(), checksum_zero);
  XXH3_state_t hash;
  XXH3_64bits_reset(&hash);
  XXH3_64bits_update(&hash, head.data(), head.size());
  Bytes piece(static_cast<std::size_t>(std::min(file.bytes(), read_bytes_max)));
  for (std::uint64_t from = head.size(); from < file.bytes(); from += piece.size()) {
    piece.resize(
        static_cast<std::size_t>(std::min<std::uint64_t>(piece.size(), file.bytes() - from)));
    file.read_at(from, piece);
    XXH3_64bits_update(&hash, piece.data(), piece.size());
  }
  const std::uint64_t computed = XXH3_64bits_digest(&hash);
  if (to_hex(computed) != written)
    return Error{"bad-checkpoint", file.path() + ": the checksum is " + to_hex(computed) +
                                       ", the file says " + written};
  open.header.metadata["checksum"] = written;
  return std::nullopt;
}

Result<OpenFile> open_whole(const fs::path& path) {
  auto open = open_file(path);
  if (!open) return open.error();
  if (auto error = prove_whole(*open)) return *error;
  return open;
}

// What `read` returns, or that the file could not be read to its end.
template <typename Read>
auto or_io_error(const Read& read) -> decltype(read()) {
  try {
    return read();
  } catch (const DataError& error) {
    return Error{"io-error", error.what()};
  }
}

const TensorEntry* find_tensor(const SafetensorsHeader& header,
                               const std::map<std::string, std::size_t>& index,
                               const std::string& name) {
  const auto found = index.find(name);
  return found == index.end() ? nullptr : &header.tensors[found->second];
}

Result<Checkpoint> read_one(const fs::path& path, const Schema& schema,
                            std::optional<JobHash> job) {
  const auto whole = open_whole(path);
  if (!whole) return whole.error();
  const SafetensorsHeader& header = whole->header;
  Checkpoint out;
  if (!numbers_from(header.metadata, out))
    return Error{
        "bad-checkpoint",
        path.string() +
            ": its metadata lacks step, samples or job_hash, or has a number that cannot be"};
  const auto schema_hash = header.metadata.find("schema_hash");
  if (schema_hash == header.metadata.end() || schema_hash->second != to_hex(schema.hash()))
    return Error{
        "foreign-checkpoint",
        path.string() + ": belongs to a model of another shape; start in another state directory"};
  if (job && out.job != *job)
    return Error{"foreign-checkpoint", path.string() + ": belongs to job " + to_hex(out.job) +
                                           ", not " + to_hex(*job) +
                                           "; start in another state directory"};
  std::map<std::string, std::size_t> index;
  for (std::size_t i = 0; i < header.tensors.size(); ++i) index.emplace(header.tensors[i].name, i);
  out.model = large_zeros(schema.floats());
  // The file has a kind of state of all parameters or of none; see state_names.h.
  const auto first = std::ranges::find(schema.segments(), SegmentKind::parameter, &Segment::kind);
  const auto make_room = [&](std::string_view prefix, std::vector<float>& into) {
    if (first != schema.segments().end() && index.contains(std::string(prefix) + first->name))
      into = large_zeros(schema.floats());
  };
  make_room(momentum_prefix, out.optimizer.momentum);
  make_room(variance_prefix, out.optimizer.variance);
  const auto copy = [&](const std::string& name, const Segment& segment, std::vector<float>& into) {
    const TensorEntry* tensor = find_tensor(header, index, name);
    if (tensor == nullptr || tensor->type != TensorType::f32 || tensor->shape != segment.shape)
      return false;
    read_floats(*whole->file, header, *tensor,
                std::span(into).subspan(segment.offset, segment.size));
    return true;
  };
  for (const Segment& segment : schema.segments()) {
    const auto copy_state = [&](std::string_view prefix, std::vector<float>& into) {
      return into.empty() || segment.kind != SegmentKind::parameter ||
             copy(std::string(prefix) + segment.name, segment, into);
    };
    if (!copy(segment.name, segment, out.model) ||
        !copy_state(momentum_prefix, out.optimizer.momentum) ||
        !copy_state(variance_prefix, out.optimizer.variance))
      return Error{"bad-checkpoint", path.string() + ": tensor '" + segment.name +
                                         "' is missing or has another shape"};
  }
  return out;
}

Result<Checkpoint> load_one(const fs::path& path, const Schema& schema,
                            std::optional<JobHash> job) {
  return or_io_error([&] { return read_one(path, schema, job); });
}

// current becomes previous without a moment in which no file has the current name, where the file
// system knows links.
std::optional<Error> keep_previous(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error)) return std::nullopt;
  const fs::path previous = previous_checkpoint_path(path);
  const fs::path link = sibling(path, "previous-link");
  ::unlink(link.c_str());
  if (::link(path.c_str(), link.c_str()) == 0) {
    const bool renamed = ::rename(link.c_str(), previous.c_str()) == 0;
    const Error failed = system_error(previous, "rename", path);
    ::unlink(link.c_str());  // rename leaves it when both names were one file already
    if (!renamed) return failed;
    return std::nullopt;
  }
  if (::rename(path.c_str(), previous.c_str()) != 0) return system_error(previous, "rename", path);
  return std::nullopt;
}

std::optional<Error> put_in_place(const fs::path& temporary, const fs::path& path) {
  if (auto failed = keep_previous(path)) return failed;
  if (::rename(temporary.c_str(), path.c_str()) != 0) return system_error(path, "rename", path);
  if (!sync_directory(path.parent_path())) return system_error(path.parent_path(), "fsync", path);
  return std::nullopt;
}

}  // namespace

Result<Weights> read_weights(const fs::path& path) {
  return or_io_error([&]() -> Result<Weights> {
    auto open = open_file(path);
    if (!open) return open.error();
    const bool ours = open->header.metadata.contains("format") &&
                      open->header.metadata.at("format") == format_name;
    if (ours)
      if (auto error = prove_whole(*open)) return *error;
    Weights weights{path.string(), {}, open->header.metadata};
    // each tensor keeps the file that it is a part of
    const auto file = std::make_shared<const OpenFile>(std::move(*open));
    std::set<std::string_view> names;
    for (const TensorEntry& entry : file->header.tensors) names.insert(entry.name);
    const auto has = [&](std::string_view name) { return names.contains(name); };
    for (const TensorEntry& entry : file->header.tensors) {
      if (ours && is_optimizer_state(entry.name, has)) continue;
      const auto copy_to = [file, &entry](std::span<float> out) {
        read_floats(*file->file, file->header, entry, out);
      };
      weights.tensors.emplace(
          entry.name,
          Weights::Tensor{entry.shape, copy_to, is_float(entry.type) ? "" : to_string(entry.type)});
    }
    return weights;
  });
}

std::string number_text(double value) {
  char digits[32];
  return {digits, std::to_chars(digits, digits + sizeof digits, value).ptr};
}

fs::path previous_checkpoint_path(const fs::path& path) { return sibling(path, "previous"); }

Result<std::uint64_t> write_checkpoint(const fs::path& path, const Schema& schema,
                                       const Checkpoint& checkpoint, const Metadata& more,
                                       const WriteRefusal& refuses) {
  GOSSIPD_ASSERT(checkpoint.model.size() == schema.floats());
  const OptimizerState& optimizer = checkpoint.optimizer;
  for (const auto* state : {&optimizer.momentum, &optimizer.variance})
    GOSSIPD_ASSERT(state->empty() || state->size() == schema.floats());
  const auto finite = kernels().all_finite;
  if (!is_finite(schema, checkpoint.model) || !finite(optimizer.momentum) ||
      !finite(optimizer.variance))
    return Error{
        "not-finite",
        path.string() +
            ": not written: the model contains NaN or infinity; the file before it is kept"};

  std::vector<TensorEntry> tensors;
  std::vector<std::span<const std::byte>> parts;
  for (const Segment& segment : schema.segments()) {
    tensors.push_back({segment.name, TensorType::f32, segment.shape});
    parts.push_back(bytes_of_floats(checkpoint.model, segment));
  }
  const auto add_state = [&](std::string_view prefix, const std::vector<float>& values) {
    if (values.empty()) return;
    for (const Segment& segment : schema.segments()) {
      if (segment.kind != SegmentKind::parameter) continue;
      tensors.push_back({std::string(prefix) + segment.name, TensorType::f32, segment.shape});
      parts.push_back(bytes_of_floats(values, segment));
    }
  };
  add_state(momentum_prefix, optimizer.momentum);
  add_state(variance_prefix, optimizer.variance);
  std::string header = safetensors_header(tensors, metadata_of(schema, checkpoint, more));
  const std::size_t at = checksum_at(header);
  if (at == std::string::npos)
    return Error{"io-error", path.string() + ": the metadata must not contain \"checksum\""};
  XXH3_state_t hash;
  XXH3_64bits_reset(&hash);
  XXH3_64bits_update(&hash, header.data(), header.size());
  for (const auto& part : parts) XXH3_64bits_update(&hash, part.data(), part.size());
  header.replace(at, checksum_zero.size(), to_hex(XXH3_64bits_digest(&hash)));

  const auto refused = [&] { return refuses ? refuses() : std::nullopt; };
  const fs::path temporary = path.string() + ".tmp";
  if (auto error = refused()) return *error;
  File file(temporary, O_WRONLY | O_CREAT | O_TRUNC);
  if (!file.open()) return system_error(temporary, "open", path);
  bool written = file.write(std::as_bytes(std::span(header)));
  for (std::size_t i = 0; written && i < parts.size(); ++i) written = file.write(parts[i]);
  if (!written || !file.sync() || !file.close()) {
    const Error failed = system_error(temporary, "write", path);
    ::unlink(temporary.c_str());
    return failed;
  }
  if (auto error = refused()) return *error;  // a temporary file there may be another's by now
  if (auto failed = put_in_place(temporary, path)) return *failed;
  std::uint64_t bytes = header.size();
  for (const auto& part : parts) bytes += part.size();
  return bytes;
}

Result<LoadedCheckpoint> load_checkpoint(const fs::path& path, const Schema& schema,
                                         std::optional<JobHash> job) {
  auto current = load_one(path, schema, job);
  if (current) return LoadedCheckpoint{std::move(*current), path, ""};
  Error reason = current.error();
  if (reason.code == "foreign-checkpoint") return reason;
  const fs::path previous = previous_checkpoint_path(path);
  auto older = load_one(previous, schema, job);
  if (reason.code == "bad-checkpoint") {
    const fs::path corrupt = sibling(path, "corrupt");
    if (::rename(path.c_str(), corrupt.c_str()) == 0)
      reason.text += "; it was set aside as " + corrupt.string();
  }
  if (older) return LoadedCheckpoint{std::move(*older), previous, reason.text};
  if (older.error().code != "not-found") reason.text += "\n" + older.error().text;
  if (reason.code == "not-found" || older.error().code == "io-error")
    reason.code = older.error().code;
  return reason;
}

Result<Metadata> read_checkpoint_metadata(const fs::path& path) {
  return or_io_error([&]() -> Result<Metadata> {
    const auto whole = open_whole(path);
    if (!whole) return whole.error();
    return whole->header.metadata;
  });
}

}  // namespace gossipd
