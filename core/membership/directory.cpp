#include "core/membership/directory.h"

#include <algorithm>
#include <cmath>

#include "core/base/result.h"

namespace gossipd {
namespace {

constexpr std::size_t looked_at_max = 256;  // members, for one call of next_stats()
constexpr std::size_t members_per_bucket = 8;
constexpr std::size_t evicted_max = 65536;
constexpr Duration kept_at_least = std::chrono::seconds(2);  // neighbours are heard of more often

void take_news(MemberRecord& to, const MemberRecord& from) {
  to.name = from.name;
  to.address = from.address;
  to.phase = from.phase;
  to.budget = from.budget;
  to.version = from.version;
  to.device = from.device;
  to.reachability = from.reachability;
  to.news = from.news;
}

void take_stats(MemberRecord& to, const MemberStats& from) {
  to.tick = from.tick;
  to.step = from.step;
  to.samples_per_second = from.samples_per_second;
  to.batch = from.batch;
  to.loss = from.loss;
  to.consensus_distance = from.consensus_distance;
  to.accuracy = from.accuracy;
}

// Words nearer to each other, or said in another order than heard, show no pace.
constexpr double pace_interval_min_s = 0.5;
constexpr double pace_weight = 0.25;
constexpr double unmet_max_s = 10;

// A published speed is that of steps. Between its words a member also evaluates, writes and waits.
// What a word counts may be short of a step that is under way.
void note_pace(Directory::Entry& entry) {
  const Directory::Counted now{entry.record.samples, entry.said};
  const Directory::Counted before = entry.paced_from.value_or(now);
  const double interval = seconds(now.at - before.at);
  // Nothing was counted: what comes next is the pace since the last progress.
  if (entry.paced_from && (interval < pace_interval_min_s || now.samples == before.samples)) return;
  entry.paced_from = now;
  if (interval <= 0) return;
  const double pace =
      (static_cast<double>(now.samples - before.samples) + entry.record.batch) / interval;
  entry.pace = entry.pace ? *entry.pace + pace_weight * (pace - *entry.pace) : pace;
}

// As splitmix64 ends: every bit of the result depends on every bit of the value.
std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
  return value ^ (value >> 31);
}

std::uint64_t hash_of_news(const MemberRecord& r) {
  return mix(mix(mix(raw(r.id)) + r.incarnation) + r.news * 8 + raw(r.state));
}

void had_word(Directory::Entry& entry, Instant now) {
  entry.refreshed = now;
  entry.doubted = false;
}

}  // namespace

MemberStats stats_of(const MemberRecord& r) {
  return {
      r.id,   r.incarnation,        r.tick,     r.samples, r.step, r.samples_per_second, r.batch,
      r.loss, r.consensus_distance, r.accuracy, 0};
}

void Directory::account(const MemberRecord& record, bool adds) {
  if (record.id == self_) return;
  const bool lives = record.state == MemberState::alive;
  others_samples_ = adds ? others_samples_ + record.samples : others_samples_ - record.samples;
  alive_others_ = adds ? alive_others_ + lives : alive_others_ - lives;
  const bool has_failed = record.state == MemberState::failed;
  failed_ = adds ? failed_ + has_failed : failed_ - has_failed;
}

// `source`: that the change came from, if it knows all that this node now knows of the member.
Directory::Entry& Directory::touch(Entry& entry, bool is_news, SessionId source) {
  entry.stats = ++stats_;
  entry.source = source;
  if (!is_news) return entry;
  entry.news_source = source;
  by_news_.erase(entry.news);
  entry.news = ++news_;
  by_news_[entry.news] = entry.record.id;
  return entry;
}

void Directory::absolve(Entry& entry) {
  if (!entry.suspect) return;
  entry.suspect = entry.accused_here = false;
  entry.accusers.clear();
  suspects_.erase(entry.record.id);
}

// ---- what is said -------------------------------------------------------------------------------

