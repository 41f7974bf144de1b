// core/node/dialer.h - which endpoints are dialled, and when.
//
// The problem: a node must find its cluster again after any failure, so it never gives up on seeds
// and members. But made-up addresses must not keep it dialling strangers, and it must not dial
// itself. So every endpoint has a backoff that doubles, all dials together have a budget
// (dial_budget.h), an endpoint that led back here rests, and everything remembered has a maximum.
// The addresses of an operator's `join` are judged here and nowhere else.
//
// Says what may be dialled and notes what came of it; the node chooses among members and sends the
// effect. Pure; one owner, the core strand.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/random.h"
#include "core/base/result.h"
#include "core/membership/policy.h"
#include "core/membership/reach.h"
#include "core/node/dial_budget.h"
#include "core/node/founding.h"

namespace gossipd {

class Dialer {
 public:
  // Endpoints whose last dials are remembered.
  static constexpr std::size_t dials_max = 4 * members_max;
  // An address that led back here may lead elsewhere later, and is tried again then.
  static constexpr Duration self_rest = std::chrono::seconds(60);

  // `self`: where others reach this node; `leads_here`: which other addresses lead here, may be
  // empty; `seeds`: at most seeds_max; `founds`: as of Founding; `self_by_operator`: the
  // configuration names `self`.
  Dialer(const MembershipPolicy& policy, Endpoint self,
         std::function<bool(const Endpoint&)> leads_here, std::vector<Endpoint> seeds,
         ClusterId founds = {}, bool self_by_operator = false);

  // ---- seeds: dialled for ever while no member is linked ----
  // All are added, or none and the reason: `not-dialled`, `self` or `too-many-seeds`.
  [[nodiscard]] std::optional<Error> add_seeds(const std::vector<Endpoint>& seeds);
  // At most seeds_max; those that cannot be dialled or lead here are left out.
  void replace_seeds(const std::vector<Endpoint>& seeds);
  [[nodiscard]] const std::vector<Endpoint>& seeds() const { return seeds_; }

  // Whether the seeds allow this node to found a cluster.
  [[nodiscard]] Founding& founding() { return founding_; }
  [[nodiscard]] const Founding& founding() const { return founding_; }

  // ---- dials ----
  [[nodiscard]] bool may_dial(const Endpoint& endpoint, Instant now) const;
  // The caller dials it now. `probed`: the member that should answer there, if no link is wanted.
  void on_dial(const Endpoint& endpoint, NodeId probed, Random& random, Instant now);
  // Dials for a link that are under way.
  [[nodiscard]] std::size_t under_way() const;
  // An operator asks: every endpoint may be dialled at once.
  void forgive(Instant now);

  // ---- what came of them ----
  // Returns the member that the dial was to probe; 0: none.
  NodeId on_connected(const Endpoint& endpoint);
  // True: for another reason than the last time.
  bool on_failed(const Endpoint& endpoint, const std::string& reason);
  // Connected, but no handshake.
  void on_broken_off(const Endpoint& endpoint) { ++at(endpoint).failures; }
  // Refused, by either end: nothing changes there soon.
  void on_refused(const Endpoint& endpoint);
  // It leads back to this node. True: for another reason than the last time.
  bool on_reflected(const Endpoint& endpoint, const std::string& reason, Instant now);
  void on_linked(const Endpoint& endpoint);          // a member is there, and linked
  void on_probe_answered(const Endpoint& endpoint);  // a member is there

  // What dials say about the addresses that members advertise.
  [[nodiscard]] Reach& reach() { return reach_; }
  [[nodiscard]] const Reach& reach() const { return reach_; }

  // ---- dials that are due by time ----
  // Members that failed are asked again for ever, one at a time, so that a partition heals.
  [[nodiscard]] bool failed_due(Instant now) const { return now >= next_failed_; }
  void on_failed_looked(bool dialled, Random& random, Instant now);
  // True once in each period: who was forgotten, or a seed that is no member, is asked. Two halves
  // of a cluster that have forgotten each other know of each other in no other way.
  bool lost_due(Random& random, Instant now);
  // True once in each period: a link is to be replaced. The first call starts the period.
  bool rotation_due(Random& random, Instant now);
  // A link that opens to this endpoint replaces another.
  void begin_rotation(const Endpoint& to) { rotation_ = to; }
  [[nodiscard]] bool is_rotating(const Endpoint& to) const { return rotation_ == to; }
  void end_rotation() { rotation_.reset(); }
  // True at most once a tick: a member that has few links may get one beyond those accepted.
  bool room_due(Instant now);

  void check_invariants() const;

 private:
  struct Dial {
    bool in_flight = false;
    Instant self_until{};        // it leads back to this node; not dialled before
    NodeId probed{};             // of the dial in flight; 0: a link is wanted
    std::uint32_t failures = 0;  // in a row
    Instant next{};              // not dialled before
    std::string last_reason;     // of the failures; logged when it changes
  };
  Dial& at(const Endpoint& endpoint);
  // Those of `seeds` that `all` lacks; an error leaves it half done.
  [[nodiscard]] std::optional<Error> append_seeds(std::vector<Endpoint>& all,
                                                  const std::vector<Endpoint>& seeds) const;
  void set_seeds(std::vector<Endpoint> all);

  MembershipPolicy policy_;
  Endpoint self_;
  std::function<bool(const Endpoint&)> leads_here_;
  Founding founding_;
  std::vector<Endpoint> seeds_;     // at most seeds_max, none twice
  std::map<Endpoint, Dial> dials_;  // at most dials_max; of more, those that may go first are lost
  DialBudget budget_;
  Reach reach_;
  Instant next_failed_{};
  Instant next_lost_{};
  Instant next_rotation_{};
  std::optional<Endpoint> rotation_;
  Instant next_room_{};
};

}  // namespace gossipd
