// core/node/failure_detector.h - which sessions are silent or dead, and whom to suspect.
//
// The problem: silence has many causes. The peer is dead; the line is cut in one place; this node
// itself stood still and did not listen; or so many suspect it that its own timing must be at
// fault. So silence first only makes a suspicion, which travels and which the suspect refutes over
// any other way (membership/directory.h holds the suspicions and says when one has lasted); time in
// which this node did not listen counts for nobody; and a node that is itself suspected waits
// longer before it suspects others (Lifeguard's local health).
//
// Time and signs of life go in, verdicts come out; the node closes, accuses and tells. Pure; one
// owner, the core strand.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/random.h"
#include "core/membership/directory.h"
#include "core/membership/policy.h"

namespace gossipd {

class FailureDetector {
 public:
  // Longest gap between two looks at the time of a node that is well.
  static constexpr Duration attention_max = std::chrono::milliseconds(500);
  // How many times a refutation can raise the own timeouts by their length.
  static constexpr std::uint32_t awareness_max = 2;
  // Suspicions that wait to be sent; beyond these it is left to other members to send theirs.
  static constexpr std::size_t suspicions_max = 64;

  struct Attention {
    Duration deaf{};         // how long this node did not listen
    Duration stood_still{};  // the whole gap if it puts the node out of step, else 0
  };
  struct Silent {
    NodeId member{};
    Instant last_heard{};
  };
  struct Dead {
    SessionId session{};
    std::string reason;
  };
  struct Verdicts {
    std::vector<Silent> silent;  // members to accuse; each silence is named once
    std::vector<Dead> dead;      // sessions to close
  };

  FailureDetector(const MembershipPolicy& policy, Instant now);

  // ---- time ----
  // To be called first at every look at the time.
  Attention on_time(Instant now);
  [[nodiscard]] Instant looked_at() const { return looked_at_; }
  [[nodiscard]] Directory::Timeouts timeouts() const;
  // Others have given this node up, and it does not know what they did meanwhile.
  [[nodiscard]] bool is_thawing(Instant now) const { return now < thawed_until_; }
  // The stand-still has cost it next to nothing.
  void end_thaw() { thawed_until_ = {}; }
  // This node had to refute a suspicion.
  void on_refuted(Instant now);

  // ---- sessions ----
  void on_open(SessionId session, Instant now);
  void on_established(SessionId session, NodeId member);
  void on_sign_of_life(SessionId session, Instant now);
  void on_end(SessionId session);
  // Of a session that has not ended.
  [[nodiscard]] Instant last_heard(SessionId session) const;
  [[nodiscard]] Verdicts judge(const Directory& directory, Instant now);
  // The linked peer was heard lately.
  [[nodiscard]] bool hears(SessionId session, Instant now) const;
  // Some linked peer was, so the network around this node works.
  [[nodiscard]] bool hears_anybody(Instant now) const;

  // ---- members without a session ----
  // Living members whose record names this address but who are not there: another node answers
  // (`but`), or nobody does (no `but`). In the second case only those of whom no word has come
  // lately, since a node that can only dial out is alive.
  [[nodiscard]] std::vector<Silent> missing_at(const Endpoint& address, NodeId but,
                                               const Directory& directory, Instant now) const;
  // Living members of whom no word has come lately and whom nobody will dial: their address is
  // empty or among `taken`, at which others are. A node that lost its disk leaves its former id so.
  [[nodiscard]] std::vector<Silent> displaced(const std::set<Endpoint>& taken,
                                              const Directory& directory, Instant now) const;
  // True once in each period: one member without a link is to be asked for a sign of life.
  bool probe_due(Instant now, Random& random);

  // ---- suspicions to hand on ----
  void hand_on(const Suspicion& suspicion);
  [[nodiscard]] std::vector<Suspicion> take_suspicions() { return std::exchange(to_tell_, {}); }

  void check_invariants() const;

 private:
  struct Session {
    Instant opened{};
    Instant last_byte{};
    std::optional<NodeId> member;  // once it is established
    bool accused = false;          // of the silence that lasts
  };
  [[nodiscard]] bool is_heard(const Session& session, Instant now) const;
  [[nodiscard]] bool is_linked(NodeId member) const;

  MembershipPolicy policy_;
  std::map<SessionId, Session> sessions_;  // all that have not ended
  Instant looked_at_;                      // the last look at the time
  std::uint32_t awareness_ = 0;            // refutations lately, at most awareness_max …
  Instant awareness_until_{};              // … which count until then
  Instant thawed_until_{};                 // after a stand-still of more than fail_after
  Instant next_probe_{};
  std::vector<Suspicion> to_tell_;  // at most suspicions_max
};

}  // namespace gossipd
