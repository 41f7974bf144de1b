// core/membership/reach.h - whether members are to be found at the addresses that they advertise.
//
// The problem: a node behind a firewall or with a mistyped address reaches others, so all seems
// well, but nobody reaches it: it gets fewer links, and none after those it dialled are lost. So
// the end that accepted a session dials the address that the member named in its hello, at most
// once a minute for each member, says hello and hangs up. What it found it tells the member, which
// publishes the verdict in its record. Every other dial is evidence as well.
//
// `found` of a dial is the member that answered; 0: nobody. What others say is believed: a liar
// changes what is shown, and the member's place in the circle of links (circle.h). Pure; one owner,
// the core strand.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/membership/member.h"

namespace gossipd {

class Reach {
 public:
  static constexpr Duration between_dials = std::chrono::seconds(60);
  static constexpr std::size_t reason_bytes_max = 200;  // as much as is told

  struct Finding {
    Endpoint address;
    bool answers = false;
    std::string reason;  // why not
  };

  // `advertised`: where this node says that it is; `by_operator`: since it was told to.
  Reach(Endpoint advertised, bool by_operator)
      : advertised_(std::move(advertised)), by_operator_(by_operator) {}

  // ---- others, at their addresses ----
  // A session with the member was established. One that came in proves nothing of its address.
  void on_linked(NodeId member, const Endpoint& address, bool outbound);
  // The member's address is to be dialled, if that may be.
  [[nodiscard]] bool is_due(NodeId member, Instant now) const;
  void on_dial(NodeId member, Instant now);
  void on_found(const Endpoint& address, NodeId found, const std::string& reason);
  // What is known of it; nullptr: nothing.
  [[nodiscard]] const Finding* finding(NodeId member) const;
  // What the member has not been told yet. The caller tells it.
  [[nodiscard]] std::optional<Finding> take_untold(NodeId member);

  // ---- this node, in the words of others ----
  // True: the verdict is another one now.
  bool on_told(NodeId by, const Finding& finding);
  [[nodiscard]] Reachability own() const;
  [[nodiscard]] std::optional<bool> answers_to(NodeId member) const;
  // Why it is not to be found, by one who tried; empty: it is, or nobody has tried.
  [[nodiscard]] std::string why_not() const;

  void check_invariants() const;

 private:
  struct Other {
    Finding finding;
    bool known = false;  // a dial has found something, or nothing, at this address
    bool untold = false;
    std::optional<Instant> dialled;
  };
  Other& at(NodeId member);

  Endpoint advertised_;
  bool by_operator_;
  std::map<NodeId, Other> others_;  // at most members_max
  std::map<NodeId, Finding> told_;  // at most members_max
};

}  // namespace gossipd
