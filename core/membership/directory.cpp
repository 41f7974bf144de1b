#include "core/membership/directory.h"

#include <algorithm>

#include "core/base/result.h"
#include "core/wire/control.h"

namespace gossipd {

void Directory::set_self(MemberRecord record, Instant now) {
  GOSSIPD_ASSERT(record.id == self_);
  Entry& entry = entries_[self_];
  GOSSIPD_ASSERT(record.incarnation >= entry.record.incarnation && record.samples >= entry.record.samples);
  entry.record = std::move(record);
  entry.refreshed = now;
  touch(entry);
}

Directory::Outcome Directory::merge(const MemberRecord& claim, Instant now) {
  if (claim.id == self_) {
    Entry& entry = entries_[self_];
    if (claim.samples > entry.record.samples) {
      entry.record.samples = claim.samples;
      touch(entry);
      if (claim.incarnation < entry.record.incarnation) return Outcome::recovered;
    }
    const bool newer = claim.incarnation > entry.record.incarnation;
    const bool accused = claim.incarnation == entry.record.incarnation && claim.state > entry.record.state;
    if (!newer && !accused) return Outcome::unchanged;
    entry.record.incarnation = claim.incarnation;  // the refutation uses a higher one
    return Outcome::accused;
  }
  const auto found = entries_.find(claim.id);
  if (found == entries_.end()) {
    if (entries_.size() >= members_max) return Outcome::unchanged;
    Entry& entry = entries_[claim.id];
    entry.record = claim;
    entry.record.state = claim.state == MemberState::suspect ? MemberState::alive : claim.state;
    entry.refreshed = now;
    touch(entry);
    return Outcome::joined;
  }
  Entry& entry = found->second;
  MemberRecord& known = entry.record;
  const Samples samples = std::max(known.samples, claim.samples);
  const MemberState before = known.state;
  bool changed = samples != known.samples;
  if (claim.incarnation > known.incarnation) {
    known = claim;
    entry.suspect = false;
    entry.refreshed = now;
    changed = true;
  } else if (claim.incarnation == known.incarnation) {
    const MemberState state = std::max(known.state, claim.state == MemberState::suspect ? MemberState::alive : claim.state);
    if (claim.tick > known.tick) {
      known = claim;
      entry.suspect = false;
      entry.refreshed = now;
      changed = true;
    }
    changed = changed || state != before;
    known.state = state;
  }
  known.samples = samples;
  if (!changed) return Outcome::unchanged;
  touch(entry);
  if (known.state == before) return Outcome::updated;
  switch (known.state) {
    case MemberState::failed: return Outcome::failed;
    case MemberState::left: return Outcome::left;
    default: return Outcome::revived;
  }
}

void Directory::heard_from(NodeId id, Instant now) {
  const auto found = entries_.find(id);
  if (found == entries_.end()) return;
  found->second.refreshed = now;
  found->second.suspect = false;
}

bool Directory::set_failed(NodeId id, Instant now) {
  const auto found = entries_.find(id);
  if (found == entries_.end() || found->second.record.state != MemberState::alive) return false;
  found->second.record.state = MemberState::failed;
  found->second.suspect = false;
  found->second.refreshed = now;
  touch(found->second);
  return true;
}

bool Directory::set_suspect(NodeId id, bool suspect) {
  const auto found = entries_.find(id);
  if (found == entries_.end() || found->second.suspect == suspect) return false;
  found->second.suspect = suspect;
  return true;
}

void Directory::forgive(Duration gap) {
  for (auto& [id, entry] : entries_) entry.refreshed += gap;
}

const Directory::Entry* Directory::find(NodeId id) const {
  const auto found = entries_.find(id);
  return found == entries_.end() ? nullptr : &found->second;
}

const MemberRecord& Directory::self() const { return entries_.at(self_).record; }

Samples Directory::others_samples() const {
  Samples sum = 0;
  for (const auto& [id, entry] : entries_)
    if (id != self_) sum += entry.record.samples;
  return sum;
}

std::size_t Directory::alive_others() const {
  return static_cast<std::size_t>(std::count_if(entries_.begin(), entries_.end(), [this](const auto& item) {
    return item.first != self_ && item.second.record.state == MemberState::alive;
  }));
}

std::vector<MemberRecord> Directory::changed_since(std::uint64_t& since) const {
  std::vector<const Entry*> changed;
  for (const auto& [id, entry] : entries_)
    if (entry.change > since) changed.push_back(&entry);
  std::sort(changed.begin(), changed.end(), [](const Entry* a, const Entry* b) { return a->change < b->change; });
  if (changed.size() > records_per_message_max) changed.resize(records_per_message_max);
  std::vector<MemberRecord> records;
  for (const Entry* entry : changed) {
    since = entry->change;
    records.push_back(entry->record);
  }
  return records;
}

}  // namespace gossipd
