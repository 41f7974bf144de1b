#include "models/external/shared_model.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace gossipd {

namespace {

constexpr std::uint32_t memory_magic = 0x4d535047;
constexpr std::uint32_t memory_version = 1;
constexpr std::uint64_t page = 4096;
constexpr int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

struct Header {
  std::uint32_t magic;
  std::uint32_t version;
  std::uint64_t floats;
  std::uint64_t schema;
  std::uint64_t at[3];
  std::uint64_t bytes;
};
static_assert(sizeof(Header) == 56);

std::uint64_t part_bytes(std::uint64_t floats) {
  return (floats * sizeof(float) + page - 1) / page * page;
}

Error no_memory(std::uint64_t bytes, int number) {
  return Error{"no-memory", "the memory that the daemon shares with its trainer, " +
                                std::to_string(bytes >> 20) +
                                " MiB, cannot be had: " + std::strerror(number) +
                                "; free memory, or raise the limit of the service (MemoryMax)"};
}

}  // namespace

Result<std::unique_ptr<SharedModel>> SharedModel::create(const Schema& schema) {
  const std::uint64_t each = part_bytes(schema.floats());
  const std::uint64_t bytes = page + 3 * each;
  const int descriptor = ::memfd_create("gossipd-model", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (descriptor < 0) return no_memory(bytes, errno);
  void* begin = MAP_FAILED;
  // The pages are asked for now; what there is no room for cannot be promised.
  if (::fallocate(descriptor, 0, 0, static_cast<off_t>(bytes)) == 0 &&
      ::fcntl(descriptor, F_ADD_SEALS, seals) == 0)
    begin = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (begin == MAP_FAILED) {
    const int number = errno;
    ::close(descriptor);
    return no_memory(bytes, number);
  }
  const Header header{.magic = memory_magic,
                      .version = memory_version,
                      .floats = schema.floats(),
                      .schema = raw(schema.hash()),
                      .at = {page, page + each, page + 2 * each},
                      .bytes = bytes};
  std::memcpy(begin, &header, sizeof header);
  return std::unique_ptr<SharedModel>(
      new SharedModel(schema.floats(), descriptor, static_cast<std::byte*>(begin), bytes));
}

SharedModel::~SharedModel() {
  ::munmap(begin_, bytes_);
  ::close(descriptor_);
}

std::span<float> SharedModel::part(std::uint32_t which) const {
  return {reinterpret_cast<float*>(begin_ + page + which * part_bytes(floats_)),
          static_cast<std::size_t>(floats_)};
}

}  // namespace gossipd