void Directory::set_self(MemberRecord record, bool is_news, Instant now) {
  GOSSIPD_ASSERT(record.id == self_);
  Entry& entry = entries_[self_];
  GOSSIPD_ASSERT(record.incarnation >= entry.record.incarnation &&
                 record.samples >= entry.record.samples);
  record.tick = entry.record.tick + 1;
  record.news = is_news ? record.tick : entry.record.news;
  entry.record = std::move(record);
  entry.refreshed = entry.said = now;
  touch(entry, is_news);
}

void Directory::lose_own(Samples samples) {
  Entry& entry = entries_[self_];
  entry.record.samples = std::min(entry.record.samples, samples);
}

// Ticks beyond our own would keep what we say from being heard, and news that are not ours would
// stand: both are refuted like an accusation.
Directory::Outcome Directory::merge_self(const MemberStats& claim, MemberState state,
                                         std::uint64_t news) {
  Entry& entry = entries_[self_];
  const bool recovered = claim.samples > entry.record.samples;
  if (recovered) {
    // A step takes a sample at least.
    const Step most = entry.record.step + (claim.samples - entry.record.samples);
    entry.record.step = std::max(entry.record.step, std::min(claim.step, most));
    entry.record.samples = claim.samples;
    touch(entry, true);
  }
  const bool newer = claim.incarnation > entry.record.incarnation;
  const bool accused =
      claim.incarnation == entry.record.incarnation &&
      (state > entry.record.state || claim.tick > entry.record.tick || news > entry.record.news);
  if (!newer && !accused) return recovered ? Outcome::recovered : Outcome::unchanged;
  return Outcome::accused;
}

Directory::Outcome Directory::add(const MemberRecord& claim, Instant now, SessionId source) {
  const bool full = entries_.size() >= most_;
  const bool met = claim.id == expected_;
  if (full && !make_room(met, now)) return Outcome::unchanged;
  Entry& entry = entries_[claim.id];
  entry.record = claim;
  entry.met = met;
  if (const auto evicted = evicted_.find(claim.id); evicted != evicted_.end()) {
    entry.record.samples = std::max(claim.samples, evicted->second);
    others_samples_ -= evicted->second;
    evicted_.erase(evicted);
  }
  if (claim.state == MemberState::suspect) entry.record.state = MemberState::alive;
  entry.refreshed = entry.said = now;
  note_pace(entry);
  account(entry.record, true);
  touch(entry, !full, claim.samples == entry.record.samples ? source : SessionId{});
  return Outcome::joined;
}

// The record that is the oldest goes, and one that nobody here has met before one that has been: a
// liar can invent members, but not sessions with them. For a member that is met itself there is
// always room.
bool Directory::make_room(bool for_met, Instant now) {
  const auto worse = [](const Entry& a, const Entry& b) {
    return std::pair(a.was_ever_met(), a.refreshed) < std::pair(b.was_ever_met(), b.refreshed);
  };
  auto oldest = entries_.end();
  for (auto it = entries_.begin(); it != entries_.end(); ++it)
    if (it->first != self_ && (oldest == entries_.end() || worse(it->second, oldest->second)))
      oldest = it;
  if (oldest == entries_.end()) return false;
  if (!for_met && now - oldest->second.refreshed < kept_at_least) return false;
  if (evicted_.size() >= evicted_max) {
    // The smallest count is forgotten: it stays in the sum.
    evicted_.erase(std::min_element(evicted_.begin(), evicted_.end(),
                                    [](auto& a, auto& b) { return a.second < b.second; }));
  }
  absolve(oldest->second);
  account(oldest->second.record, false);
  evicted_[oldest->first] = oldest->second.record.samples;
  others_samples_ += oldest->second.record.samples;
  by_news_.erase(oldest->second.news);
  entries_.erase(oldest);
  return true;
}

