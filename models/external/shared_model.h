// models/external/shared_model.h - the memory file that a daemon and its trainer share: an update
// and two snapshots of P floats each, behind a header.
//
// Sealed, so that it keeps its size whoever holds it, and its pages are there from the start: a
// machine without room says so here and not by SIGBUS. The daemon keeps its own model in it while
// nobody trains. One owner; the spans live as long as it does.
#pragma once

#include <memory>

#include "core/base/result.h"
#include "core/model/schema.h"

namespace gossipd {

class SharedModel {
 public:
  // All zeros. Code "no-memory".
  [[nodiscard]] static Result<std::unique_ptr<SharedModel>> create(const Schema&);
  ~SharedModel();
  SharedModel(const SharedModel&) = delete;
  SharedModel& operator=(const SharedModel&) = delete;

  [[nodiscard]] std::span<float> update() const { return part(0); }
  [[nodiscard]] std::span<float> snapshot(std::uint32_t which) const { return part(1 + which); }
  [[nodiscard]] int descriptor() const { return descriptor_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

 private:
  SharedModel(std::uint64_t floats, int descriptor, std::byte* begin, std::uint64_t bytes)
      : floats_(floats), descriptor_(descriptor), begin_(begin), bytes_(bytes) {}
  [[nodiscard]] std::span<float> part(std::uint32_t which) const;

  const std::uint64_t floats_;
  const int descriptor_;
  std::byte* const begin_;
  const std::uint64_t bytes_;
};

}  // namespace gossipd
