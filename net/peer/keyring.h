// net/peer/keyring.h - the keys of one cluster, so that its secret can change while it runs.
//
// A node offers the first key when it dials and accepts each of them, so nodes that have one key in
// common find each other. To change the secret: install the new key on every node, then use it on
// every node, then retire the old one on every node. A retired key is never accepted again. The
// file is a key file (cluster_key.h) with a line for each key, the one in use first, and a line
// `gossipd-key-retired <id> <checksum>` for each that was retired. A change keeps the replaced file
// as FILE.previous, which is never read automatically.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "net/peer/cluster_key.h"

namespace gossipd {

inline constexpr std::size_t keyring_keys_max = 8;
inline constexpr std::size_t keyring_retired_max = 64;  // the oldest is forgotten first

class Keyring {
 public:
  Keyring(const ClusterKey& key) : keys_{key} {}  // NOLINT: a single key is a keyring

  [[nodiscard]] const ClusterKey& in_use() const { return keys_.front(); }
  [[nodiscard]] const ClusterKey* find(std::uint64_t id) const;                // nullptr: not held
  [[nodiscard]] const std::vector<ClusterKey>& keys() const { return keys_; }  // never empty
  [[nodiscard]] const std::vector<std::uint64_t>& retired() const { return retired_; }
  [[nodiscard]] bool was_retired(std::uint64_t id) const;

  // nullopt is success. Codes "key-known", "key-retired", "keyring-full".
  [[nodiscard]] std::optional<Error> install(const ClusterKey& key);
  // Codes "key-unknown"; retire also "key-in-use".
  [[nodiscard]] std::optional<Error> use(std::uint64_t id);
  [[nodiscard]] std::optional<Error> retire(std::uint64_t id);

  void remember_retired(std::uint64_t id);  // a key that is not held

  bool operator==(const Keyring&) const = default;

 private:
  std::vector<ClusterKey> keys_;
  std::vector<std::uint64_t> retired_;  // newest last
};

// Error "key-format" names the line.
[[nodiscard]] Result<Keyring> parse_keyring(const std::string& text);
[[nodiscard]] std::string format_keyring(const Keyring& ring);

// Errors: as read_secret_file(), "key-format".
[[nodiscard]] Result<Keyring> read_keyring(const std::string& path,
                                           SharedKeyFile shared = SharedKeyFile::refuse);
// Replaces the file, whole and durable. Errors as write_secret_file().
[[nodiscard]] std::optional<Error> write_keyring(const std::string& path, const Keyring& ring);

}  // namespace gossipd
