#include "core/node/peers.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace gossipd {

static_assert(Peers::neighbours_max > Peers::sessions_max);

// ---- sessions -----------------------------------------------------------------------------------

Peers::Session& Peers::open(SessionId id, bool outbound, Endpoint remote) {
  GOSSIPD_ASSERT(!is_full() && !sessions_.contains(id));
  Session& session = sessions_[id];
  session.id = id;
  session.outbound = outbound;
  session.remote = std::move(remote);
  return session;
}

Peers::Session* Peers::find(SessionId id) {
  const auto found = sessions_.find(id);
  return found == sessions_.end() ? nullptr : &found->second;
}

const Peers::Session* Peers::find(SessionId id) const {
  const auto found = sessions_.find(id);
  return found == sessions_.end() ? nullptr : &found->second;
}

Peers::Session* Peers::session_of(NodeId peer) {
  const Neighbour* found = neighbour(peer);
  return found == nullptr ? nullptr : find(found->session);
}

const Peers::Session* Peers::session_of(NodeId peer) const {
  const Neighbour* found = neighbour(peer);
  return found == nullptr ? nullptr : find(found->session);
}

Peers::Neighbour& Peers::establish(Session& session) {
  GOSSIPD_ASSERT(session.theirs && session_of(session.theirs->id) == nullptr);
  const NodeId peer = session.theirs->id;
  if (neighbours_.size() >= neighbours_max && !neighbours_.contains(peer)) make_room();
  session.stage = Session::Stage::established;
  Neighbour& neighbour = neighbours_[peer];
  neighbour.session = session.id;
  return neighbour;
}

std::optional<Peers::Session> Peers::close(SessionId id, Instant now) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return std::nullopt;
  Session session = std::move(found->second);
  sessions_.erase(found);
  if (session.established()) {
    Neighbour& neighbour = neighbours_.at(session.theirs->id);
    neighbour.session = SessionId{};
    neighbour.down_since = now;
    neighbour.path.on_session_end(now);
  }
  return session;
}

std::vector<SessionId> Peers::ids() const {
  std::vector<SessionId> ids;
  for (const auto& [id, session] : sessions_) ids.push_back(id);
  return ids;
}

std::vector<SessionId> Peers::established_ids() const {
  std::vector<SessionId> ids;
  for (const auto& [id, session] : sessions_)
    if (session.established()) ids.push_back(id);
  return ids;
}

std::size_t Peers::established() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(sessions_, [](const auto& item) { return item.second.established(); }));
}

std::set<Endpoint> Peers::linked_addresses() const {
  std::set<Endpoint> addresses;
  for (const auto& [id, session] : sessions_)
    if (session.established()) addresses.insert(session.theirs->address);
  return addresses;
}

// ---- neighbours ---------------------------------------------------------------------------------

Peers::Neighbour* Peers::neighbour(NodeId peer) {
  const auto found = neighbours_.find(peer);
  return found == neighbours_.end() ? nullptr : &found->second;
}

const Peers::Neighbour* Peers::neighbour(NodeId peer) const {
  const auto found = neighbours_.find(peer);
  return found == neighbours_.end() ? nullptr : &found->second;
}

Peers::Neighbour& Peers::neighbour_of(const Session& session) {
  GOSSIPD_ASSERT(session.established());
  return neighbours_.at(session.theirs->id);
}

bool Peers::may_link(NodeId peer, Instant now) const {
  const Neighbour* known = neighbour(peer);
  return known == nullptr || (known->session == SessionId{} && now >= known->quarantined_until);
}

void Peers::bound_replicas(std::size_t most) {
  std::vector<std::pair<Instant, NodeId>> remembered;
  for (const auto& [id, neighbour] : neighbours_)
    if (neighbour.session == SessionId{} && neighbour.link && neighbour.link->has_replicas())
      remembered.emplace_back(neighbour.down_since, id);
  std::ranges::sort(remembered);
  remembered.resize(remembered.size() - std::min(remembered.size(), most));
  for (const auto& [since, id] : remembered) neighbours_.at(id).link->forget();
}

void Peers::forget_links(Instant now) {
  for (auto& [id, neighbour] : neighbours_)
    if (neighbour.link && neighbour.session == SessionId{} &&
        now - neighbour.down_since > link_memory)
      neighbour.link.reset();
}

// The neighbour that has been down for longest goes.
void Peers::make_room() {
  const auto oldest = std::ranges::min_element(neighbours_, {}, [](const auto& item) {
    return std::tuple(item.second.session != SessionId{}, item.second.down_since, item.first);
  });
  GOSSIPD_ASSERT(oldest->second.session == SessionId{});
  neighbours_.erase(oldest);
}

void Peers::check_invariants() const {
  GOSSIPD_ASSERT(sessions_.size() <= sessions_max && neighbours_.size() <= neighbours_max);
  for (const auto& [id, session] : sessions_) {
    GOSSIPD_ASSERT(session.id == id && (session.theirs || session.stage < Session::Stage::doubted));
    GOSSIPD_ASSERT(!session.established() || neighbour(session.theirs->id)->session == id);
  }
  for (const auto& [peer, neighbour] : neighbours_) {
    const Session* session = find(neighbour.session);
    GOSSIPD_ASSERT((neighbour.session == SessionId{}) == (session == nullptr));
    GOSSIPD_ASSERT(session == nullptr || (session->established() && session->theirs->id == peer));
    if (neighbour.link) neighbour.link->check_invariants();
  }
}

}  // namespace gossipd
