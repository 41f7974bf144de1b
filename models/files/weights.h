// models/files/weights.h - the tensors of a file by name, as a model begins with them (`start_from`
// of a job) or is exported with them.
//
// All tensors are looked at before a model is touched, and a model takes all of a file or nothing:
// what does not fit is one error that names every kind of mismatch with its first tensors. A file
// stays on disk and is read tensor by tensor, so it costs the memory of its largest. Torch-free;
// TorchScript files are read in torchscript_weights.cpp.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/model/schema.h"
#include "models/files/safetensors.h"

namespace gossipd {

struct Weights {
  struct Tensor {
    std::vector<std::int64_t> shape;
    // as many floats as the shape says; throws DataError where its file cannot be read
    std::function<void(std::span<float>)> copy_to;
    std::string_view integers{};  // their type in the file, as "I64"; empty: it holds floats
  };
  std::string path;
  std::map<std::string, Tensor> tensors;  // what an optimiser knows of them is left out
  Metadata metadata;
};

// A safetensors file, ours (then its checksum is looked at) or another's. Codes "not-found",
// "io-error", "bad-checkpoint".
[[nodiscard]] Result<Weights> read_weights(const std::filesystem::path& path);

// Every parameter and statistic of the schema has to be there, by name and shape, as finite floats,
// and nothing else; of what is local to a node what there is, of any type. `model`: P floats,
// unchanged on error. Codes "bad-weights", "io-error" (then some of it may have been taken).
[[nodiscard]] std::optional<Error> take_weights(const Weights&, const Schema&,
                                                std::span<float> model);

// As a safetensors file with the same metadata, written whole or not at all. Code "io-error".
[[nodiscard]] std::optional<Error> write_weights(const std::filesystem::path& path, const Weights&);

}  // namespace gossipd
