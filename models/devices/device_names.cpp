#include "models/devices/device_names.h"

#include <algorithm>

namespace gossipd {

namespace {

constexpr std::string_view cuda_prefix = "cuda:";
constexpr std::size_t index_digits_max = 2;
const char* const forms = "auto, cpu, cuda, cuda:N, cuda:all, or a list such as cuda:0,cuda:1";

Error refused(const std::string& what, const std::string& way_out) {
  return {"bad-config", what + "; " + way_out};
}

}  // namespace

int cuda_index(std::string_view device) {
  if (device == "cuda") return 0;
  if (!device.starts_with(cuda_prefix)) return -1;
  const std::string digits(device.substr(cuda_prefix.size()));
  if (digits.empty() || digits.size() > index_digits_max ||
      digits.find_first_not_of("0123456789") != std::string::npos)
    return -1;
  return std::stoi(digits);
}

Result<std::vector<std::string>> split_devices(const std::string& text) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    parts.push_back(text.substr(at, comma - at));
    at = comma + 1;
  }
  if (parts.size() == 1 && (text == "auto" || text == "cuda:all")) return parts;
  for (const std::string& part : parts)
    if (part != "cpu" && cuda_index(part) < 0)
      return refused("'" + part + "' is no device" + (parts.size() > 1 ? " for a list" : ""),
                     std::string("write ") + forms);
  if (parts.size() > node_devices_max)
    return refused("'" + text + "' names " + std::to_string(parts.size()) + " devices",
                   "a node has at most " + std::to_string(node_devices_max) +
                       "; start a second gossipd for the others");
  for (std::size_t i = 1; i < parts.size(); ++i) {
    if ((parts[i] == "cpu") != (parts[0] == "cpu"))
      return refused("'" + text + "' mixes the CPU and CUDA, which do not round alike",
                     "name devices of one kind, or start a gossipd for each");
    const auto same = [&](const std::string& other) {
      return cuda_index(other) == cuda_index(parts[i]);
    };
    if (parts[i] != "cpu" &&
        std::any_of(parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(i), same))
      return refused("'" + text + "' names " + parts[i] + " twice", "name each CUDA device once");
  }
  return parts;
}

}  // namespace gossipd
