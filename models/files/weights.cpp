#include "models/files/weights.h"

#include <fcntl.h>
#include <unistd.h>

#include <fstream>
#include <set>

#include "core/codec/kernels.h"
#include "models/files/data_file.h"

namespace gossipd {

namespace {

constexpr std::size_t names_told_max = 3;

std::string text_of(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (const std::int64_t extent : shape)
    text += (text.size() == 1 ? "" : ", ") + std::to_string(extent);
  return text + "]";
}

// One kind of mismatch, with the first tensors that have it.
class Complaint {
 public:
  explicit Complaint(std::string what) : what_(std::move(what)) {}
  void add(const std::string& tensor) {
    if (count_++ < names_told_max) names_ += (names_.empty() ? "" : ", ") + tensor;
  }
  [[nodiscard]] std::string text() const {
    if (count_ == 0) return "";
    const std::string others =
        count_ > names_told_max ? " and " + std::to_string(count_ - names_told_max) + " more" : "";
    return (what_.empty() ? names_ + others : what_ + " " + names_ + others) + "; ";
  }

 private:
  std::string what_;
  std::string names_;
  std::size_t count_ = 0;
};

std::uint64_t count_of(const std::vector<std::int64_t>& shape) {
  std::uint64_t count = 1;
  for (const std::int64_t extent : shape) count *= static_cast<std::uint64_t>(extent);
  return count;
}

// All that does not fit, in words; empty: everything does.
std::string mismatches(const Weights& weights, const Schema& schema) {
  std::set<std::string> known;
  Complaint missing("it lacks"), shaped(""), infinite("NaN or infinity is in"),
      strange("the model has no"), whole("no floats, but integers or booleans, are in");
  std::vector<float> values;  // of one tensor
  for (const Segment& segment : schema.segments()) {
    known.insert(segment.name);
    const auto found = weights.tensors.find(segment.name);
    if (found == weights.tensors.end()) {
      if (segment.kind != SegmentKind::local) missing.add(segment.name);
      continue;
    }
    if (found->second.shape != segment.shape) {
      shaped.add(segment.name + " is " + text_of(found->second.shape) + " but the model's is " +
                 text_of(segment.shape));
      continue;
    }
    if (!found->second.integers.empty() && segment.kind != SegmentKind::local) {
      whole.add(segment.name + " (" + std::string(found->second.integers) + ")");
      continue;
    }
    values.resize(segment.size);
    found->second.copy_to(values);
    if (!kernels().all_finite(values)) infinite.add(segment.name);
  }
  for (const auto& [name, tensor] : weights.tensors)
    if (!known.contains(name)) strange.add(name);
  return shaped.text() + missing.text() + strange.text() + whole.text() + infinite.text();
}

bool flush(const std::filesystem::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  const bool flushed = ::fsync(file) == 0;
  return ::close(file) == 0 && flushed;
}

// Throws DataError where a tensor cannot be read. False: the file cannot be written.
bool write_whole(const std::filesystem::path& path, const std::string& header,
                 const Weights& weights) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(header.data(), static_cast<std::streamsize>(header.size()));
  for (const auto& [name, tensor] : weights.tensors) {
    std::vector<float> values(count_of(tensor.shape));
    tensor.copy_to(values);
    file.write(reinterpret_cast<const char*>(values.data()),
               static_cast<std::streamsize>(values.size() * sizeof(float)));
  }
  file.close();
  return file && flush(path);
}

}  // namespace

std::optional<Error> write_weights(const std::filesystem::path& path, const Weights& weights) {
  std::vector<TensorEntry> entries;
  for (const auto& [name, tensor] : weights.tensors)
    entries.push_back({name, TensorType::f32, tensor.shape});
  Metadata metadata = weights.metadata;
  metadata["format"] = "pt";  // what Python's loaders look for; it is no checkpoint any more
  metadata.erase("checksum");
  std::filesystem::path part = path;
  part += ".part";
  std::error_code error, ignored;
  std::string reason =
      path.string() +
      ": cannot be written; check the directory, its permissions and the disk's space";
  try {
    const bool written = write_whole(part, safetensors_header(entries, metadata), weights);
    if (written) std::filesystem::rename(part, path, error);
    if (written && !error) return std::nullopt;
  } catch (const DataError& unreadable) {
    reason = unreadable.what();
  }
  std::filesystem::remove(part, ignored);
  return Error{"io-error", reason};
}

std::optional<Error> take_weights(const Weights& weights, const Schema& schema,
                                  std::span<float> model) {
  GOSSIPD_ASSERT(model.size() == schema.floats());
  try {
    const std::string reasons = mismatches(weights, schema);
    if (!reasons.empty())
      return Error{"bad-weights", weights.path + ": does not fit the job's model: " + reasons +
                                      "bring weights of this model, or change [model]"};
    for (const Segment& segment : schema.segments())
      if (const auto found = weights.tensors.find(segment.name); found != weights.tensors.end())
        found->second.copy_to(model.subspan(segment.offset, segment.size));
  } catch (const DataError& error) {
    return Error{"io-error", error.what()};
  }
  return std::nullopt;
}

}  // namespace gossipd
