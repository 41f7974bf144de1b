#include "net/peer/admission.h"

#include <algorithm>
#include <array>
#include <vector>

namespace gossipd {

std::optional<SessionId> Admission::enter(SessionId id, const Source& source) {
  const bool member = knows(source);
  std::size_t same_places = 0, same_source = 0;
  for (const auto& [other, waiting] : waiting_) {
    same_places += waiting.member == member ? 1 : 0;
    same_source += waiting.source == source && waiting.stage != Stage::proved ? 1 : 0;
  }
  std::optional<SessionId> gone;
  if (same_source >= limits_.places_per_source_max) {
    gone = weakest(Among::all, &source);
  } else if (same_places >= limits_.places_max) {
    gone = weakest(member ? Among::members : Among::strangers, nullptr);
  }
  if (gone) waiting_.erase(*gone);
  waiting_.emplace(id, Waiting{source, Stage::silent, member});
  return gone;
}

void Admission::advance(SessionId id, Stage stage) {
  const auto found = waiting_.find(id);
  if (found != waiting_.end()) found->second.stage = stage;
}

void Admission::leave(SessionId id) { waiting_.erase(id); }

std::optional<SessionId> Admission::give_up_one() {
  const auto gone = weakest(Among::all, nullptr);
  if (gone) waiting_.erase(*gone);
  return gone;
}

std::optional<SessionId> Admission::weakest(Among among, const Source* source) const {
  std::map<Source, std::size_t> crowds;
  std::optional<SessionId> oldest;  // of all, if all have proved something
  std::vector<std::pair<SessionId, const Waiting*>> unproved;
  for (const auto& [id, waiting] : waiting_) {
    if (source != nullptr && waiting.source != *source) continue;
    if (among != Among::all && waiting.member != (among == Among::members)) continue;
    if (!oldest) oldest = id;
    if (waiting.stage == Stage::proved) continue;
    ++crowds[waiting.source];
    unproved.emplace_back(id, &waiting);
  }
  if (unproved.empty()) return oldest;
  std::size_t largest = 0;
  for (const auto& [from, crowd] : crowds) largest = std::max(largest, crowd);
  std::erase_if(unproved, [&](const auto& one) { return crowds.at(one.second->source) < largest; });
  std::array<std::size_t, 3> count{};  // by stage
  for (const auto& [id, waiting] : unproved) ++count[static_cast<std::size_t>(waiting->stage)];
  const Stage weak = count[0] > 0           ? Stage::refused
                     : count[1] >= count[2] ? Stage::silent
                                            : Stage::speaking;
  return std::ranges::find_if(unproved,
                              [weak](const auto& one) { return one.second->stage == weak; })
      ->first;
}

void Admission::know(const Source& source) {
  std::erase(members_, source);
  members_.push_back(source);
  if (members_.size() > limits_.members_max) members_.pop_front();
}

bool Admission::knows(const Source& source) const {
  return std::ranges::find(members_, source) != members_.end();
}

}  // namespace gossipd
