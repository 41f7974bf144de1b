#include "core/membership/member.h"

#include "core/base/result.h"

namespace gossipd {

const char* to_string(MemberState state) {
  switch (state) {
    case MemberState::alive: return "alive";
    case MemberState::suspect: return "suspect";
    case MemberState::failed: return "failed";
    case MemberState::left: return "left";
    case MemberState::forgotten: return "forgotten";
  }
  GOSSIPD_ASSERT(!"a MemberState without a name");
}

const char* to_string(Reachability reachability) {
  switch (reachability) {
    case Reachability::unknown: return "unknown";
    case Reachability::reachable: return "reachable";
    case Reachability::dials_out: return "dials-out";
    case Reachability::address_silent: return "address-silent";
  }
  GOSSIPD_ASSERT(!"a Reachability without a name");
}

std::string reachability_hint(Reachability reachability, const Endpoint& advertised) {
  if (reachability == Reachability::dials_out)
    return "this node only dials out: open TCP port " + std::to_string(advertised.port) +
           " towards it, or name the address that reaches it with --advertise HOST:PORT";
  if (reachability == Reachability::address_silent)
    return "--advertise names an address at which this node is not to be found: correct it, or "
           "forward it to this node's port";
  return {};
}

const char* to_string(Phase phase) {
  switch (phase) {
    case Phase::joining: return "joining";
    case Phase::waiting_for_data: return "waiting-for-data";
    case Phase::preparing: return "preparing";
    case Phase::syncing: return "syncing";
    case Phase::training: return "training";
    case Phase::paused: return "paused";
    case Phase::finishing: return "finishing";
    case Phase::finished: return "finished";
    case Phase::leaving: return "leaving";
    case Phase::left: return "left";
    case Phase::broken: return "broken";
    case Phase::waiting_for_trainer: return "waiting-for-trainer";
  }
  GOSSIPD_ASSERT(!"a Phase without a name");
}

}  // namespace gossipd
