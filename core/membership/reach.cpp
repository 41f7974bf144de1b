#include "core/membership/reach.h"

#include <algorithm>

#include "core/base/result.h"

namespace gossipd {

Reach::Other& Reach::at(NodeId member) {
  if (others_.size() >= members_max && !others_.contains(member))
    others_.erase(std::ranges::min_element(
        others_, {}, [](const auto& item) { return item.second.dialled.value_or(Instant{}); }));
  return others_[member];
}

// ---- others -------------------------------------------------------------------------------------

void Reach::on_linked(NodeId member, const Endpoint& address, bool outbound) {
  Other& other = at(member);
  other.finding = {.address = address, .answers = outbound, .reason = {}};
  other.known = other.untold = outbound;
}

bool Reach::is_due(NodeId member, Instant now) const {
  const auto found = others_.find(member);
  if (found == others_.end()) return false;
  const Other& other = found->second;
  if (other.known && other.finding.answers) return false;
  return !other.dialled || now - *other.dialled >= between_dials;
}

void Reach::on_dial(NodeId member, Instant now) { at(member).dialled = now; }

void Reach::on_found(const Endpoint& address, NodeId found, const std::string& reason) {
  for (auto& [id, other] : others_) {
    if (other.finding.address != address) continue;
    const bool answers = id == found;
    other.untold = other.untold || !other.known || other.finding.answers != answers;
    other.known = true;
    other.finding.answers = answers;
    other.finding.reason = answers ? std::string() : reason.substr(0, reason_bytes_max);
  }
}

const Reach::Finding* Reach::finding(NodeId member) const {
  const auto found = others_.find(member);
  return found == others_.end() || !found->second.known ? nullptr : &found->second.finding;
}

std::optional<Reach::Finding> Reach::take_untold(NodeId member) {
  const auto found = others_.find(member);
  if (found == others_.end() || !std::exchange(found->second.untold, false)) return std::nullopt;
  return found->second.finding;
}

// ---- this node ----------------------------------------------------------------------------------

bool Reach::on_told(NodeId by, const Finding& finding) {
  if (finding.address != advertised_) return false;  // it was dialled before this start
  const Reachability before = own();
  if (told_.size() >= members_max && !told_.contains(by)) told_.erase(told_.begin());
  told_[by] = finding;
  return own() != before;
}

Reachability Reach::own() const {
  if (told_.empty()) return Reachability::unknown;
  if (std::ranges::any_of(told_, [](const auto& item) { return item.second.answers; }))
    return Reachability::reachable;
  return by_operator_ ? Reachability::address_silent : Reachability::dials_out;
}

std::optional<bool> Reach::answers_to(NodeId member) const {
  const auto found = told_.find(member);
  return found == told_.end() ? std::nullopt : std::optional(found->second.answers);
}

std::string Reach::why_not() const {
  if (own() == Reachability::reachable || told_.empty()) return {};
  return told_.begin()->second.reason;
}

void Reach::check_invariants() const {
  GOSSIPD_ASSERT(others_.size() <= members_max && told_.size() <= members_max);
}

}  // namespace gossipd
