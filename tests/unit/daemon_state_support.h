// tests/unit/daemon_state_support.h - a node's state with something in every field, for the tests
// of its files.
#pragma once

#include <string>

#include "daemon/disk/state_store.h"
#include "tests/unit/daemon_support.h"

namespace gossipd {

inline constexpr std::int64_t now_s = 1'800'000'000;

inline NodeState some_state(std::uint64_t incarnation) {
  NodeState state;
  state.id = NodeId{0x1234};
  state.cluster = ClusterId{0xfeed};
  state.incarnation = incarnation;
  state.left = true;
  state.job = JobHash{0xffffffffffffffffull};
  state.generation = 3;
  state.meeting_in = ClusterId{0xfeee};
  state.own_samples = (1ull << 60) + 1;
  MemberRecord other;
  other.id = NodeId{7};
  other.name = "b\xfcx \"2\"";  // not UTF-8: whatever a peer calls itself
  other.address = {"10.0.0.2", 7610};
  other.state = MemberState::suspect;
  other.phase = Phase::finishing;
  other.samples = 123456789;
  other.loss = 0.1;
  state.members.push_back(other);
  state.met.insert(other.id);
  return state;
}

inline bool mentions(const std::string& text, const std::string& what) {
  return text.find(what) != std::string::npos;
}

}  // namespace gossipd
