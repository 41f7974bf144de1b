#include "core/membership/instances.h"

#include <algorithm>
#include <utility>

namespace gossipd {
namespace {

constexpr std::uint64_t random_bits = 32;
constexpr std::uint64_t random_mask = (std::uint64_t{1} << random_bits) - 1;

template <typename T>
bool contains(const std::deque<T>& list, const T& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

template <typename T>
void remember(std::deque<T>& list, const T& value) {
  if (contains(list, value)) return;
  list.push_back(value);
  if (list.size() > Instances::former_max) list.pop_front();
}

}  // namespace

// Never 0, which is no instance.
std::uint64_t make_instance(std::uint64_t incarnation, std::uint64_t random) {
  return std::min(incarnation, random_mask) << random_bits |
         std::max<std::uint64_t>(random & random_mask, 1);
}

Instances::Lives& Instances::of(NodeId id) {
  if (!lives_.contains(id) && lives_.size() >= ids_max) lives_.erase(lives_.begin());
  return lives_[id];
}

std::uint64_t Instances::current(NodeId id) const {
  const auto found = lives_.find(id);
  return found == lives_.end() ? 0 : found->second.current;
}

bool Instances::moved(NodeId id, const Endpoint& from, const Endpoint& to) {
  Lives& lives = of(id);
  remember(lives.left, from);
  return contains(lives.left, to);
}

Endpoint Instances::other_address(NodeId id, const Endpoint& here) const {
  const auto found = lives_.find(id);
  if (found == lives_.end()) return {};
  const auto& left = found->second.left;
  const auto other = std::find_if(left.rbegin(), left.rend(),
                                  [&](const Endpoint& address) { return address != here; });
  return other == left.rend() ? Endpoint{} : *other;
}

Instances::Heard Instances::hear(NodeId id, std::uint64_t instance) {
  if (instance == 0) return Heard::alone;
  Lives& lives = of(id);
  if (instance == lives.current) return Heard::alone;
  if (contains(lives.outlived, instance)) return Heard::outlived;
  if (contains(lives.former, instance)) return Heard::again;
  if (lives.current != 0) remember(lives.former, lives.current);
  // to be compared with this one
  for (const std::uint64_t other : std::exchange(lives.outlived, {})) remember(lives.former, other);
  lives.current = instance;
  return Heard::alone;
}

bool Instances::returned(NodeId id, std::uint64_t instance) {
  Lives& lives = of(id);
  if (instance == lives.current || lives.current == 0) return true;
  std::erase(lives.former, instance);
  const bool keeps = instance < lives.current;
  remember(lives.outlived, keeps ? lives.current : instance);
  lives.cloned = true;
  if (keeps) lives.current = instance;
  return keeps;
}

bool Instances::is_cloned(NodeId id) const {
  const auto found = lives_.find(id);
  return found != lives_.end() && found->second.cloned;
}

}  // namespace gossipd
