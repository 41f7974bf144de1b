// net/peer/admission.h - who may wait at the door: inbound connections that are not open sessions
// yet.
//
// Anybody can open connections and say nothing. Were newcomers refused while all places are taken,
// a few idle sockets would keep every joiner out. So a newcomer always gets a place, and if there
// is none the weakest of those who wait gives up its own: one of the source that has most of them;
// of these one that has been refused already, else of the more numerous of those who are silent and
// those who have begun to speak; of these the one that has waited longest. So neither sort of flood
// can make the first moment of a joiner the weakest. Who has proved that it holds the cluster's key
// goes only when all others have. Members' sources have places of their own.
//
// Pure: no sockets and no clock. A source is an IPv4 address or an IPv6 network of 64 bits, since
// who has one IPv6 address mostly has 2^64.
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
  // How far a connection has come, the least first.
  enum class Stage : std::uint8_t { refused, silent, speaking, proved };

  struct Limits {
    std::size_t places_max = 128;            // of strangers, and as many of members
    std::size_t places_per_source_max = 16;  // that have proved nothing
    std::size_t members_max =
        1024;  // sources known as members'; the one heard of longest ago is forgotten
  };

  explicit Admission(const Limits& limits) : limits_(limits) {}

  // A place for a newcomer, who is silent. Returns who gave up its own and is to be cut.
  [[nodiscard]] std::optional<SessionId> enter(SessionId id, const Source& source);
  // No effect on who has no place any more.
  void advance(SessionId id, Stage stage);
  void leave(SessionId id);
  // Takes the place of the weakest of all, for want of something else than places.
  [[nodiscard]] std::optional<SessionId> give_up_one();

  // From here on newcomers from there take members' places.
  void know(const Source& source);

  [[nodiscard]] std::size_t waiting() const { return waiting_.size(); }

 private:
  struct Waiting {
    Source source;
    Stage stage = Stage::silent;
    bool member = false;  // takes one of the members' places
  };
  enum class Among { all, strangers, members };

  // Of those in `among`, and of `source` alone if it is given. nullopt: nobody.
  [[nodiscard]] std::optional<SessionId> weakest(Among among, const Source* source) const;
  [[nodiscard]] bool knows(const Source& source) const;

  Limits limits_;
  std::map<SessionId, Waiting> waiting_;  // ids grow, so the first has waited longest
  std::deque<Source> members_;            // the latest last; no source twice
};

}  // namespace gossipd
