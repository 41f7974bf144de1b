#include "core/membership/instances.h"

#include <algorithm>

namespace gossipd {
namespace {

constexpr std::uint64_t random_bits = 32;
constexpr std::uint64_t random_mask = (std::uint64_t{1} << random_bits) - 1;

bool contains(const std::deque<std::uint64_t>& list, std::uint64_t value) { return std::find(list.begin(), list.end(), value) != list.end(); }

void remember(std::deque<std::uint64_t>& list, std::uint64_t value) {
  if (contains(list, value)) return;
  list.push_back(value);
  if (list.size() > Instances::former_max) list.pop_front();
}

}  // namespace

// Never 0, which is no instance.
std::uint64_t make_instance(std::uint64_t incarnation, std::uint64_t random) {
  return std::min(incarnation, random_mask) << random_bits | std::max<std::uint64_t>(random & random_mask, 1);
}

Instances::Heard Instances::hear(NodeId id, std::uint64_t instance) {
  if (instance == 0) return Heard::alone;
  if (!lives_.contains(id) && lives_.size() >= ids_max) lives_.erase(lives_.begin());
  Lives& lives = lives_[id];
  if (instance == lives.current) return Heard::alone;
  if (contains(lives.outlived, instance)) return Heard::outlived;
  if (contains(lives.former, instance)) return Heard::again;
  if (lives.current != 0) remember(lives.former, lives.current);
  lives.current = instance;
  return Heard::alone;
}

bool Instances::returned(NodeId id, std::uint64_t instance) {
  Lives& lives = lives_[id];
  if (instance == lives.current || lives.current == 0) return true;
  std::erase(lives.former, instance);
  const bool keeps = instance < lives.current;
  remember(lives.outlived, keeps ? lives.current : instance);
  if (keeps) lives.current = instance;
  return keeps;
}

bool Instances::is_cloned(NodeId id) const {
  const auto found = lives_.find(id);
  return found != lives_.end() && !found->second.outlived.empty();
}

}  // namespace gossipd
