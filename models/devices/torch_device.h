// models/devices/torch_device.h - the devices that a node's settings name. Only sources of models/
// that compile against LibTorch include this.
#pragma once

#include <torch/torch.h>

#include <optional>

#include "models/devices/cuda_runtime.h"
#include "models/devices/device_failure.h"
#include "models/devices/device_names.h"

namespace gossipd {

// `wanted` as in device_names.h; one or more, all of one kind, which this build can use together.
// Codes "no-device", "bad-config"; the text names what was wanted and what is there.
[[nodiscard]] Result<std::vector<torch::Device>> find_devices(const std::string& wanted);

// "cuda:0,cuda:1".
[[nodiscard]] std::string joined(const std::vector<torch::Device>&);

// Why `wanted` is the CPU on this machine though it leaves the choice to gossipd; empty text where
// it is a GPU, or the CPU was asked for.
[[nodiscard]] NoCuda why_on_cpu(const std::string& wanted);

// Of an error that says_out_of_memory(), by its type or its words.
[[nodiscard]] bool is_out_of_memory(const std::exception&);
// Such an error with the device and, of a CUDA device, what is free; with "main memory" where that
// ran out beside a CUDA device.
[[nodiscard]] OutOfMemory in_words(const std::exception& out_of_memory, torch::Device);
// Of an error that ended a start: code "device-failed" where no memory was left, since whoever has
// it may end. Otherwise nullopt.
[[nodiscard]] std::optional<Error> lack_of_memory(const std::exception&,
                                                  const std::vector<torch::Device>&);

}  // namespace gossipd
