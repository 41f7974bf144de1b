// models/blocks/items.h - what a kernel is given, and what it leaves: for a GPU's compiler and for
// ours.
#pragma once

#ifdef __CUDACC_RTC__
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
#else
#include <cstdint>
#endif

namespace gossipd {
namespace blocks {

#ifndef __CUDACC_RTC__
using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
#endif

constexpr u32 chunk_floats = 1024;
constexpr u32 chunks_a_block = 64;

// A block. Addresses are of the device; what a kernel does not use may be 0.
struct Item {
  u64 model, update;           // fp32
  u64 published, received;     // replicas: fp32, or bf16 if `narrow`
  u64 payload, other_payload;  // of top-k
  u32 floats;
  u32 keep, other_keep;    // entries of a full chunk; 0: no payload
  float gain, other_gain;  // of the sum over an item's lanes
};

struct Arguments {
  u64 items, results;
  u32 count, warps;  // items, and warps that take them
  float bound;
  u64 secret;  // of XXH3
};

struct Norms {
  double change, reference;
};
struct Survey {
  u32 peak_of_sum, peak;  // magnitudes as bits, before and after rounding to what a replica holds
  u32 apart;              // differences above the bound
  u32 differs;            // not 0: anywhere
};
struct Moved {
  double squares;
  u32 places, unused;
};

}  // namespace blocks
}  // namespace gossipd
