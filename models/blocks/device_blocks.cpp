#include "models/blocks/device_blocks.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <type_traits>
#include <utility>

#include "core/base/result.h"

namespace gossipd::blocks {
namespace {

constexpr u32 hash_floats_min = 61;  // shorter ones have another form, and little work
static_assert(chunk_floats == top_k_chunk);
static_assert(std::is_trivially_copyable_v<Item> && sizeof(ChangeNorms) == sizeof(Norms));

std::size_t payload_bytes(const Item& item) {
  return encoded_size({CodecId::top_k, static_cast<std::uint16_t>(item.keep)}, item.floats);
}

std::size_t chunks_of(std::span<const Item> items) { return items.size() * chunks_a_block; }

}  // namespace

Payloads::~Payloads() {
  if (here_ != nullptr) device_.release_host(here_);
}

void Payloads::arrange(std::span<Item> items) {
  bytes_ = 0;
  for (Item& item : items) {
    GOSSIPD_ASSERT(item.keep > 0 && item.keep <= top_k_keep_max);
    item.payload = bytes_;
    bytes_ += payload_bytes(item);
  }
  const u64 first = there_.of(bytes_ + sizeof(u32));  // kernels read whole words
  for (Item& item : items) item.payload += first;
  if (bytes_ <= room_) return;
  if (here_ != nullptr) device_.release_host(std::exchange(here_, nullptr));
  room_ = 0;
  here_ = static_cast<std::byte*>(device_.allocate_host(bytes_));
  room_ = bytes_;
}

void Payloads::upload() { device_.upload(there_.address(), here_, bytes_); }

void Payloads::download() { device_.download(here_, there_.address(), bytes_); }

DeviceBlocks::DeviceBlocks(Device& device, bool narrow)
    : device_(device), narrow_(narrow), items_(device), results_(device), secret_(device) {
  device_.upload(secret_.of(sizeof XXH3_kSecret), XXH3_kSecret, sizeof XXH3_kSecret);
}

Kernel DeviceBlocks::of(Kernel wide) const {
  return static_cast<Kernel>(static_cast<std::uint8_t>(wide) + (narrow_ ? 1 : 0));
}

void DeviceBlocks::start(Kernel kernel, std::span<const Item> items, std::size_t warps, u64 results,
                         float bound) {
  device_.upload(items_.of(items.size_bytes()), items.data(), items.size_bytes());
  device_.launch(kernel, {.items = items_.address(),
                          .results = results,
                          .count = static_cast<u32>(items.size()),
                          .warps = static_cast<u32>(warps),
                          .bound = bound,
                          .secret = secret_.address()});
}

template <typename Result>
std::vector<Result> DeviceBlocks::run(Kernel kernel, std::span<const Item> items, std::size_t warps,
                                      u8 before, float bound) {
  std::vector<Result> out(items.size());
  if (items.empty()) return out;
  const std::size_t bytes = out.size() * sizeof(Result);
  device_.fill(results_.of(bytes), before, bytes);
  start(kernel, items, warps, results_.address(), bound);
  device_.download(out.data(), results_.address(), bytes);
  return out;
}

std::vector<ChangeNorms> DeviceBlocks::change(std::span<const Item> items) {
  return run<ChangeNorms>(of(Kernel::change_wide), items, items.size(), 0);
}

std::vector<ChangeNorms> DeviceBlocks::distance(std::span<const Item> items) {
  return run<ChangeNorms>(of(Kernel::distance_wide), items, items.size(), 0);
}

std::vector<double> DeviceBlocks::transfer(std::span<const Item> items) {
  return run<double>(of(Kernel::transfer_wide), items, (items.size() + 1) / 2, 0);
}

void DeviceBlocks::contract(std::span<const Item> items) {
  if (!items.empty()) start(of(Kernel::contract_wide), items, chunks_of(items), 0, 0);
}

std::vector<std::uint64_t> DeviceBlocks::hash_received(std::span<const Item> items) {
  std::vector<Item> large(items.begin(), items.end());
  std::erase_if(large, [](const Item& item) { return item.floats < hash_floats_min; });
  const auto hashes = run<std::uint64_t>(of(Kernel::hash_wide), large, large.size(), 0);
  std::vector<std::uint64_t> out;
  auto next = hashes.begin();
  for (const Item& item : items) {
    if (item.floats >= hash_floats_min) {
      out.push_back(*next++);
      continue;
    }
    std::vector<float> values(item.floats);
    if (narrow_) {
      std::vector<std::uint16_t> bits(item.floats);
      device_.download(bits.data(), item.received, 2 * bits.size());
      kernels().widen(values, bits);
    } else {
      device_.download(values.data(), item.received, 4 * values.size());
    }
    out.push_back(kernels().hash(values));
  }
  return out;
}

std::vector<Survey> DeviceBlocks::survey(std::span<const Item> items, float cut) {
  return run<Survey>(of(Kernel::survey_wide), items, chunks_of(items), 0, cut);
}

void DeviceBlocks::encode(std::span<Item> items, Payloads& out) {
  out.arrange(items);
  if (items.empty()) return;
  start(of(Kernel::encode_wide), items, chunks_of(items), 0, 0);
  out.download();
}

std::vector<ApplyError> DeviceBlocks::apply(std::span<const Item> items, Payloads& in,
                                            float magnitude_max) {
  std::vector<ApplyError> out(items.size(), ApplyError::none);
  if (items.empty()) return out;
  in.upload();
  constexpr u8 none = 0xff;
  std::vector<u32> errors(items.size());
  const std::size_t size = errors.size() * sizeof(u32);
  device_.fill(results_.of(size), none, size);
  start(Kernel::check_top_k, items, chunks_of(items), results_.address(), magnitude_max);
  start(of(Kernel::apply_wide), items, chunks_of(items), results_.address(), magnitude_max);
  device_.download(errors.data(), results_.address(), size);
  for (std::size_t i = 0; i < out.size(); ++i)
    if (errors[i] != ~u32{0}) out[i] = static_cast<ApplyError>(errors[i] % 8);
  return out;
}

std::vector<Moved> DeviceBlocks::moved(std::span<const Item> items) {
  return run<Moved>(Kernel::moved, items, items.size(), 0);
}

void DeviceBlocks::add_moved(std::span<const Item> items) {
  if (!items.empty()) start(Kernel::add_moved, items, chunks_of(items), 0, 0);
}

}  // namespace gossipd::blocks
