// models/networks/torchscript.h - a TorchScript file as a network. Only sources of models/ that
// compile against LibTorch include this.
#pragma once

#include "models/files/weights.h"
#include "models/networks/network.h"

namespace torch::jit {
struct Module;
}

namespace gossipd {

// The module as it lies in the file, parameters included. Throws std::invalid_argument in one
// sentence that names the file. It runs without the profiling executor, whose first runs differ in
// the last bits from later ones: a resumed run could not be equal to one that was not interrupted.
[[nodiscard]] std::shared_ptr<Network> load_torchscript(const std::string& path,
                                                        LossSpec::Kind loss);

// The parameters and buffers of a file's module, by name.
[[nodiscard]] ModelTensors tensors_of(const torch::jit::Module&);
// Those of them that a model has, as views of the file, so that it costs the memory of its largest
// tensor; the whole file's where a module of it has a __setstate__ of its own. The file has to stay
// as it is while they are read. Code "bad-weights".
[[nodiscard]] Result<Weights> read_torchscript_weights(const std::string& path);
// as TorchScript files are, and safetensors are not
[[nodiscard]] bool is_zip_file(const std::string& path);

// Why LibTorch could not load the file, and what would do, in words. `error` is what it said.
[[nodiscard]] std::string why_no_torchscript(const std::string& path, const std::exception& error);

// The sentence in an exception of LibTorch's, without its stack.
[[nodiscard]] std::string sentence_of(const std::exception&);

}  // namespace gossipd
