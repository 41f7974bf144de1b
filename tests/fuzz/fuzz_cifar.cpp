// Any bytes, after a first one that chooses the kind, as a CIFAR file: whole records with labels in
// range, or an error.
#include "models/data/cifar.h"

using namespace gossipd;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  DataSpec spec;
  spec.kind = data[0] & 1 ? DataSpec::Kind::cifar100 : DataSpec::Kind::cifar10;
  spec.coarse_labels = (data[0] & 2) != 0;
  spec.classes = spec.kind == DataSpec::Kind::cifar10 ? 10 : spec.coarse_labels ? 20 : 100;
  SampleSet set;
  const auto error = parse_cifar(std::as_bytes(std::span(data + 1, size - 1)), spec, "fuzz", set);
  if (error) {
    GOSSIPD_ASSERT(error->text.starts_with("fuzz: "));
    return 0;
  }
  GOSSIPD_ASSERT(set.count > 0 && set.labels.size() == set.count &&
                 set.images.size() == set.count * set.sample_bytes);
  for (const std::uint8_t label : set.labels) GOSSIPD_ASSERT(label < spec.classes);
  return 0;
}
