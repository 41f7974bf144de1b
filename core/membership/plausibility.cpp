#include "core/membership/plausibility.h"

#include <algorithm>
#include <cmath>

#include "core/base/result.h"

namespace gossipd {
namespace {

// Without wrapping: both are far from the end where it matters.
std::uint64_t saturated(std::uint64_t a, std::uint64_t b) {
  return a > counter_max || b > counter_max - a ? counter_max : a + b;
}

}  // namespace

const char* to_string(Doubt doubt) {
  switch (doubt) {
    case Doubt::incarnation: return "incarnation";
    case Doubt::counter: return "counter";
    case Doubt::samples: return "samples";
    case Doubt::budget: return "budget";
    case Doubt::members: return "members";
    case Doubt::count_: break;
  }
  GOSSIPD_ASSERT(!"a Doubt without a name");
}

bool is_plausible_incarnation(std::uint64_t claimed, std::optional<std::uint64_t> known,
                              Told told) {
  if (claimed >= counter_max) return false;
  if (!known)
    return claimed <= (told == Told::of_itself ? first_own_word_max : first_incarnation_max);
  switch (told) {
    case Told::of_another: return claimed <= saturated(*known, told_incarnation_jump_max);
    case Told::of_itself: return claimed <= saturated(*known, own_word_jump_max);
    case Told::of_us: break;
  }
  // Nobody else can be made to believe more, so more need not be refuted.
  return claimed <= std::max(refuted_first_max, saturated(*known, refuted_jump_max));
}

std::optional<Doubt> doubt(const MemberRecord& claim, const MemberRecord* known, Told told) {
  const auto incarnation = known ? std::optional(known->incarnation) : std::nullopt;
  if (!is_plausible_incarnation(claim.incarnation, incarnation, told)) return Doubt::incarnation;
  if (claim.tick >= counter_max || claim.step >= counter_max || claim.news > claim.tick)
    return Doubt::counter;
  return std::nullopt;
}

std::optional<Doubt> doubt(const MemberStats& claim) {
  if (claim.incarnation >= counter_max) return Doubt::incarnation;
  if (claim.tick >= counter_max || claim.step >= counter_max) return Doubt::counter;
  return std::nullopt;
}

bool BudgetBound::is_plausible(const Budget& claim, Instant now) const {
  if (claim.revision == 0 || claim.samples == 0 || claim.samples > budget_samples_max) return false;
  if (newcomer_) return claim.revision <= first_budget_revision_max;
  const double since_s = std::max(0.0, seconds(now - began_));
  const auto by_time =
      static_cast<std::uint64_t>(since_s * static_cast<double>(budget_revisions_per_s));
  return claim.revision <= saturated(base_, saturated(budget_revision_jump_max, by_time));
}

void DoubtCounts::note(Doubt kind, NodeId said_by) {
  ++since_[static_cast<std::size_t>(kind)];
  ++total_;
  if (sources_.size() < named_max || sources_.contains(said_by)) ++sources_[said_by];
}

std::optional<std::string> DoubtCounts::summary(Instant now) {
  if (total_ == told_ || (last_ && now - *last_ < summary_period)) return std::nullopt;
  last_ = now;
  std::string words = "event=claims-refused count=" + std::to_string(total_ - told_) + " kinds=";
  told_ = total_;
  const char* comma = "";
  for (std::size_t i = 0; i < since_.size(); ++i) {
    if (since_[i] == 0) continue;
    words +=
        comma + std::string(to_string(static_cast<Doubt>(i))) + ":" + std::to_string(since_[i]);
    comma = ",";
  }
  words += " said_by=";
  comma = "";
  for (const auto& [id, count] : sources_) {
    words += comma + to_hex(id) + ":" + std::to_string(count);
    comma = ",";
  }
  since_ = {};
  sources_.clear();
  return words;
}

}  // namespace gossipd
