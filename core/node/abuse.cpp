// Peers that go beyond a bound: they are refused, and rest.
#include <algorithm>
#include <utility>

#include "core/node/conductor.h"

namespace gossipd {
// Each rest is twice as long as the last one, and the link's replicas are forgotten.
void Conductor::quarantine(Session& session, const std::string& why, Instant now) {
  Neighbour& neighbour = peers_.neighbour_of(session);
  const Duration length = neighbour.rests.fail();
  neighbour.refusals = 0;
  neighbour.quarantined_until = now + length;
  if (neighbour.link) neighbour.link->forget();
  const auto whole_seconds = std::to_string(static_cast<int>(seconds(length)));
  refuse(session, Error{"quarantined", why + "; this link rests for " + whole_seconds + " s"}, now);
}

void Conductor::on_flood(Session& session, const std::string& what, Instant now) {
  if (session.established()) return quarantine(session, what, now);
  refuse(session, Error{"flood", what}, now);
}

bool Conductor::is_admitted(Session& session, const Control& message, std::size_t bytes,
                            Instant now) {
  ControlAllowance& allowance =
      session.established() ? peers_.neighbour_of(session).allowance : session.allowance;
  return allowance.admit(message, bytes, now);
}

}  // namespace gossipd
