// tests/counted_memory.h - counts every allocation of host memory, for a program of one source file
// beside doctest's main.
//
// Replaces operator new for the whole program, so it excludes the sanitizers' and may be in only
// one file.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace counted {
inline std::atomic<std::int64_t> live{0};
inline std::atomic<std::int64_t> peak{0};
constexpr std::size_t header = alignof(std::max_align_t);

inline void* allocate(std::size_t bytes) {
  auto* block = static_cast<std::size_t*>(std::malloc(bytes + header));
  if (block == nullptr) throw std::bad_alloc();
  *block = bytes;
  const std::int64_t now =
      live.fetch_add(static_cast<std::int64_t>(bytes)) + static_cast<std::int64_t>(bytes);
  std::int64_t most = peak.load();
  while (now > most && !peak.compare_exchange_weak(most, now)) {
  }
  return reinterpret_cast<std::byte*>(block) + header;
}

inline void release(void* pointer) noexcept {
  if (pointer == nullptr) return;
  auto* block = reinterpret_cast<std::size_t*>(static_cast<std::byte*>(pointer) - header);
  live.fetch_sub(static_cast<std::int64_t>(*block));
  std::free(block);
}
}  // namespace counted

void* operator new(std::size_t bytes) { return counted::allocate(bytes); }
void* operator new[](std::size_t bytes) { return counted::allocate(bytes); }
void operator delete(void* pointer) noexcept { counted::release(pointer); }
void operator delete[](void* pointer) noexcept { counted::release(pointer); }
void operator delete(void* pointer, std::size_t) noexcept { counted::release(pointer); }
void operator delete[](void* pointer, std::size_t) noexcept { counted::release(pointer); }
