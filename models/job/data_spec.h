// models/job/data_spec.h - the [data] table of a job: what kind of files, which of them, what a
// sample is.
//
// Part of the job and of its hash, so the same on every node; the directory that holds the files is
// each node's own choice. Keys newer than the first kind (idx) are written to the canonical text
// only where they are set, so that older jobs keep their hash. A plain value; any thread.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "models/job/canonical_text.h"
#include "models/job/toml_reader.h"

namespace gossipd {

inline constexpr std::size_t data_files_max = 256;     // in train_files and in test_files
inline constexpr std::size_t data_classes_max = 4096;  // of images
// of one sample's input, and of its target
inline constexpr std::int64_t sample_values_max = 1 << 26;

// One sample's input or target, without the batch in front.
struct SampleShape {
  enum class Element { float32, int64 };
  std::vector<std::int64_t> shape;  // empty: one value
  Element element = Element::float32;
  [[nodiscard]] std::size_t values() const;
  bool operator==(const SampleShape&) const = default;
};

struct DataSpec {
  enum class Kind { idx, cifar10, cifar100, images, tokens, text, safetensors };
  enum class Labels { folder, file_name };  // images: what names the class
  enum class Fit { crop, stretch };         // images: how other proportions become `shape`
  // every node's files are its own affair; all have the same and divide them
  enum class Division { own, shared };

  Kind kind = Kind::idx;
  // of one input: channels, rows, columns; tokens, text: {length}
  std::vector<std::int64_t> shape = {1, 28, 28};
  // targets are integers below it (tokens, text: the next token); 0: targets are floats
  std::int64_t classes = 10;
  std::int64_t vocabulary = 0;             // inputs are integers below it; 0: inputs are floats
  std::vector<std::int64_t> target_shape;  // safetensors; empty: one value

  // Inputs that are floats, by channel or one for all: (value - mean) / deviation; pixels are
  // scaled to [0, 1] first.
  std::vector<double> mean = {0};
  std::vector<double> deviation = {1};

  // Names inside the node's data directory. idx; each may also lie there as NAME.gz.
  std::string train_images = "train-images-idx3-ubyte";
  std::string train_labels = "train-labels-idx1-ubyte";
  std::string test_images = "t10k-images-idx3-ubyte";
  std::string test_labels = "t10k-labels-idx1-ubyte";
  // All others; of images folders, of which there is one each.
  std::vector<std::string> train_files;
  std::vector<std::string> test_files;

  std::vector<std::string> class_names;  // images; empty: the sorted names of train/'s folders
  Labels labels = Labels::folder;
  Fit fit = Fit::crop;
  bool coarse_labels = false;           // cifar100: the 20 superclasses
  std::string input_tensor = "inputs";  // safetensors
  std::string target_tensor = "targets";
  // Targets that are floats lie in [0, 1]: what the loss bce takes. Follows from [loss].
  bool probabilities = false;

  Division division = Division::own;
  // > 0: this part of the training samples is held out; test files are not read
  double validation_fraction = 0;
  // pixels of zeros around the image before a piece of its own size is cut out
  std::int64_t random_crop = 0;
  bool random_flip = false;  // left and right, every other time

  [[nodiscard]] SampleShape input() const;
  [[nodiscard]] SampleShape target() const;
  // Samples are pixels, kept as bytes.
  [[nodiscard]] bool is_pixels() const {
    return kind == Kind::idx || kind == Kind::cifar10 || kind == Kind::cifar100 ||
           kind == Kind::images;
  }
  bool operator==(const DataSpec&) const = default;
};

[[nodiscard]] DataSpec parse_data_spec(TomlTable table);
void write_data_spec(const DataSpec&, CanonicalText& out);
// The files to put into a node's data directory, in words: "a, b and c".
[[nodiscard]] std::string files_wanted(const DataSpec&);

}  // namespace gossipd
