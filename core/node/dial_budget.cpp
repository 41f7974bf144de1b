#include "core/node/dial_budget.h"

#include <algorithm>

namespace gossipd {

double DialBudget::spent(const Bucket& bucket, double per_second, Instant now) {
  return std::max(0.0, bucket.spent - per_second * std::max(0.0, seconds(now - bucket.at)));
}

bool DialBudget::admits(const Endpoint& endpoint, Instant now) const {
  if (spent(all_, limits_.per_second, now) + 1 > limits_.burst) return false;
  const auto host = hosts_.find(endpoint.host);
  // While every place is taken by hosts that do not answer, no new one is tried.
  if (host == hosts_.end()) return hosts_.size() < limits_.hosts_max;
  return spent(host->second, limits_.host_per_second, now) + 1 <= limits_.host_burst;
}

void DialBudget::spend(const Endpoint& endpoint, Instant now) {
  const auto pay = [now](Bucket& bucket, double per_second) {
    bucket = Bucket{spent(bucket, per_second, now) + 1, now};
  };
  pay(all_, limits_.per_second);
  pay(hosts_[endpoint.host], limits_.host_per_second);
  if (hosts_.size() >= limits_.hosts_max / 2) forget_full(now);
}

void DialBudget::answered(const Endpoint& endpoint) { hosts_.erase(endpoint.host); }

void DialBudget::forget_full(Instant now) {
  std::erase_if(hosts_, [this, now](const auto& item) {
    return spent(item.second, limits_.host_per_second, now) == 0;
  });
}

}  // namespace gossipd
