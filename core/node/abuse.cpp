// Peers that go beyond a bound: they are refused, and rest.
#include <algorithm>
#include <utility>

#include "core/node/conductor.h"

namespace gossipd {
namespace {

// A message of a turn takes less even at 200 B/s.
constexpr Duration turn_owed_max = std::chrono::minutes(10);
constexpr Duration forgiven_after = std::chrono::hours(1);

}  // namespace

// Each rest is twice as long as the last one, if that ended less than an hour ago, and the link's
// replicas are forgotten.
void Conductor::quarantine(Session& session, const std::string& why, Instant now) {
  Neighbour& neighbour = peers_.neighbour_of(session);
  if (now - neighbour.quarantined_until > forgiven_after) neighbour.rests.forget();
  const Duration length = neighbour.rests.fail();
  neighbour.refusals = 0;
  neighbour.quarantined_until = now + length;
  if (neighbour.link) neighbour.link->forget();
  const auto whole_seconds = std::to_string(static_cast<int>(seconds(length)));
  refuse(session, Error{"quarantined", why + "; this link rests for " + whole_seconds + " s"}, now);
}

// A turn that stops half-way, or an answer that never comes, holds a link that another peer could
// have. What both ends remember is kept.
void Conductor::close_stalled_links(Instant now) {
  for (const SessionId id : peers_.established_ids()) {
    Session& session = *peers_.find(id);
    Neighbour& neighbour = peers_.neighbour_of(session);
    if (!neighbour.link || !neighbour.link->is_owed_a_turn()) {
      neighbour.turn_owed_since = now;
    } else if (now - neighbour.turn_owed_since >= turn_owed_max) {
      refuse(session,
             Error{"turn-stalled",
                   "no message of a turn has come for 10 minutes; the link may open again"},
             now);
    }
  }
}

void Conductor::on_resync(Session& session, const Resync& resync, Instant now) {
  Neighbour& neighbour = peers_.neighbour_of(session);
  if (!neighbour.link) return;
  const std::size_t fresh = neighbour.link->on_resync(resync);
  if (neighbour.resyncs.on_asked(fresh, schema_.blocks().size(),
                                 neighbour.link->counters().turns_spoken))
    quarantine(session, "it asks for the whole model again and again", now);
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
