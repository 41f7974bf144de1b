#include "core/membership/sample_credit.h"

#include <algorithm>

#include "core/membership/plausibility.h"

namespace gossipd {

SampleCredit::SampleCredit(const Start& start)
    : self_(start.self),
      ratio_(start.speed_ratio_max),
      trusting_(start.newcomer),
      down_for_(std::clamp(start.down_for, Duration{}, Duration(std::chrono::hours(24 * 365)))),
      unsure_for_(std::clamp(start.unsure_for, Duration{}, Duration(std::chrono::hours(24 * 365)))),
      began_(start.now),
      now_(start.now),
      advanced_(start.now - down_for_) {
  accounts_[self_];  // of which there is always one
}

// Time counts from when a rate is known, and then all of it.
void SampleCredit::advance(double typical_rate, Samples own, Instant now) {
  if (now - now_ > own_word_slack) {  // this node stood still
    waited_since_ = now_;
    waited_until_ = now + own_word_slack;
  }
  now_ = now;
  if (typical_rate > 0) {
    typical_rate_ = typical_rate;
    const double gained = rate_max() * std::max(0.0, seconds(now - advanced_));
    const auto spoken = static_cast<double>(spoken_ + 1);
    potential_ += gained;
    hearsay_potential_ += gained * spoken;
    hearsay_spent_ = std::max(hearsay_spent_, hearsay_potential_ - reserve_samples() * spoken);
    advanced_ = std::max(advanced_, now);
    head_start_ = ratio_ * static_cast<double>(own);
  }
  if (ends_trust_ && typical_rate_ > 0) trusting_ = false;
}

// Who may be invented goes first, whatever is claimed of him; of those who have spoken here the one
// that did so longest ago, first of those of whom nothing is outstanding.
bool SampleCredit::make_room() {
  auto gone = std::ranges::find_if(accounts_, [this](const auto& item) {
    return item.first != self_ && item.second.hearsay && !item.second.own_word;
  });
  if (gone == accounts_.end())
    gone = std::ranges::find_if(accounts_, [this](const auto& item) {
      const Account& account = item.second;
      return item.first != self_ && !account.own_word && account.claimed <= account.credited;
    });
  if (gone == accounts_.end()) gone = longest_silent();
  if (gone == accounts_.end()) return false;
  if (gone->second.own_word) --spoken_;
  accounts_.erase(gone);
  return true;
}

SampleCredit::Accounts::iterator SampleCredit::longest_silent() {
  const auto rank = [](const Account& account) {
    return std::pair(account.claimed > account.credited, account.own_word_at);
  };
  auto out = accounts_.end();
  for (auto item = accounts_.begin(); item != accounts_.end(); ++item) {
    if (item->first == self_ || !item->second.own_word) continue;
    if (out == accounts_.end() || rank(item->second) < rank(out->second)) out = item;
  }
  return out;
}

SampleCredit::Account* SampleCredit::account_of(NodeId id, bool met) {
  const auto found = accounts_.find(id);
  if (found != accounts_.end()) return &found->second;
  if (accounts_.size() >= accounts_max && !make_room()) return nullptr;
  Account& account = accounts_[id];
  const bool young = now_ - began_ < reserve;
  account.spent = young ? 0 : std::max(0.0, potential_ - reserve_samples());
  account.since = now_;
  account.hearsay = !met && !trusting_;
  if (!met) account.spent -= head_start_;
  return &account;
}

Samples SampleCredit::credit(const Claim& claim) {
  Samples claimed = std::min(claim.claimed, member_samples_max);
  if (claimed <= claim.known && !claim.own_word) return claim.known;
  Account* account = account_of(claim.id, claim.met);
  if (account == nullptr) return claim.known;
  if (claim.own_word) {
    if (!account->own_word) ++spoken_;
    account->own_word = account->claimed = claimed;  // what others said beyond it is void
    account->own_word_at = now_ < waited_until_ ? waited_since_ : now_;
  } else if (account->own_word && !(trusting_ && typical_rate_ == 0)) {
    // A newcomer knows no rate yet: bounded by 0, the last samples of a member that leaves would be
    // lost to it.
    const double since =
        rate_max() * std::max(0.0, seconds(now_ + own_word_slack - account->own_word_at));
    claimed = std::min(claimed,
                       *account->own_word + static_cast<Samples>(std::min(
                                                since, static_cast<double>(member_samples_max))));
  }
  account->credited = std::max(account->credited, claim.known);
  account->claimed = std::max(account->claimed, claimed);
  if (!trusting_ || claim.id == self_) return spend(claim.id, *account);
  account->credited = std::max(account->credited, claimed);
  account->spent = potential_;
  return account->credited;
}

Samples SampleCredit::spend(NodeId id, Account& account) {
  if (account.claimed <= account.credited) return account.credited;
  // What this node has trained on since it began it knows; only what is older than its disk can be
  // news.
  const double potential = id == self_ ? rate_max() * seconds(down_for_ + unsure_for_) : potential_;
  double room = std::max(0.0, potential - account.spent);
  const bool hearsay = id != self_ && is_hearsay(account);
  if (hearsay) room = std::clamp(head_start_ + hearsay_potential_ - hearsay_spent_, 0.0, room);
  const auto wanted = static_cast<double>(account.claimed - account.credited);
  const double given = wanted <= room ? wanted : static_cast<double>(static_cast<Samples>(room));
  account.credited += static_cast<Samples>(given);
  account.spent += given;
  if (hearsay) hearsay_spent_ += given;
  if (id != self_) account.spent = std::max(account.spent, potential_ - reserve_samples());
  return account.credited;
}

std::vector<std::pair<NodeId, Samples>> SampleCredit::due() {
  std::vector<std::pair<NodeId, Samples>> more;
  for (auto& [id, account] : accounts_) {
    const Samples before = account.credited;
    if (account.claimed > before && spend(id, account) > before)
      more.emplace_back(id, account.credited);
  }
  return more;
}

}  // namespace gossipd
