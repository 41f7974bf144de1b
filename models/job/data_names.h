// models/job/data_names.h - what may stand in a [data] table: names and the sizes of numbers.
//
// The parser holds jobs to it, and `gossipd init` the data that it drafts a job for. Pure.
#pragma once

#include <cstdint>
#include <string>

namespace gossipd {

inline constexpr std::int64_t tensor_integers_max = 1 << 24;  // classes, vocabulary of safetensors
inline constexpr std::int64_t image_extent_max = 16384;       // rows or columns
inline constexpr std::size_t tensor_axes_max = 4;             // of one sample of safetensors
// Of floats that are no pixels: means up to it, deviations up to it and down to 1 in it.
inline constexpr double normalisation_max = 1e6;
inline constexpr double pixel_deviation_min = 1e-3;

// A name in the data directory, never a way out of it: the job comes from the cluster. Nor one that
// a terminal would not show as it is, or that canonical text would have to escape.
[[nodiscard]] bool is_file_name(const std::string& name);
[[nodiscard]] bool is_tensor_name(const std::string& name);

}  // namespace gossipd
