#include "net/peer/cluster_key.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <openssl/crypto.h>
#include <openssl/rand.h>

#include <sstream>

namespace gossipd {
namespace {

constexpr const char* format_name = "gossipd-key-1";

bool parse_secret(const std::string& hex, std::array<std::byte, 32>& out) {
  if (hex.size() != 2 * out.size()) return false;
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::uint64_t value = 0;
    if (!from_hex(hex.substr(2 * i, 2), value)) return false;
    out[i] = static_cast<std::byte>(value);
  }
  return true;
}

}  // namespace

ClusterKey::~ClusterKey() { OPENSSL_cleanse(secret.data(), secret.size()); }

Result<ClusterKey> generate_cluster_key() {
  ClusterKey key;
  const bool ok = RAND_bytes(reinterpret_cast<unsigned char*>(&key.id), sizeof key.id) == 1 &&
                  RAND_priv_bytes(reinterpret_cast<unsigned char*>(key.secret.data()),
                                  static_cast<int>(key.secret.size())) == 1;
  if (!ok) return Error{"random", "the operating system gave no random bytes for a cluster key"};
  return key;
}

std::string line_checksum(const std::string& words) {
  return " " + to_hex(XXH3_64bits(words.data(), words.size())).substr(8);
}

std::string format_cluster_key(const ClusterKey& key) {
  static constexpr char digits[] = "0123456789abcdef";
  std::string text = std::string(format_name) + " " + to_hex(key.id) + " ";
  for (const std::byte b : key.secret) {
    text += digits[std::to_integer<unsigned>(b) >> 4];
    text += digits[std::to_integer<unsigned>(b) & 15];
  }
  return text + line_checksum(text) + "\n";
}

Result<ClusterKey> parse_cluster_key(const std::string& text) {
  std::istringstream words(text);
  std::string format, id, secret, checksum, rest;
  words >> format >> id >> secret >> checksum;
  if (format != format_name) {
    return Error{"key-format", std::string("it does not begin with '") + format_name +
                                   "': not a cluster key, or one of a newer gossipd"};
  }
  ClusterKey key;
  if (id.size() != 16 || !from_hex(id, key.id))
    return Error{"key-format", "the key id is not 16 hex digits"};
  if (!parse_secret(secret, key.secret))
    return Error{"key-format", "the secret is not 64 hex digits"};
  if (!checksum.empty() && " " + checksum != line_checksum(format + " " + id + " " + secret))
    return Error{"key-format", "its checksum does not fit: a digit was changed or lost"};
  if (words >> rest)
    return Error{"key-format", "there is text after the checksum: a key is one line"};
  return key;
}

std::optional<Error> write_cluster_key(const std::string& path, const ClusterKey& key) {
  return write_secret_file(path, SecretText(format_cluster_key(key)), Replace::no);
}

Result<ClusterKey> read_cluster_key(const std::string& path, SharedKeyFile shared) {
  const Result<SecretText> text = read_secret_file(path, shared);
  if (!text) return text.error();
  Result<ClusterKey> key = parse_cluster_key(text->text());
  if (!key)
    return Error{key.error().code, "the key file " + path + " cannot be used: " + key.error().text +
                                       "; copy it again, whole, from where it was generated"};
  return key;
}

}  // namespace gossipd
