// core/node/path_watch.h - finds out that a path carries small packets and swallows large ones.
//
// The problem: behind a tunnel that hides its MTU, the handshake and every ping pass but the first
// delta never arrives. TCP sends it again for ever, the session falls silent and is given up, the
// next one opens and ends the same way. Each end by itself looks like a dead peer. The pattern
// gives the path away: sessions in a row on which answers came back until something large was sent,
// and none afterwards.
//
// One for each neighbour. Pure; the node tells it what happens on the neighbour's session.
#pragma once

#include <optional>

#include "core/base/types.h"

namespace gossipd {

class PathWatch {
 public:
  void on_large_sent(Instant now);  // bulk bytes have gone to the kernel
  // An answer to what was sent at `asked`. What went to the kernel before `asked` has arrived with
  // it.
  void on_answer(Instant asked);
  void on_session_end(Instant now);
  // Once, when it is found; again only after something large has arrived.
  [[nodiscard]] bool found_out(Instant now);
  [[nodiscard]] bool swallows_large() const { return found_; }

 private:
  bool small_passed_ = false;        // on this session
  std::optional<Instant> unproved_;  // on this session: since when large bytes are out of which
                                     // none is known to have arrived
  std::optional<Instant>
      first_lost_;  // over sessions: the first large bytes lost, since any arrived
  int lost_ = 0;    // sessions in a row that ended so
  bool found_ = false;
};

}  // namespace gossipd
