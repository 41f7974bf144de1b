#include "models/data/idx.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>

#include "models/files/data_file.h"

namespace gossipd {

namespace {

constexpr std::size_t inflate_chunk_bytes = 1 << 20;
constexpr std::uint64_t deflate_ratio_max = 1032;

std::uint8_t byte_at(std::span<const std::byte> bytes, std::size_t at) {
  return std::to_integer<std::uint8_t>(bytes[at]);
}

bool is_gzip(std::span<const std::byte> bytes) {
  return bytes.size() >= 2 && byte_at(bytes, 0) == 0x1f && byte_at(bytes, 1) == 0x8b;
}

// The size that the end of a gzip file gives, modulo 2^32 and not to be trusted: no more than the
// file could hold.
std::uint64_t inflated_bytes(std::span<const std::byte> in) {
  if (in.size() < 4) return 0;
  std::uint64_t size = 0;
  for (std::size_t b = 0; b < 4; ++b)
    size |= std::uint64_t{byte_at(in, in.size() - 4 + b)} << (8 * b);
  return std::min<std::uint64_t>(size, in.size() * deflate_ratio_max);
}

// Feeds zlib in pieces, because its counters are 32 bits wide.
class Inflater {
 public:
  Inflater() { ready_ = inflateInit2(&stream_, 15 + 16) == Z_OK; }
  ~Inflater() {
    if (ready_) inflateEnd(&stream_);
  }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  Result<Bytes> run(std::span<const std::byte> in, const std::string& origin,
                    std::uint64_t bytes_max) {
    if (!ready_) return Error{"bad-data", origin + ": zlib could not start (out of memory?)"};
    Bytes out(std::min(inflated_bytes(in) + 1, bytes_max));  // room left, so that zlib sees the end
    std::size_t used = 0;
    while (true) {
      if (used == out.size()) {
        if (out.size() >= bytes_max)
          return bad_data(origin, "inflates to more than " + std::to_string(bytes_max) + " bytes");
        out.resize(std::min<std::uint64_t>(
            bytes_max, out.size() + std::max(inflate_chunk_bytes, out.size() / 2)));
      }
      const std::size_t piece = std::min<std::size_t>(in.size(), 1u << 30);
      const std::size_t room = std::min<std::size_t>(out.size() - used, 1u << 30);
      stream_.next_in = const_cast<Bytef*>(reinterpret_cast<const Bytef*>(in.data()));
      stream_.avail_in = static_cast<uInt>(piece);
      stream_.next_out = reinterpret_cast<Bytef*>(out.data() + used);
      stream_.avail_out = static_cast<uInt>(room);
      const int status = ::inflate(&stream_, Z_NO_FLUSH);
      in = in.subspan(piece - stream_.avail_in);
      used += room - stream_.avail_out;
      if (status == Z_STREAM_END) break;
      if (status != Z_OK && status != Z_BUF_ERROR)
        return bad_data(origin, std::string("is a damaged gzip file: ") +
                                    (stream_.msg != nullptr ? stream_.msg : "bad data"));
      if (in.empty() && stream_.avail_out > 0) return bad_data(origin, "is a gzip file cut short");
    }
    if (!in.empty()) return bad_data(origin, "has bytes after the end of the gzip data");
    out.resize(used);
    return out;
  }

