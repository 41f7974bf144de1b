// models/data/tensor_look.h - what the tensors of safetensors files are, as a [data] table says it.
//
// Part of data_look.h. Reads the columns of integers in full. Throws DataError.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "models/job/data_spec.h"

namespace gossipd {

// What no table says.
struct TensorLook {
  bool alike = false;              // the inputs' values have one mean and one deviation
  std::vector<std::string> notes;  // of DataLook
};

// Of spec.train_files and test_files: fills in the tensors' names, their shapes, the classes, and
// the vocabulary of inputs that are integers from 0 on; but bytes, which are pixels. Code
// "bad-data".
[[nodiscard]] std::optional<Error> look_at_tensors(const std::string& directory, DataSpec& spec,
                                                   TensorLook& look);

}  // namespace gossipd
