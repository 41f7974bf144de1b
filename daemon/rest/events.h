// daemon/rest/events.h - what happens on this node, told live by the events of /v1/events.
//
// An `event` is a transition, a line of the log from level info on. It has an id and is kept in a
// bounded ring, so that a client that comes back with Last-Event-ID misses nothing that is still
// there; what is not, a `gap` counts. A `snapshot` shows the state and is neither numbered nor
// kept: a client that has not read the last one gets no other. A client that does not keep up is
// dropped (net/http/body_stream.h). Loop thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "core/node.h"
#include "net/http/body_stream.h"

namespace gossipd {

class Events {
 public:
  static constexpr std::size_t kept_max = 256;
  static constexpr std::size_t words_bytes_max = 1024;  // of one event; the rest is cut off
  static constexpr std::size_t fields_max = 24;         // of one event

  struct Wanted {
    std::string after;      // the last id that the client has; empty or not ours: from the first
    bool snapshots = true;  // else events only
    bool follow = true;     // else the stream ends after what is there
  };

  // `life` differs between two starts of one node, so that ids of the other are recognised.
  explicit Events(std::uint64_t life) : life_(life) {}

  // `words` as in the log: `event=KIND key=value key="a value"`.
  void note(Level level, const std::string& words, double seconds_since_1970);
  // A stream that begins with the events that the client has missed. `snapshot` is sent next, if
  // wanted.
  [[nodiscard]] std::shared_ptr<HttpBodyStream> open(const Wanted& wanted,
                                                     const std::string& snapshot);
  // Is it time for a snapshot, and does anybody wait for one? About once a second, and the more
  // rarely the larger the cluster is.
  [[nodiscard]] bool snapshot_due(Instant now, std::size_t members);
  void tell_snapshot(const std::string& json);

  [[nodiscard]] std::size_t listeners() const { return listeners_.size(); }
  [[nodiscard]] std::string last_id() const { return id(next_ - 1); }

 private:
  struct Listener {
    std::shared_ptr<HttpBodyStream> stream;
    bool snapshots = true;
  };

  [[nodiscard]] std::string id(std::uint64_t number) const;
  // The number of an id of this life; 0: none.
  [[nodiscard]] std::uint64_t number_of(const std::string& id) const;
  void forget_closed();

  std::uint64_t life_;
  std::uint64_t next_ = 1;
  std::deque<HttpBodyStream::Piece> kept_;  // the last of them is number next_ - 1
  std::vector<Listener> listeners_;         // the server bounds them
  Instant last_snapshot_{};
};

[[nodiscard]] double wall_seconds();  // since 1970

// `words` as JSON: {"kind": KIND, "fields": {key: value, …}}, at most fields_max of them.
[[nodiscard]] std::string event_json(Level level, const std::string& words,
                                     double seconds_since_1970);

}  // namespace gossipd
