// core/node/peers.h - the sessions that are open, and what is remembered of each neighbour.
//
// The problem: connections come and go, two at once to the same peer, some without a handshake; a
// link's replicas must outlive the connection, or every cut costs whole models; and a peer that
// comes under ever new ids must not fill the memory. So a session is one connection from its
// opening to its end, a neighbour is a member that was linked at least once, and at most one
// session at a time is a neighbour's. Every container has a maximum; what is lost first is what has
// been down for longest.
//
// Holds and counts; the node decides which sessions to accept. References stay valid until the
// session is closed or the neighbour is down and others come. One owner, the core strand.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "core/base/backoff.h"
#include "core/exchange/link.h"
#include "core/membership/directory.h"
#include "core/node/box_clock.h"
#include "core/node/control_allowance.h"
#include "core/node/initial_model.h"
#include "core/node/path_watch.h"
#include "core/node/resync_watch.h"
#include "core/node/round_trip.h"
#include "core/wire/control.h"

namespace gossipd {

class Peers {
 public:
  static constexpr std::size_t sessions_max = 256;
  // More than there can be sessions, so one that is down can always give way.
  static constexpr std::size_t neighbours_max = members_max;
  // How long the replicas of a neighbour that is down are kept.
  static constexpr Duration link_memory = std::chrono::seconds(60);

  struct Session {
    enum class Stage : std::uint8_t {
      hello_due,   // ours waits for the disk
      hello_said,  // theirs is awaited, or was answered without a link
      doubted,     // another process of the id may live: only the answer to our ping is heard
      established  // the peer's link goes over this session
    };
    [[nodiscard]] bool established() const { return stage == Stage::established; }

    SessionId id{};
    bool outbound = false;
    Endpoint remote;
    Stage stage = Stage::hello_said;
    std::optional<Hello> early;  // theirs, if it came while ours was due
    std::optional<Hello> theirs;
    NodeId probed{};             // no link is wanted: only a sign of life of this member
    std::uint32_t protocol = 0;  // that both speak, once `theirs` is accepted
    std::optional<Ready> ready_mine, ready_theirs;
    InitialModel::Values initial;  // that `ready_mine` names, until the link opens
    std::uint64_t news_told = 0;   // by the directory's count
    std::uint64_t own_told = 0;    // own statistics, likewise
    Directory::Sweep sweep;        // of the others' statistics
    RoundTrip round_trip;
    std::uint32_t links_told = 0;         // that the other end has; 0: it has not told
    bool replaces = false;                // another link goes for it, once it has proved itself
    bool asked_to_go = false;             // the other end has been told that it is spare
    bool is_spare = false;                // to the other end
    std::optional<double> clock_ahead_s;  // of the other box; nothing: it has not told
    std::size_t bulk_outstanding = 0;     // bytes handed to the driver and not sent
    ControlAllowance allowance;           // until it is established; then the neighbour's
  };

  struct Neighbour {
    static constexpr Duration rest_min = std::chrono::seconds(10);
    static constexpr std::uint32_t rest_doublings_max = 6;

    std::unique_ptr<Link> link;  // nothing: no exchange yet, or its replicas were given up
    SessionId session{};         // 0: down
    Instant down_since{};        // of the last session's end
    std::uint32_t refusals = 0;  // messages in a row that had to be refused
    Backoff rests{rest_min, rest_doublings_max};
    Instant quarantined_until{};
    Instant turn_owed_since{};  // by the peer, or since a message of that turn came
    ControlAllowance allowance;
    ResyncWatch resyncs;
    PathWatch path;
    Budget budget;  // by its own word
  };

  using Sessions = std::map<SessionId, Session>;
  using Neighbours = std::map<NodeId, Neighbour>;

  // ---- sessions ----
  [[nodiscard]] bool is_full() const { return sessions_.size() >= sessions_max; }
  Session& open(SessionId id, bool outbound, Endpoint remote);
  [[nodiscard]] Session* find(SessionId id);
  [[nodiscard]] const Session* find(SessionId id) const;
  // The established session of a neighbour.
  [[nodiscard]] Session* session_of(NodeId peer);
  [[nodiscard]] const Session* session_of(NodeId peer) const;
  // The peer has proved its id; from now on the neighbour's link goes over this session.
  Neighbour& establish(Session& session);
  // Its end; nothing: there is no such session.
  std::optional<Session> close(SessionId id, Instant now);
  [[nodiscard]] Sessions& sessions() { return sessions_; }
  [[nodiscard]] const Sessions& sessions() const { return sessions_; }
  [[nodiscard]] std::vector<SessionId> ids() const;
  [[nodiscard]] std::vector<SessionId> established_ids() const;
  [[nodiscard]] std::size_t established() const;
  // The published addresses of the linked neighbours.
  [[nodiscard]] std::set<Endpoint> linked_addresses() const;

  // ---- neighbours ----
  [[nodiscard]] Neighbour* neighbour(NodeId peer);
  [[nodiscard]] const Neighbour* neighbour(NodeId peer) const;
  // Of an established session.
  [[nodiscard]] Neighbour& neighbour_of(const Session& session);
  // It is neither linked nor in quarantine.
  [[nodiscard]] bool may_link(NodeId peer, Instant now) const;
  [[nodiscard]] Neighbours& neighbours() { return neighbours_; }
  [[nodiscard]] const Neighbours& neighbours() const { return neighbours_; }
  // Keeps the replicas of at most this many neighbours that are down.
  void bound_replicas(std::size_t most);
  // Gives up the links of neighbours that have been down for long.
  void forget_links(Instant now);

  [[nodiscard]] BoxClock& clock() { return clock_; }  // that the sessions' are compared with

  void check_invariants() const;

 private:
  void make_room();

  Sessions sessions_;      // at most sessions_max
  Neighbours neighbours_;  // at most neighbours_max
  BoxClock clock_;
};

}  // namespace gossipd
