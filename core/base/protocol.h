// core/base/protocol.h - the versions of the protocol between two nodes, and which of them two
// nodes speak.
//
// A node speaks one older version beside its own, so that a cluster is upgraded node by node while
// it trains. Its hello names the oldest it speaks as `protocol` and the newest as `newest`: a
// release that knows one version only looks at `protocol`, and skips the other. Frames of an older
// version are a part of the newer's, told apart by flags, so decoders need not know the version.
//
//     2  turns, replica states, records of members as they are
//     3  a block that goes whole carries the XXH3-64 of what it decodes to (turn.h), and a node
//        without a model says in which order it wants to be told its blocks (Ready)
//
// What an older release skips needs no version: the instance and the generation in a hello, Cloned,
// Reached, and the last items of records and stats. Members that hear of each other only through
// an older release do not know each other's version, device, reachability and accuracy.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

namespace gossipd {

inline constexpr std::uint32_t protocol_version = 3;  // the newest …
inline constexpr std::uint32_t protocol_oldest = 2;   // … and the oldest that this release speaks
inline constexpr std::uint32_t protocol_of_block_hashes = 3;

struct ProtocolRange {
  std::uint32_t oldest = protocol_oldest;
  std::uint32_t newest = protocol_version;
};

// The newest that both speak; nothing if there is none.
[[nodiscard]] inline std::optional<std::uint32_t> common_protocol(const ProtocolRange& a,
                                                                  const ProtocolRange& b) {
  const std::uint32_t newest = std::min(a.newest, b.newest);
  return newest >= std::max(a.oldest, b.oldest) ? std::optional(newest) : std::nullopt;
}

}  // namespace gossipd
