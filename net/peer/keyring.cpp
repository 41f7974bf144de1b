#include "net/peer/keyring.h"

#include <algorithm>
#include <filesystem>
#include <sstream>

namespace gossipd {
namespace {

constexpr const char* retired_name = "gossipd-key-retired";

Error unknown(std::uint64_t id) {
  return Error{
      "key-unknown",
      "this node holds no key " + to_hex(id) +
          "; `gossipctl key list` shows those it holds, `gossipctl key install FILE` adds one"};
}

Result<std::uint64_t> parse_retired(const std::string& line) {
  std::istringstream words(line);
  std::string name, id, checksum, rest;
  words >> name >> id >> checksum;
  std::uint64_t value = 0;
  if (id.size() != 16 || !from_hex(id, value) || words >> rest)
    return Error{"key-format", std::string(retired_name) + " takes one id of 16 hex digits"};
  if (!checksum.empty() && " " + checksum != line_checksum(name + " " + id))
    return Error{"key-format", "its checksum does not fit: a digit was changed or lost"};
  return value;
}

}  // namespace

const ClusterKey* Keyring::find(std::uint64_t id) const {
  const auto found = std::find_if(keys_.begin(), keys_.end(),
                                  [id](const ClusterKey& key) { return key.id == id; });
  return found == keys_.end() ? nullptr : &*found;
}

bool Keyring::was_retired(std::uint64_t id) const {
  return std::find(retired_.begin(), retired_.end(), id) != retired_.end();
}

std::optional<Error> Keyring::install(const ClusterKey& key) {
  if (find(key.id) != nullptr)
    return Error{"key-known", "this node holds the key " + to_hex(key.id) + " already"};
  if (was_retired(key.id))
    return Error{"key-retired", "the key " + to_hex(key.id) +
                                    " was retired on this node and is not taken in again; make a "
                                    "new one with `gossipctl key generate FILE`. Where it was "
                                    "retired by mistake: stop gossipd, put the key file's line in "
                                    "place of the line gossipd-key-retired of this key in "
                                    "cluster.key of its state directory, and start it again"};
  if (keys_.size() >= keyring_keys_max)
    return Error{"keyring-full",
                 "this node holds " + std::to_string(keys_.size()) +
                     " keys, which is the most; retire one with `gossipctl key retire ID`"};
  keys_.push_back(key);
  return std::nullopt;
}

std::optional<Error> Keyring::use(std::uint64_t id) {
  const auto found = std::find_if(keys_.begin(), keys_.end(),
                                  [id](const ClusterKey& key) { return key.id == id; });
  if (found == keys_.end()) return unknown(id);
  std::rotate(keys_.begin(), found, found + 1);
  return std::nullopt;
}

std::optional<Error> Keyring::retire(std::uint64_t id) {
  if (find(id) == nullptr) return unknown(id);
  if (in_use().id == id)
    return Error{
        "key-in-use",
        "the key " + to_hex(id) +
            " is in use; first `gossipctl key use` another one, on every node of the cluster"};
  std::erase_if(keys_, [id](const ClusterKey& key) { return key.id == id; });
  remember_retired(id);
  return std::nullopt;
}

void Keyring::remember_retired(std::uint64_t id) {
  if (was_retired(id)) return;
  retired_.push_back(id);
  if (retired_.size() > keyring_retired_max) retired_.erase(retired_.begin());
}

Result<Keyring> parse_keyring(const std::string& text) {
  std::istringstream lines(text);
  std::optional<Keyring> ring;
  std::vector<std::uint64_t> retired;
  std::string line;
  for (std::size_t number = 1; std::getline(lines, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const auto in_line = [number](const Error& error) {
      return Error{"key-format", "line " + std::to_string(number) + ": " + error.text};
    };
    if (line.starts_with(retired_name)) {
      const auto id = parse_retired(line);
      if (!id) return in_line(id.error());
      retired.push_back(*id);
      continue;
    }
    const Result<ClusterKey> key = parse_cluster_key(line);
    if (!key) return in_line(key.error());
    if (!ring)
      ring.emplace(*key);
    else if (const auto error = ring->install(*key))
      return in_line(*error);
  }
  if (!ring) return Error{"key-format", "it holds no key"};
  for (const std::uint64_t id : retired) {
    if (ring->find(id) != nullptr)
      return Error{"key-format", "the key " + to_hex(id) + " is in it and said to be retired"};
    ring->remember_retired(id);
  }
  return *ring;
}

std::string format_keyring(const Keyring& ring) {
  std::string text;
  for (const ClusterKey& key : ring.keys()) text += format_cluster_key(key);
  for (const std::uint64_t id : ring.retired()) {
    const std::string line = std::string(retired_name) + " " + to_hex(id);
    text += line + line_checksum(line) + "\n";
  }
  return text;
}

Result<Keyring> read_keyring(const std::string& path, SharedKeyFile shared) {
  const Result<SecretText> text = read_secret_file(path, shared);
  if (!text) return text.error();
  Result<Keyring> ring = parse_keyring(text->text());
  if (ring) return ring;
  std::error_code ignored;
  const bool has_previous = std::filesystem::exists(previous_secret(path), ignored);
  return Error{
      ring.error().code,
      "the key file " + path + " cannot be used: " + ring.error().text +
          "; copy it from another member of the cluster (cluster.key in its state directory)" +
          (has_previous ? ", or put back " + previous_secret(path) +
                              ", which is as it was before its last change"
                        : "")};
}

std::optional<Error> write_keyring(const std::string& path, const Keyring& ring) {
  return write_secret_file(path, SecretText(format_keyring(ring)), Replace::yes);
}

}  // namespace gossipd