Directory::Outcome Directory::merge(const MemberRecord& claim, Instant now, SessionId source) {
  if (claim.id == self_) return merge_self(stats_of(claim), claim.state, claim.news);
  const auto found = entries_.find(claim.id);
  if (found == entries_.end()) return add(claim, now, source);
  Entry& entry = found->second;
  MemberRecord& known = entry.record;
  if (claim.incarnation < known.incarnation && claim.samples <= known.samples)
    return Outcome::unchanged;
  account(known, false);
  const MemberState before = known.state;
  const Samples samples = std::max(known.samples, claim.samples);
  const MemberState claimed =
      claim.state == MemberState::suspect ? MemberState::alive : claim.state;
  const bool refuted = claim.incarnation > known.incarnation;
  const bool newer_word =
      refuted || (claim.incarnation == known.incarnation && claim.tick > known.tick);
  bool is_news = refuted, newer_stats = samples != known.samples;
  if (newer_word) entry.said = now;
  if (refuted) {
    known = claim;
    known.state = claimed;
    entry.lonely = false;
  } else if (claim.incarnation == known.incarnation) {
    known.state = std::max(known.state, claimed);
    is_news = known.state != before || claim.news > known.news;
    if (claim.news > known.news) take_news(known, claim);
    if (claim.tick > known.tick) {
      take_stats(known, stats_of(claim));
      newer_stats = true;
    }
  }
  known.samples = samples;
  if (newer_word) note_pace(entry);
  account(known, true);
  if (!is_news && !newer_stats) return Outcome::unchanged;
  const bool said_it_all = claim.incarnation == known.incarnation && claimed == known.state &&
                           claim.news == known.news && claim.tick == known.tick &&
                           claim.samples == known.samples;
  touch(entry, is_news, said_it_all ? source : SessionId{});
  if (newer_word || is_news) had_word(entry, now);
  if (refuted || known.state != MemberState::alive) absolve(entry);
  if (known.state == before) return Outcome::updated;
  switch (known.state) {
    case MemberState::failed: return Outcome::failed;
    case MemberState::left:
    case MemberState::forgotten: return Outcome::left;
    default: return Outcome::revived;
  }
}

Directory::Outcome Directory::merge(const MemberStats& claim, Instant now, SessionId source) {
  if (claim.id == self_) return merge_self(claim, MemberState::alive, 0);
  const auto found = entries_.find(claim.id);
  if (found == entries_.end()) return Outcome::unchanged;
  Entry& entry = found->second;
  const bool newer =
      claim.incarnation == entry.record.incarnation && claim.tick > entry.record.tick;
  if (!newer && claim.samples <= entry.record.samples) return Outcome::unchanged;
  account(entry.record, false);
  if (newer) {
    take_stats(entry.record, claim);
    entry.said = now - from_seconds(claim.age_seconds);
  }
  entry.record.samples = std::max(entry.record.samples, claim.samples);
  if (newer) note_pace(entry);
  account(entry.record, true);
  // What counts later, here or at another, is no word of it.
  if (newer) had_word(entry, now);
  touch(entry, false, newer && claim.samples == entry.record.samples ? source : SessionId{});
  return Outcome::updated;
}

// ---- who lives ----------------------------------------------------------------------------------

void Directory::drop_life(NodeId id) {
  const auto found = entries_.find(id);
  if (found != entries_.end()) found->second.record.incarnation = 0;
}

void Directory::recall_met(NodeId id) {
  const auto found = entries_.find(id);
  if (found != entries_.end() && !found->second.met) found->second.met_before = true;
}

void Directory::heard_from(NodeId id, Instant now) {
  const auto found = entries_.find(id);
  if (found == entries_.end()) return;
  had_word(found->second, now);
  found->second.met = true;
  found->second.met_before = false;
  absolve(found->second);
}

