// models/data/data_look.h - what a directory of data holds: the [data] table that would read it.
//
// Looks for the kinds of files that jobs can name, in this order: IDX, CIFAR, folders of images,
// safetensors, text, tokens. What the files themselves say (shape, classes, vocabulary, mean and
// deviation) is measured, over training and test files where a test file could go beyond the
// others; a held-out part is taken from the training files where there is none. Reads what
// load_data() reads, and a stream of tokens or a column of integers once more.
#pragma once

#include <string>
#include <vector>

#include "core/base/result.h"
#include "models/job/data_spec.h"

namespace gossipd {

struct DataLook {
  DataSpec spec;
  std::string words;  // "IDX files of 28 x 28 grey images"
  std::size_t train_samples = 0;
  std::size_t held_out_samples = 0;
  std::string left_out;  // "16 .webp": files that no job takes; empty: none
  // of spec.deviation, which is measured along the first axis: nothing differs, so it is 1
  std::size_t constant_channels = 0;
  std::vector<std::string> notes;  // what a job can be made of, but probably should not
};

// Codes "no-data" (nothing there that a job can name: says what is there, and what would do),
// "bad-data": begins with the file or the folder.
[[nodiscard]] Result<DataLook> look_at_data(const std::string& directory);

}  // namespace gossipd
