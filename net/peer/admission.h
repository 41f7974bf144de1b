// net/peer/admission.h - places for inbound connections that are not open sessions yet.
//
// Strangers can open connections and stay silent. If newcomers were refused while all places are
// taken, a few idle sockets would keep every joiner out. So a newcomer always gets a place; if none
// is free, the weakest waiting connection gives up its own. It is found in three steps:
//
//   1. Take the connections of the source that holds the most places.
//   2. Of these take the ones that were refused already; if there are none, the larger of two
//      groups: those that are silent, and those that have begun to speak.
//   3. Of these take the one that has waited longest.
//
// So neither kind of flood can make a joiner's first moment the weakest. A connection that has
// proved that it holds the cluster's key is the last to go. Members' sources have separate places.
//
// Pure: no sockets and no clock. A source is an IPv4 address or an IPv6 network of 64 bits, since
// the owner of one IPv6 address usually has 2^64.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>

#include "core/base/types.h"

namespace gossipd {

struct Source {
  bool v6 = false;
  std::uint64_t network = 0;  // IPv4: the 32 bits; IPv6: the first 64
  auto operator<=>(const Source&) const = default;
};

class Admission {
 public:
  // How far a connection has come, in ascending order.
  enum class Stage : std::uint8_t { refused, silent, speaking, proved };

  struct Limits {
    std::size_t places_max = 128;            // of strangers, and as many of members
    std::size_t places_per_source_max = 16;  // for connections that have proved nothing
    std::size_t members_max =
        1024;  // known sources of members; the least recent is forgotten first
  };

  explicit Admission(const Limits& limits) : limits_(limits) {}

  // Gives a silent newcomer a place. Returns the connection that gave up its own and must be cut.
  [[nodiscard]] std::optional<SessionId> enter(SessionId id, const Source& source);
  // No effect on a connection without a place.
  void advance(SessionId id, Stage stage);
  void leave(SessionId id);
  // Removes the weakest of all, when something other than places has run out.
  [[nodiscard]] std::optional<SessionId> give_up_one();

  // From now on newcomers from there take members' places.
  void know(const Source& source);

  [[nodiscard]] std::size_t waiting() const { return waiting_.size(); }

 private:
  struct Waiting {
    Source source;
    Stage stage = Stage::silent;
    bool member = false;  // takes one of the members' places
  };
  enum class Among { all, strangers, members };

  // The weakest in `among`, of `source` only if given; nullopt if there is none.
  [[nodiscard]] std::optional<SessionId> weakest(Among among, const Source* source) const;
  [[nodiscard]] bool knows(const Source& source) const;

  Limits limits_;
  std::map<SessionId, Waiting> waiting_;  // ids grow, so the first has waited longest
  std::deque<Source> members_;            // latest last; no source twice
};

}  // namespace gossipd
