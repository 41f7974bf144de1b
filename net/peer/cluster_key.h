// net/peer/cluster_key.h - the secret of a cluster: every holder is a member.
//
// The first node generates it and writes it to a file; the others start with that file. It is the
// external pre-shared key of TLS 1.3 (RFC 8446, 4.2.11), so no certificates exist. A key is
// one line of text, in a file readable by its owner only:
//
//     gossipd-key-1 <key id, 16 hex digits> <secret, 64 hex digits> <checksum, 8 hex digits>
//
// The checksum (low 32 bits of XXH3-64 of what stands before it, from the first letter to the last)
// finds mistyped digits; lines of earlier releases have none. The id is public (it travels in clear
// text as the PSK identity) and only tells keys apart. A file may hold several keys:
// net/peer/keyring.h.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "core/base/result.h"
#include "core/base/types.h"
#include "net/peer/secret_file.h"

namespace gossipd {

struct ClusterKey {
  std::uint64_t id = 0;
  std::array<std::byte, 32> secret{};

  ClusterKey() = default;
  ClusterKey(const ClusterKey&) = default;
  ClusterKey& operator=(const ClusterKey&) = default;
  ~ClusterKey();  // wipes the secret

  bool operator==(const ClusterKey&) const = default;
};

// From the operating system's random source. Error "random" if that fails.
[[nodiscard]] Result<ClusterKey> generate_cluster_key();

// " <checksum>" for a line of a key file.
[[nodiscard]] std::string line_checksum(const std::string& words);

// The line of a key, newline included, and back. Error "key-format".
[[nodiscard]] std::string format_cluster_key(const ClusterKey& key);
[[nodiscard]] Result<ClusterKey> parse_cluster_key(const std::string& text);

// Creates `path` with mode 0600: whole and durable, or not at all. Never replaces a file: Error
// "key-exists". Otherwise errors as write_secret_file(). nullopt is success.
[[nodiscard]] std::optional<Error> write_cluster_key(const std::string& path,
                                                     const ClusterKey& key);

// Reads a file with one key. Errors: as read_secret_file(), "key-format".
[[nodiscard]] Result<ClusterKey> read_cluster_key(const std::string& path,
                                                  SharedKeyFile shared = SharedKeyFile::refuse);

}  // namespace gossipd
