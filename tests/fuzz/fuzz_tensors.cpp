// Any bytes as a file of inputs and targets, opened and read as a data set whose shape the first
// byte chooses: every sample is finite or in range, or there is an error.
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>

#include "models/data/tensor_set.h"

using namespace gossipd;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  DataSpec spec;
  spec.kind = DataSpec::Kind::safetensors;
  spec.shape = {2};
  spec.classes = data[0] & 1 ? 3 : 0;
  spec.vocabulary = data[0] & 2 ? 5 : 0;
  if (data[0] & 4) spec.target_shape = {2};
  const int file = memfd_create("fuzz", 0);
  GOSSIPD_ASSERT(file >= 0 && write(file, data + 1, size - 1) == static_cast<ssize_t>(size - 1));
  const auto set = TensorSet::open(spec, {std::to_string(file)}, {.directory = "/proc/self/fd"});
  if (!set) GOSSIPD_ASSERT(set.error().code == "bad-data");
  if (set) {
    std::vector<float> floats[2] = {std::vector<float>(2), std::vector<float>(2)};
    std::vector<std::int64_t> integers[2] = {std::vector<std::int64_t>(2),
                                             std::vector<std::int64_t>(2)};
    Batch batch{std::span(floats[0]), std::span(floats[1])};
    if (spec.vocabulary > 0) batch.inputs = std::span(integers[0]);
    if (spec.classes > 0) batch.targets = std::span(integers[1]);
    for (std::size_t i = 0; i < std::min<std::size_t>((*set)->count(), 100); ++i) {
      (*set)->write(i, nullptr, batch, 0);
      for (const auto& values : floats)
        for (const float value : values) GOSSIPD_ASSERT(std::isfinite(value));
      for (const std::int64_t value : integers[0]) GOSSIPD_ASSERT(value >= 0 && value < 5);
      for (const std::int64_t value : integers[1]) GOSSIPD_ASSERT(value >= 0 && value < 3);
    }
  }
  close(file);
  return 0;
}
