// The node's side of Reach: dials back, and hears what others found at its address.
#include "core/base/printable.h"
#include "core/node/conductor.h"

namespace gossipd {

// A dial has ended: at `address` answered `found`, or nobody.
void Conductor::note_found(const Endpoint& address, NodeId found, const std::string& why) {
  dialer_.reach().on_found(address, found, why);
}

void Conductor::dial_back(Instant now) {
  if (life_.is_going()) return;
  for (const SessionId id : peers_.established_ids()) {
    Session& session = *peers_.find(id);
    const NodeId member = session.theirs->id;
    const Endpoint address = session.theirs->address;
    Reach& reach = dialer_.reach();
    if (reach.is_due(member, now)) {
      if (address == config_.advertise || (config_.leads_here && config_.leads_here(address))) {
        reach.on_dial(member, now);
        reach.on_found(address, state_.id, "it leads to " + config_.name + " itself");
      } else if (may_dial(address, now)) {
        reach.on_dial(member, now);
        dial(address, member, now);
      }
    }
    if (const auto finding = reach.take_untold(member))
      send(session, Reached{finding->address, finding->answers, finding->reason});
  }
}

void Conductor::on_reached(const Session& session, const Reached& told) {
  Reach& reach = dialer_.reach();
  const bool changed = reach.on_told(session.theirs->id, {told.address, told.answers, told.reason});
  if (!changed) return;
  if (reach.own() == Reachability::reachable)
    return log(Level::info, "event=reachable address=" + log_word(to_string(config_.advertise)) +
                                " by=" + log_word(session.theirs->name));
  log(Level::warning, "event=not-reachable address=" + log_word(to_string(config_.advertise)) +
                          " by=" + log_word(session.theirs->name) +
                          " reason=" + log_quoted(told.reason) +
                          " hint=" + log_quoted(reachability_hint(reach.own(), config_.advertise)));
}

}  // namespace gossipd
