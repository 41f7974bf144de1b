// tools/lab/wire.h - what a message takes on the wire, for gossipd and the references alike.
#pragma once

#include <cstdint>

namespace gossipd::lab {

// A frame of 16 bytes and a TLS record of 22 (net/peer/FRAME.md), for every chunk of a message.
inline constexpr std::uint64_t frame_and_record_bytes = 16 + 22;
inline constexpr std::uint64_t chunk_bytes = 64 * 1024;

[[nodiscard]] constexpr std::uint64_t on_the_wire(std::uint64_t message_bytes) {
  return message_bytes + (message_bytes + chunk_bytes - 1) / chunk_bytes * frame_and_record_bytes;
}

}  // namespace gossipd::lab