bool Directory::set_failed(NodeId id, bool lonely, Instant now) {
  const auto found = entries_.find(id);
  if (found == entries_.end() || found->second.record.state != MemberState::alive) return false;
  Entry& entry = found->second;
  account(entry.record, false);
  entry.record.state = MemberState::failed;
  account(entry.record, true);
  entry.lonely = lonely && !entry.doubted;  // the second time it stands
  entry.refreshed = now;
  absolve(entry);
  touch(entry, true);
  return true;
}

bool Directory::set_forgotten(NodeId id, Instant now) {
  const auto found = entries_.find(id);
  if (found == entries_.end() || found->second.record.state < MemberState::failed) return false;
  Entry& entry = found->second;
  account(entry.record, false);
  entry.record.state = MemberState::forgotten;
  account(entry.record, true);
  entry.lonely = false;
  entry.refreshed = now;
  touch(entry, true);
  return true;
}

bool Directory::accuse(NodeId id, Instant last_heard) {
  const auto found = entries_.find(id);
  if (found == entries_.end() || found->second.record.state != MemberState::alive ||
      found->second.accused_here || id == self_)
    return false;
  Entry& entry = found->second;
  entry.suspect = entry.accused_here = true;
  entry.suspected = last_heard;
  entry.accusers.insert(self_);
  suspects_.insert(id);
  return true;
}

bool Directory::merge(const Suspicion& suspicion, Instant now) {
  const auto found = entries_.find(suspicion.id);
  if (found == entries_.end() || suspicion.id == self_) return false;
  Entry& entry = found->second;
  if (entry.record.state != MemberState::alive || entry.record.incarnation != suspicion.incarnation)
    return false;
  if (entry.accusers.size() >= accusers_max || !entry.accusers.insert(suspicion.by).second)
    return false;
  if (!entry.suspect) entry.suspected = now;
  entry.suspect = true;
  suspects_.insert(suspicion.id);
  return true;
}

std::vector<NodeId> Directory::overdue(const Timeouts& timeouts, Instant now) const {
  std::vector<NodeId> ids;
  for (const NodeId id : suspects_) {
    const Entry& entry = entries_.at(id);
    Duration patience = 2 * timeouts.fail_after;
    if (entry.accused_here) {
      const auto others =
          static_cast<double>(std::min(entry.accusers.size(), accusers_max) - 1);  // this node
      const double share =
          1 - 0.5 * std::log(others + 1) / std::log(static_cast<double>(accusers_max));
      patience = timeouts.suspect_after +
                 from_seconds(seconds(timeouts.fail_after - timeouts.suspect_after) * share);
    }
    if (now - entry.suspected > patience) ids.push_back(id);
  }
  return ids;
}

void Directory::forgive(Duration gap, Instant now) {
  for (const NodeId id : suspects_) {
    Instant& suspected = entries_.at(id).suspected;
    suspected = std::min(suspected + gap, now);
  }
  for (auto& [id, entry] : entries_) {
    entry.said = std::min(entry.said + gap, now);  // what they did meanwhile, they will say
    entry.refreshed = std::min(entry.refreshed + gap, now);
  }
}

// Members of which this node only hears may be invented. Beyond what has been counted of them, all
// of them together count as the members that it has met and itself do in `unmet_max_s`.
Samples Directory::samples_since(Instant now, const Estimator& by) const {
  double samples = 0, unmet = 0, met_rate = by.own_rate;
  for (const auto& [id, entry] : entries_) {
    const MemberRecord& record = entry.record;
    if (id == self_ || entry.suspect || record.state != MemberState::alive ||
        record.phase != Phase::training)
      continue;
    const double said = record.samples_per_second;
    const double rate = std::clamp(std::min(said, entry.pace.value_or(said)), 0.0, by.rate_max);
    if (entry.was_ever_met()) met_rate += rate;
    const double age = std::clamp(seconds(now - entry.said), 0.0, stats_age_max_s);
    const auto counted = static_cast<double>(record.samples);
    double since = std::min(age * rate, std::max(counted, static_cast<double>(by.own)));
    if (record.batch > 0) since = record.batch * std::floor(since / record.batch);  // whole steps
    const double sure = entry.was_ever_met() ? since : std::min(since, counted);
    samples += sure;
    unmet += since - sure;
  }
  return static_cast<Samples>(samples + std::min(unmet, unmet_max_s * met_rate));
}

