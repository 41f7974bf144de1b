// models/data/cifar.h - reads the binary files of CIFAR-10 and CIFAR-100.
//
// Format (https://www.cs.toronto.edu/~kriz/cifar.html): records without a header, each of 1 label
// byte (CIFAR-100: 2, coarse and fine) and 3072 bytes, the red, green and blue planes of 32 x 32
// pixels. Torch-free; any thread.
#pragma once

#include "core/base/types.h"
#include "models/data/pixel_set.h"

namespace gossipd {

inline constexpr std::uint64_t cifar_bytes_max = 4ull << 30;  // of one file

// Appends the records of one whole file to `out`. Code "bad-data".
[[nodiscard]] std::optional<Error> parse_cifar(std::span<const std::byte> file, const DataSpec&,
                                               const std::string& origin, SampleSet& out);

// All of `names`, found in `directory` or in the folder that the archive unpacks to. Codes
// "no-data", "bad-data".
[[nodiscard]] Result<SampleSet> load_cifar(const DataSpec&, const std::vector<std::string>& names,
                                           const std::string& directory);

}  // namespace gossipd
