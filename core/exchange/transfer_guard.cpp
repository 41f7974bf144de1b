#include "core/exchange/transfer_guard.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace gossipd {
namespace {

constexpr std::uint32_t offences_max = 8;  // that are told apart

double norm_of(const TransferGuard::Ask& ask) {
  return std::max(ask.own_norm,
                  TransferGuard::rms_min * std::sqrt(static_cast<double>(ask.floats)));
}

double least_of(const TransferGuard::Ask& ask) {
  const double floor = ask.training ? TransferGuard::norm_floor : TransferGuard::rest_floor;
  return floor * norm_of(ask);
}

double median(std::array<float, TransferGuard::history> values, std::size_t count) {
  const auto end = values.begin() + static_cast<std::ptrdiff_t>(std::min(count, values.size()));
  const auto middle = values.begin() + (end - values.begin() - 1) / 2;
  std::nth_element(values.begin(), middle, end);
  return static_cast<double>(*middle);
}

}  // namespace

// Negative: not known.
double TransferGuard::usual(NodeId peer, std::size_t block) const {
  std::vector<double> others;
  double own = -1;
  for (const auto& [id, link] : links_) {
    if (link.past[block].count < history_min) continue;
    const Past& past = link.past[block];
    if (id == peer)
      own = median(past.taken, past.count);
    else
      others.push_back(median(past.asked, past.count));
  }
  if (others.empty()) return own;
  const auto middle = others.begin() + static_cast<std::ptrdiff_t>((others.size() - 1) / 2);
  std::nth_element(others.begin(), middle, others.end());
  return *middle;
}

// How far own steps led, without the growth that pulls give them.
double TransferGuard::believed_travel(const Past& past, const Ask& ask) {
  if (past.travels < history_min) return ask.travelled;
  const double usually = median(past.travelled, past.travels);
  return std::min(ask.travelled, travel_growth * std::max(usually, least_of(ask)));
}

TransferGuard::Of& TransferGuard::link_of(NodeId peer) {
  const auto [found, is_new] = links_.try_emplace(peer);
  if (!is_new) return found->second;
  found->second.past.resize(blocks_);
  if (const auto before = closed_.extract(peer)) found->second.conduct = before.mapped();
  return found->second;
}

double TransferGuard::share(NodeId peer, const Ask& ask, double* most) {
  constexpr double unknown = std::numeric_limits<double>::infinity();
  if (most != nullptr) *most = unknown;
  if (reach_ <= 0) return 1;
  travels_ = travels_ || ask.travelled > 0;
  Of& link = link_of(peer);
  Past& past = link.past[ask.block];
  const double travelled = believed_travel(past, ask), known = usual(peer, ask.block);
  const double limit =
      travels_ && known >= 0 ? reach_ * std::max({travelled, known, least_of(ask)}) : unknown;
  if (most != nullptr) *most = limit;
  if (!(ask.norm > 0)) return 1;
  double share = std::min(1.0, limit / ask.norm);
  if (!(ask.norm <= absurd * std::max(norm_of(ask), travelled))) share = 0;
  const double taken = share > 0 ? share * ask.norm : 0;
  if (share == 1 && travelled > 0)
    past.travelled[past.travels++ % history] = static_cast<float>(travelled);
  past.asked[past.count % history] = static_cast<float>(ask.norm);
  past.taken[past.count % history] = static_cast<float>(taken);
  ++past.count;
  link.asked_squared += ask.norm * ask.norm;
  link.taken_squared += taken * taken;
  return share;
}

bool TransferGuard::finish(NodeId peer) {
  const auto found = links_.find(peer);
  if (found == links_.end()) return false;
  Of& link = found->second;
  const bool hard = link.taken_squared < hard_share * hard_share * link.asked_squared;
  link.asked_squared = link.taken_squared = 0;
  Conduct& conduct = link.conduct;
  if (!hard) {
    conduct.strikes -= std::min(conduct.strikes, 1u);
    if (++conduct.calm < forgiven_after) return false;
    conduct.calm = 0;
    conduct.offences -= std::min(conduct.offences, 1u);
    return false;
  }
  conduct.calm = 0;
  if (++conduct.strikes < std::max(1u, strikes_max >> std::min(conduct.offences, offences_max)))
    return false;
  conduct.strikes = 0;
  ++conduct.offences;
  return true;
}

void TransferGuard::close(NodeId peer) {
  const auto found = links_.find(peer);
  if (found == links_.end()) return;
  const Conduct conduct = found->second.conduct;
  links_.erase(found);
  if (conduct.strikes == 0 && conduct.offences == 0) return;
  if (closed_.size() >= closed_max)
    closed_.erase(std::ranges::min_element(
        closed_, {}, [](const auto& item) -> const Conduct& { return item.second; }));
  closed_[peer] = conduct;
}

}  // namespace gossipd