 private:
  z_stream stream_{};
  bool ready_ = false;
};

Result<IdxArray> read_idx(const std::string& directory, const std::string& name,
                          std::string& path_out) {
  auto path = find_data_file(directory, name);
  if (!path) path = find_data_file(directory, name + ".gz");
  if (!path)
    return no_data(directory, "neither '" + name + "' nor '" + name + ".gz' is",
                   std::string("Fashion-MNIST: apt install dataset-fashion-mnist, then --data ") +
                       fashion_mnist_directory);
  path_out = path->string();
  auto bytes = read_data_file(*path, idx_bytes_max);
  if (!bytes) return bytes.error();
  return parse_idx(*bytes, path_out);
}

std::string text_of(std::span<const std::uint32_t> shape) {
  std::string text;
  for (const std::uint32_t extent : shape)
    text += (text.empty() ? "" : " x ") + std::to_string(extent);
  return text;
}

// A file of N × rows × columns has one channel; N × channels × rows × columns says so itself.
bool shape_fits(std::span<const std::uint32_t> file, std::span<const std::int64_t> wanted) {
  std::vector<std::int64_t> sample(file.begin() + (file.empty() ? 0 : 1), file.end());
  if (sample.size() == 2) sample.insert(sample.begin(), 1);
  return std::equal(sample.begin(), sample.end(), wanted.begin(), wanted.end());
}

}  // namespace

Result<IdxArray> parse_idx(std::span<const std::byte> file, const std::string& origin,
                           std::uint64_t bytes_max) {
  if (is_gzip(file)) {
    auto plain = Inflater().run(file, origin, bytes_max);
    if (!plain) return plain.error();
    if (is_gzip(*plain)) return bad_data(origin, "is gzipped twice");
    return parse_idx(*plain, origin, bytes_max);
  }
  if (file.size() < 4) return bad_data(origin, "is too short for an IDX file");
  if (byte_at(file, 0) != 0 || byte_at(file, 1) != 0)
    return bad_data(origin, "is not an IDX file (it does not start with two zero bytes)");
  if (byte_at(file, 2) != 8)
    return bad_data(origin, "has element type " + std::to_string(byte_at(file, 2)) +
                                "; only unsigned bytes (8) are read");
  const std::size_t rank = byte_at(file, 3);
  if (rank == 0 || rank > idx_rank_max)
    return bad_data(origin, "has " + std::to_string(rank) + " dimensions; 1 to 4 are read");
  const std::size_t header = 4 + 4 * rank;
  if (file.size() < header) return bad_data(origin, "is cut off inside its header");
  IdxArray array;
  std::uint64_t size = 1;
  for (std::size_t i = 0; i < rank; ++i) {
    std::uint32_t extent = 0;
    for (std::size_t b = 0; b < 4; ++b) extent = extent << 8 | byte_at(file, 4 + 4 * i + b);
    array.shape.push_back(extent);
    if (extent > 0 && size > idx_bytes_max / extent)
      return bad_data(origin, "has impossible dimensions " + text_of(array.shape));
    size *= extent;
  }
  if (file.size() - header != size)
    return bad_data(origin, "says " + text_of(array.shape) + " = " + std::to_string(size) +
                                " bytes of data but has " + std::to_string(file.size() - header));
  array.values.resize(size);
  if (size > 0) std::memcpy(array.values.data(), file.data() + header, size);
  return array;
}

Result<SampleSet> load_samples(const DataSpec& data, SamplePart part,
                               const std::string& directory) {
  const bool train = part == SamplePart::train;
  std::string images_path;
  std::string labels_path;
  auto images = read_idx(directory, train ? data.train_images : data.test_images, images_path);
  if (!images) return images.error();
  auto labels = read_idx(directory, train ? data.train_labels : data.test_labels, labels_path);
  if (!labels) return labels.error();
  if (!shape_fits(images->shape, data.shape)) {
    const std::vector<std::uint32_t> wanted(data.shape.begin(), data.shape.end());
    return bad_data(images_path, "holds " + text_of(images->shape) + " but the job's samples are " +
                                     text_of(wanted));
  }
  if (labels->shape.size() != 1)
    return bad_data(labels_path, "holds " + text_of(labels->shape) + ", not a list of labels");
  if (labels->shape[0] != images->shape[0])
    return bad_data(labels_path, "has " + std::to_string(labels->shape[0]) + " labels for the " +
                                     std::to_string(images->shape[0]) + " images of " +
                                     images_path);
  if (labels->values.empty()) return bad_data(labels_path, "is empty");
  const auto largest = std::max_element(labels->values.begin(), labels->values.end());
  if (*largest >= data.classes)
    return bad_data(labels_path, "sample " + std::to_string(largest - labels->values.begin()) +
                                     " has label " + std::to_string(*largest) +
                                     " but the job has " + std::to_string(data.classes) +
                                     " classes");
  SampleSet set;
  set.count = labels->values.size();
  set.sample_bytes = images->values.size() / set.count;
  set.images = std::move(images->values);
  set.labels = std::move(labels->values);
  return set;
}

}  // namespace gossipd
