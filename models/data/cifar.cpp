#include "models/data/cifar.h"

#include "models/files/data_file.h"

namespace gossipd {

namespace {

constexpr std::size_t image_bytes = 3 * 32 * 32;

}  // namespace

std::optional<Error> parse_cifar(std::span<const std::byte> file, const DataSpec& data,
                                 const std::string& origin, SampleSet& out) {
  const std::size_t label_bytes = data.kind == DataSpec::Kind::cifar100 ? 2 : 1;
  const std::size_t label_at = data.kind == DataSpec::Kind::cifar100 && !data.coarse_labels ? 1 : 0;
  const std::size_t record_bytes = label_bytes + image_bytes;
  if (file.empty()) return bad_data(origin, "is empty");
  if (file.size() % record_bytes != 0)
    return bad_data(
        origin, "has " + std::to_string(file.size()) + " bytes, not a multiple of the " +
                    std::to_string(record_bytes) +
                    " of one record: it is cut short, or not the binary version of the data set");
  const std::size_t records = file.size() / record_bytes;
  out.sample_bytes = image_bytes;
  out.images.reserve(out.images.size() + records * image_bytes);
  for (std::size_t i = 0; i < records; ++i) {
    const std::span record = file.subspan(i * record_bytes, record_bytes);
    const auto label = std::to_integer<std::uint8_t>(record[label_at]);
    if (label >= data.classes)
      return bad_data(origin, "record " + std::to_string(i) + " has label " +
                                  std::to_string(label) + " but there are " +
                                  std::to_string(data.classes) + " classes");
    out.labels.push_back(label);
    const auto* pixels = reinterpret_cast<const std::uint8_t*>(record.data() + label_bytes);
    out.images.insert(out.images.end(), pixels, pixels + image_bytes);
  }
  out.count += records;
  return std::nullopt;
}

Result<SampleSet> load_cifar(const DataSpec& data, const std::vector<std::string>& names,
                             const std::string& directory) {
  SampleSet set;
  for (const std::string& name : names) {
    const auto path = find_data_file(directory, name, {"cifar-10-batches-bin", "cifar-100-binary"});
    if (!path)
      return no_data(
          directory, "'" + name + "' is not",
          "CIFAR's \"binary version\", unpacked, from https://www.cs.toronto.edu/~kriz/cifar.html");
    const auto bytes = read_data_file(*path, cifar_bytes_max);
    if (!bytes) return bytes.error();
    if (auto error = parse_cifar(*bytes, data, path->string(), set)) return *error;
  }
  return set;
}

}  // namespace gossipd
