// models/blocks/device_blocks.h - what an exchange computes, for many blocks at once, on a device
// that holds model, update and replicas; only compressed bytes and a few numbers a block pass
// between it and the host.
//
// The problem: a model in a GPU's memory is copied to the host for every exchange, and measured,
// encoded and mixed there, at a tenth of the GPU's memory speed.
//
// The answer: kernels of a GPU that compute bit for bit what core/codec's do, so that a node which
// uses them and one which does not hold the same replicas. They are C++ of a restricted kind
// (warp.inc), compiled by NVRTC where there is a GPU and by our compiler for tests.
//
// State: the daemon does not use it yet. What other codecs than top-k say is encoded on the host.
#pragma once

#include <span>
#include <vector>

#include "core/codec/kernels.h"
#include "models/blocks/device.h"

namespace gossipd::blocks {

// Payloads of top-k, one after the other in the order of their items: on the device, and the same
// bytes on the host.
class Payloads {
 public:
  explicit Payloads(Device& device) : device_(device), there_(device) {}
  ~Payloads();
  Payloads(const Payloads&) = delete;
  Payloads& operator=(const Payloads&) = delete;

  // Room for a payload of each item, of `keep` entries a full chunk; item.payload is where it lies.
  // What was here before is gone.
  void arrange(std::span<Item> items);
  [[nodiscard]] std::span<std::byte> here() const { return {here_, bytes_}; }
  void upload();
  void download();

 private:
  Device& device_;
  DeviceMemory there_;
  std::byte* here_ = nullptr;
  std::size_t bytes_ = 0, room_ = 0;
};

class DeviceBlocks {
 public:
  // `narrow`: replicas in bf16. The device outlives it.
  DeviceBlocks(Device& device, bool narrow);

  // Of each item, as the function of that name in core/codec/kernels.h.
  [[nodiscard]] std::vector<ChangeNorms> change(std::span<const Item>);
  [[nodiscard]] std::vector<ChangeNorms> distance(std::span<const Item>);
  [[nodiscard]] std::vector<double> transfer(std::span<const Item>);
  void contract(std::span<const Item>);
  [[nodiscard]] std::vector<std::uint64_t> hash_received(std::span<const Item>);

  // What encode() has to know: whether model + update is finite and can be encoded, whether it
  // differs from `published`, and in how many places by more than `cut`.
  [[nodiscard]] std::vector<Survey> survey(std::span<const Item>, float cut);

  // top_k; `published` advances. Of items that survey() has found encodable, with `keep` set.
  void encode(std::span<Item>, Payloads& out);
  // Of payloads that have been arranged for the items and are on the host. What is refused changes
  // nothing.
  [[nodiscard]] std::vector<ApplyError> apply(std::span<const Item>, Payloads& in,
                                              float magnitude_max);

  // What the payloads of each item add up to, one or two of them, and gain · that added to the
  // update: outer momentum.
  [[nodiscard]] std::vector<Moved> moved(std::span<const Item>);
  void add_moved(std::span<const Item>);

 private:
  [[nodiscard]] Kernel of(Kernel wide) const;
  template <typename Result>
  [[nodiscard]] std::vector<Result> run(Kernel, std::span<const Item>, std::size_t warps, u8 before,
                                        float bound = 0);
  void start(Kernel, std::span<const Item>, std::size_t warps, u64 results, float bound);

  Device& device_;
  const bool narrow_;
  DeviceMemory items_, results_, secret_;
};

}  // namespace gossipd::blocks
