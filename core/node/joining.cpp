// A model for a node that has none: from its neighbours, or from its own disk.
#include "core/node/node_impl.h"

namespace gossipd {

ModelAssembly::Links NodeImpl::open_links_by_peer() const {
  ModelAssembly::Links links;
  for (const auto& [id, neighbour] : peers_.neighbours())
    if (neighbour.link && neighbour.link->is_open()) links[id] = neighbour.link.get();
  return links;
}

void NodeImpl::order_blocks(NodeId of, Ready& ready, Instant now) const {
  std::vector<ModelSource::Teller> others;
  for (const auto& [id, session] : peers_.sessions()) {
    if (!session.ready_mine || session.ready_mine->has_model || session.theirs->id == of) continue;
    if (session.ready_theirs && !session.ready_theirs->has_model) continue;
    others.push_back({.link = *peers_.neighbour(session.theirs->id)->link,
                      .first_block = session.ready_mine->first_block});
  }
  source_.order_blocks(ready, open_links_by_peer(), others, now);
}

bool NodeImpl::adopt(Instant now) {
  if (!needs_model() || !round_.is_resting()) return false;
  const auto from = source_.assemble(open_links_by_peer(), now, round_.copies());
  if (from) take_over(*from, now);
  return from.has_value();
}

void NodeImpl::on_restored(std::vector<float> model, Instant now) {
  if (!life_.is(Phase::broken) || !round_.is_resting()) return;
  if (source_.restore(model, round_.copies())) return take_over("checkpoint", now);
  log(Level::error,
      "event=no-model-to-restore hint=\"start a neighbour, or remove the state directory and "
      "join again\"");
}

// The model lies in the round's copies.
void NodeImpl::take_over(const std::string& from, Instant now) {
  source_.adopted();
  weight_.join(round_.last().step);
  log(Level::info, "event=model-adopted from=" + from);
  set_phase(life_.with_model(), "the model has arrived");
  check_progress(now);
  hand_out(round_.adopt(steps_allowed()));
  // Two nodes that met while neither had a model start over, now that one has.
  std::vector<SessionId> again;
  for (const auto& [id, session] : peers_.sessions())
    if (session.ready_mine && session.ready_theirs && !session.ready_mine->has_model &&
        !session.ready_theirs->has_model)
      again.push_back(id);
  for (const SessionId id : again)
    close(id, "a model has arrived since; opening the link again", now, true);
}

}  // namespace gossipd
