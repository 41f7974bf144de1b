// models/devices/torch_device.h - the devices that a node's settings name. Only sources of models/
// that compile against LibTorch include this.
#pragma once

#include <torch/torch.h>

#include "models/devices/device_names.h"

namespace gossipd {

// `wanted` as in device_names.h; one or more, all of one kind, which this build can use together.
// Codes "no-device", "bad-config"; the text names what was wanted and what is there.
[[nodiscard]] Result<std::vector<torch::Device>> find_devices(const std::string& wanted);

}  // namespace gossipd
