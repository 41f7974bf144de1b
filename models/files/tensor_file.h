// models/files/tensor_file.h - a safetensors file that stays on disk: its header, and its tensors
// one at a time.
//
// So that a model of any size costs its memory once, not once more for the file. Both throw
// DataError where the file cannot be read. Torch-free; any thread.
#pragma once

#include <span>
#include <string>

#include "models/files/data_file.h"
#include "models/files/safetensors.h"

namespace gossipd {

// Code "bad-safetensors".
[[nodiscard]] Result<SafetensorsHeader> read_safetensors_header(const DataFile& file);

// As "[3, 32, 32]".
[[nodiscard]] std::string text_of(std::span<const std::int64_t> shape);

// From as many values in a file as `out` has; the type is none of floats.
void to_integers(TensorType, const std::byte* from, std::span<std::int64_t> out);

// As many values as `out` has of a tensor of any type; a double is rounded.
void read_floats(const DataFile& file, const SafetensorsHeader& header, const TensorEntry& tensor,
                 std::span<float> out);

}  // namespace gossipd
