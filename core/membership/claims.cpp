#include "core/membership/claims.h"

#include <algorithm>
#include <utility>

namespace gossipd {
namespace {

constexpr double absurd_rate = 1e9;  // samples/s; while there is nothing to compare with

}  // namespace

double typical_rate(const Directory& directory, NodeId self, double own_rate) {
  std::vector<double> rates;
  std::size_t others = 0, ended = 0;
  for (const auto& [id, entry] : directory.entries()) {
    if (id == self || entry.record.state != MemberState::alive) continue;
    ++others;
    if (entry.record.phase == Phase::finishing || entry.record.phase == Phase::finished) ++ended;
    // Members that nobody here has met can be invented, a majority of them.
    if (entry.met && entry.record.samples_per_second > 0)
      rates.push_back(entry.record.samples_per_second);
  }
  if (own_rate > 0) rates.push_back(own_rate);
  const bool alone_and_ended = others == 1 && ended == 1;
  if (rates.empty() || (rates.size() == 1 && own_rate <= 0 && !alone_and_ended)) return 0;
  const auto middle = rates.begin() + static_cast<std::ptrdiff_t>((rates.size() - 1) / 2);
  std::nth_element(rates.begin(), middle, rates.end());
  return *middle;
}

// Never raised to what is known: a peer that knows of fewer samples is to be told the rest.
void Claims::lower_to_credit(NodeId id, Samples& claimed, const Directory& directory,
                             NodeId said_by) {
  const Directory::Entry* known = directory.find(id);
  const Samples samples = known == nullptr ? 0 : known->record.samples;
  const Samples counts = credit_.credit({.id = id,
                                         .claimed = claimed,
                                         .known = samples,
                                         .met = known != nullptr,
                                         .own_word = id == said_by});
  if (counts >= claimed) return;
  if (claimed > samples) doubts_.note(Doubt::samples, said_by);
  claimed = counts;
}

bool Claims::admit(MemberRecord& claim, const Directory& directory, NodeId said_by) {
  const Directory::Entry* known = directory.find(claim.id);
  const Told told = claim.id == self_     ? Told::of_us
                    : claim.id == said_by ? Told::of_itself
                                          : Told::of_another;
  if (known == nullptr && told == Told::of_another && claim.incarnation > first_incarnation_max &&
      claim.incarnation < counter_max) {
    // A member under lies may have had to go that far. It counts as known, in a life that it can
    // outbid.
    claim.incarnation = first_incarnation_max;
    doubts_.note(Doubt::incarnation, said_by);
  }
  if (const auto why = doubt(claim, known == nullptr ? nullptr : &known->record, told)) {
    doubts_.note(*why, said_by);
    return false;
  }
  if (known == nullptr && told == Told::of_another && !budget_.is_newcomer()) {
    if (newcomers_ < 1) {
      doubts_.note(Doubt::members, said_by);
      return false;
    }
    --newcomers_;
  }
  if (claim.id == self_ && leaps(claim.incarnation, directory)) {
    leap_ = std::max(leap_, claim.incarnation);
    doubts_.note(Doubt::incarnation, said_by);
    return false;
  }
  lower_to_credit(claim.id, claim.samples, directory, said_by);
  return true;
}

bool Claims::leaps(std::uint64_t incarnation, const Directory& directory) const {
  return !is_plausible_incarnation(incarnation, directory.self().incarnation, Told::of_another);
}

std::optional<std::uint64_t> Claims::take_leap(const Directory& directory, Instant now) {
  const std::uint64_t claimed = std::exchange(leap_, now < next_leap_ ? leap_ : 0);
  if (now < next_leap_ || claimed <= directory.self().incarnation) return std::nullopt;
  next_leap_ = now + between_leaps;
  return claimed;
}

bool Claims::admit(MemberStats& claim, const Directory& directory, NodeId said_by) {
  auto why = doubt(claim);
  if (!why && claim.id == self_ && leaps(claim.incarnation, directory)) why = Doubt::incarnation;
  if (why) doubts_.note(*why, said_by);
  // stats of an unknown member say nothing
  if (why || directory.find(claim.id) == nullptr) return false;
  lower_to_credit(claim.id, claim.samples, directory, said_by);
  return true;
}

bool Claims::admit(const Suspicion& claim, const Directory& directory, NodeId said_by) {
  const Directory::Entry* known = directory.find(claim.id);
  if (known == nullptr ||
      is_plausible_incarnation(claim.incarnation, known->record.incarnation, Told::of_another))
    return true;
  doubts_.note(Doubt::incarnation, said_by);
  return false;
}

bool Claims::admit(const Budget& claim, NodeId said_by, Instant now) {
  if (budget_.is_plausible(claim, now)) return true;
  doubts_.note(Doubt::budget, said_by);
  return false;
}

void Claims::end_trust() {
  credit_.end_trust();
  budget_.end_trust();
}

double Claims::rate_max() const {
  return credit_.rate_max() > 0 ? credit_.rate_max() : absurd_rate;
}

std::vector<MemberStats> Claims::on_tick(const Directory& directory, double own_rate, Instant now) {
  newcomers_ = std::min(newcomers_max, newcomers_ + newcomers_per_s * seconds(now - ticked_));
  ticked_ = now;
  credit_.advance(typical_rate(directory, self_, own_rate), directory.self().samples, now);
  std::vector<MemberStats> more;
  for (const auto& [id, samples] : credit_.due()) {
    MemberStats stats;
    stats.id = id;
    stats.samples = samples;
    more.push_back(stats);
  }
  return more;
}

}  // namespace gossipd
