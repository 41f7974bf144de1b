// models/torch_device.h - the device that a node's settings name. Only models/*.cpp that compile against LibTorch include this.
#pragma once

#include <torch/torch.h>

#include "core/base/result.h"

namespace gossipd {

// `wanted` as in TrainerOptions. Codes "no-device", "bad-config"; the text names what was wanted and what is there.
[[nodiscard]] Result<torch::Device> find_device(const std::string& wanted);

}  // namespace gossipd