void Directory::doubt_lonely_verdicts(Instant now) {
  for (auto& [id, entry] : entries_) {
    if (!std::exchange(entry.lonely, false) || entry.record.state != MemberState::failed) continue;
    account(entry.record, false);
    entry.record.state = MemberState::alive;
    account(entry.record, true);
    entry.refreshed = now;
    entry.doubted = true;
    touch(entry, true);
  }
}

// ---- looking at it, and telling it --------------------------------------------------------------

const Directory::Entry* Directory::find(NodeId id) const {
  const auto found = entries_.find(id);
  return found == entries_.end() ? nullptr : &found->second;
}

const MemberRecord& Directory::self() const { return entries_.at(self_).record; }

std::vector<MemberRecord> Directory::news_since(std::uint64_t& since, SessionId to,
                                                std::size_t most) const {
  std::vector<MemberRecord> records;
  for (auto it = by_news_.upper_bound(since); it != by_news_.end() && records.size() < most; ++it) {
    since = it->first;
    const Entry& entry = entries_.at(it->second);
    if (entry.news_source != to || to == SessionId{}) records.push_back(entry.record);
  }
  return records;
}

// A sweep goes through all members once. What changes behind it is for the next one, so a link that
// has been told all hears nothing more.
std::vector<MemberStats> Directory::next_stats(Sweep& sweep, SessionId to, std::size_t most,
                                               Instant now) const {
  std::vector<MemberStats> stats;
  if (!sweep.under_way) {
    if (sweep.told >= stats_) return stats;
    sweep = Sweep{sweep.told, stats_, NodeId{}, true};
  }
  auto it = entries_.upper_bound(sweep.at);
  for (std::size_t looked = 0;
       it != entries_.end() && looked < looked_at_max && stats.size() < most; ++it, ++looked) {
    sweep.at = it->first;
    const Entry& entry = it->second;
    if (entry.stats > sweep.told && entry.source != to) {
      stats.push_back(stats_of(entry.record));
      stats.back().age_seconds = std::max(0.0, seconds(now - entry.said));
    }
  }
  if (it == entries_.end()) sweep = Sweep{sweep.next, 0, NodeId{}, false};
  return stats;
}

std::size_t Directory::buckets_for(std::size_t members) {
  return std::clamp<std::size_t>(members / members_per_bucket, 1, digest_buckets_max);
}

std::vector<std::uint64_t> Directory::digest_in(std::size_t buckets) const {
  std::vector<std::uint64_t> hashes(buckets);
  for (const auto& [id, entry] : entries_)
    hashes[mix(raw(id)) % buckets] += hash_of_news(entry.record);
  return hashes;
}

std::vector<MemberRecord> Directory::differing(const std::vector<std::uint64_t>& theirs) const {
  std::vector<MemberRecord> records;
  if (theirs.empty() || theirs.size() > digest_buckets_max) return records;
  const std::vector<std::uint64_t> ours = digest_in(theirs.size());
  for (const auto& [id, entry] : entries_) {
    const std::size_t bucket = mix(raw(id)) % theirs.size();
    if (ours[bucket] != theirs[bucket]) records.push_back(entry.record);
  }
  return records;
}

std::vector<MemberRecord> Directory::sample(std::size_t most, Random& random) const {
  std::vector<MemberRecord> records;
  std::size_t seen = 0;
  for (const auto& [id, entry] : entries_) {
    if (entry.record.state != MemberState::alive) continue;
    ++seen;
    if (records.size() < most)
      records.push_back(entry.record);
    else if (const std::size_t place = random.below(seen); place < most)
      records[place] = entry.record;
  }
  return records;
}

}  // namespace gossipd
