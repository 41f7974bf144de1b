// The sessions of the gossip strategy: dialled, carried by the World's wires, closed and broken.
#include <cstring>

#include "core/wire/turn.h"
#include "tools/lab/gossip_host.h"
#include "tools/lab/wire.h"

namespace gossipd::lab {

namespace {

constexpr std::uint64_t handshake_bytes = 700;  // with a shared key, in both directions

std::size_t index_of(const Endpoint& endpoint) {
  return static_cast<std::size_t>(std::stoul(endpoint.host.substr(4))) - 1;
}

}  // namespace

Endpoint endpoint_of(std::size_t machine) {
  return Endpoint{"node" + std::to_string(machine + 1), peer_port_default};
}

void GossipStrategy::dial(std::size_t from, const Endpoint& where) {
  const std::size_t to = index_of(where);
  const auto refused = [this, from, where](const char* why) {
    for_host(from, setup_->world.now(), [this, where, why](Host& h) {
      h.node->on_dial_failed(where, why, setup_->world.now());
    });
  };
  if (to >= hosts_.size() || !reaches(from, to)) return refused("no route to host");
  // Connect and handshake: there and back, twice.
  World& world = setup_->world;
  const auto opened = [this, from, to, where, refused] {
    if (!hosts_[to]->node) return refused("connection refused");
    auto session = std::make_shared<Session>();
    session->ends[0] = from, session->ends[1] = to;
    for (int e : {0, 1}) {
      session->ids[e] = SessionId{++next_session_};
      sessions_[{session->ends[e], session->ids[e]}] = session;
    }
    for_host(from, setup_->world.now(), [this, session, where](Host& h) {
      if (sessions_.contains({session->ends[0], session->ids[0]}))
        h.node->on_session_open(session->ids[0], true, where, setup_->world.now());
    });
    for_host(to, setup_->world.now(), [this, session, from](Host& h) {
      if (sessions_.contains({session->ends[1], session->ids[1]}))
        h.node->on_session_open(session->ids[1], false, Endpoint{endpoint_of(from).host, 40000},
                                setup_->world.now());
    });
  };
  world.send(from, to, handshake_bytes / 2, Lane::control, [this, from, to, opened] {
    setup_->world.send(to, from, handshake_bytes / 2, Lane::control, [this, from, to, opened] {
      setup_->world.send(from, to, handshake_bytes / 2, Lane::control, opened);
    });
  });
}

void GossipStrategy::send(std::size_t from, SessionId id, Lane lane, SharedBytes message) {
  const auto found = sessions_.find({from, id});
  if (found == sessions_.end() || !found->second->open) return;
  const auto session = found->second;
  const int mine = session->end_of(from, id), other = 1 - mine;
  if (lane == Lane::bulk && is_bad(from, PoisonSpec::Kind::lie) &&
      bulk_kind(*message) == BulkKind::turn) {
    auto spoilt = std::make_shared<Bytes>(*message);
    const float weight = 1e9f;
    std::memcpy(spoilt->data() + turn_weight_offset, &weight, sizeof weight);
    message = std::move(spoilt);
  }
  const std::size_t to = session->ends[other];
  const auto arrived = [this, session, other, to, lane, message] {
    for_host(to, setup_->world.now(), [this, session, other, lane, message](Host& h) {
      if (!sessions_.contains({session->ends[other], session->ids[other]})) return;
      h.node->on_bytes(session->ids[other], setup_->world.now());
      h.node->on_message(session->ids[other], lane, *message, setup_->world.now());
    });
  };
  World::Action sent;
  if (lane == Lane::bulk)
    sent = [this, session, from, mine, size = message->size()] {
      for_host(from, setup_->world.now(), [this, session, mine, size](Host& h) {
        if (sessions_.contains({session->ends[mine], session->ids[mine]}))
          h.node->on_bulk_sent(session->ids[mine], size, setup_->world.now());
      });
    };
  setup_->world.send(from, to, on_the_wire(message->size()), lane, arrived, std::move(sent));
}

void GossipStrategy::close(std::size_t from, SessionId id, const std::string& why) {
  const auto found = sessions_.find({from, id});
  if (found == sessions_.end()) return;
  const auto session = found->second;
  sessions_.erase(found);
  const int other = 1 - session->end_of(from, id);
  const auto gone = [this, session, other, why] {
    for_host(session->ends[other], setup_->world.now(), [this, session, other, why](Host& h) {
      if (sessions_.erase({session->ends[other], session->ids[other]}) > 0)
        h.node->on_session_closed(session->ids[other], "closed by peer: " + why,
                                  setup_->world.now());
    });
  };
  setup_->world.send(from, session->ends[other], frame_and_record_bytes + why.size(), Lane::control,
                     gone);
}

void GossipStrategy::break_session(const std::shared_ptr<Session>& session) {
  session->open = false;
  for (int e : {0, 1}) {
    for_host(session->ends[e], setup_->world.now(), [this, session, e](Host& h) {
      if (sessions_.erase({session->ends[e], session->ids[e]}) > 0)
        h.node->on_session_closed(session->ids[e], "connection reset by peer", setup_->world.now());
    });
    if (!hosts_[session->ends[e]]->node) sessions_.erase({session->ends[e], session->ids[e]});
  }
}

}  // namespace gossipd::lab
