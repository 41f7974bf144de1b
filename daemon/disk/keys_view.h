// daemon/disk/keys_view.h - a cluster's keys, as they can be looked at. A plain value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gossipd {

// Ids only: a secret never leaves its file and the transport.
struct KeysView {
  struct Key {
    std::uint64_t id = 0;
    bool in_use = false;       // what this node dials with
    std::size_t sessions = 0;  // open under it
  };
  std::vector<Key> keys;  // the one in use first
  std::vector<std::uint64_t> retired;
};

}  // namespace gossipd
