// Gossip: records and statistics of members, and their consequences for this node.
#include <algorithm>
#include <functional>

#include "core/base/printable.h"
#include "core/node/conductor.h"

namespace gossipd {
namespace {

constexpr std::size_t news_per_message_max = 50;
// statistics of other members sent in a tick, over all links: the bound of this traffic
constexpr std::size_t stats_per_tick = 24;
// One alone could raise a revision to its end.
constexpr std::size_t neighbours_that_agree_min = 2;

}  // namespace

// ---- telling ------------------------------------------------------------------------------------

void Conductor::send_records(Session& session, std::vector<MemberRecord> records) {
  for (std::size_t at = 0; at < records.size(); at += news_per_message_max) {
    Members part;
    for (std::size_t i = at; i < std::min(records.size(), at + news_per_message_max); ++i)
      part.records.push_back(std::move(records[i]));
    send(session, part);
  }
}

void Conductor::send_news(Session& session) {
  if (session.news_told < directory_.news())
    send_records(session, directory_.news_since(session.news_told, session.id, members_max));
}

// Own stats first, so that neighbours always know them.
void Conductor::send_stats(Session& session, std::size_t most, Instant now) {
  Members message;
  const Directory::Entry& self = *directory_.find(state_.id);
  if (self.stats > session.own_told) {
    message.stats.push_back(stats_of(self.record));
    // Counted at the last snapshot. Steps have been made since, but none while the trainer is busy
    // with something else.
    const double look = (config_.exchange.round_steps + 1) * round_.last().step_seconds;
    if (steps_allowed())
      message.stats.back().age_seconds =
          std::clamp(seconds(now - round_.snapshot_at()), 0.0, std::max(0.0, look));
  }
  session.own_told = self.stats;
  for (MemberStats& stats : directory_.next_stats(session.sweep, session.id, most, now))
    if (stats.id != state_.id) message.stats.push_back(stats);
  if (!message.stats.empty()) send(session, message);
}

void Conductor::tell_news(Instant now) {
  const std::vector<Suspicion> suspicions = detector_.take_suspicions();
  for (auto& [id, session] : peers_.sessions()) {
    if (!session.established()) continue;
    // This node may be cut off from a silent one: its verdicts wait, and may be void by then.
    if (detector_.hears(id, now)) send_news(session);
    if (!suspicions.empty()) send(session, Members{{}, {}, suspicions});
  }
}

void Conductor::gossip(Instant now) {
  tell_news(now);
  const std::size_t most =
      std::max<std::size_t>(1, stats_per_tick / std::max<std::size_t>(1, peers_.established()));
  for (auto& [id, session] : peers_.sessions())
    if (session.established()) send_stats(session, most, now);
}

// ---- hearing ------------------------------------------------------------------------------------

void Conductor::on_members(Session& session, const Members& members, Instant now) {
  // Also from a node that has no room for another link: that is how a joiner finds the others.
  if (!session.established() && !session.theirs) return;
  if (!session.established() && state_.cluster == ClusterId{}) {
    if (job_.named_by != ClusterId{} && job_.named_by != session.theirs->cluster) return;
    job_.named_by = session.theirs->cluster;
  } else if (!session.established() && session.theirs->cluster != met_as()) {
    return;
  }
  if (session.established()) {
    const double on_the_way = session.round_trip.smoothed_seconds() / 2;
    for (MemberStats stats : members.stats) {
      stats.age_seconds += on_the_way;
      if (claims_.admit(stats, directory_, session.theirs->id)) merge_stats(stats, now, session.id);
    }
    std::vector<Suspicion> suspicions;
    for (const Suspicion& suspicion : members.suspicions)
      if (claims_.admit(suspicion, directory_, session.theirs->id)) suspicions.push_back(suspicion);
    on_suspicions(suspicions, now);
  }
  std::vector<MemberRecord> records;
  for (MemberRecord record : members.records) {
    if (session.established() && record.id == session.theirs->id)
      peers_.neighbour_of(session).budget = record.budget;
    hear_budget(record.budget, record.name, session.theirs->id, now);
    if (claims_.admit(record, directory_, session.theirs->id)) records.push_back(std::move(record));
  }
  merge_records(records, now, session.id);
}

void Conductor::merge_stats(const MemberStats& stats, Instant now, SessionId source) {
  const Directory::Outcome outcome = directory_.merge(stats, now, source);
  if (outcome != Directory::Outcome::recovered && outcome != Directory::Outcome::accused) return;
  recover_samples();
  if (outcome == Directory::Outcome::accused) refute(stats.incarnation, now);
}

// Which revisions are plausible depends on how long a node has run, so a lie may be believed by
// some and refused by others. The one that more than half of the neighbours say themselves is in
// force, unless it leaves no room for a later one.
void Conductor::believe_most_neighbours() {
  std::vector<Budget> budgets;
  for (const auto& [id, session] : peers_.sessions())
    if (session.established()) budgets.push_back(peers_.neighbour_of(session).budget);
  if (budgets.size() < neighbours_that_agree_min) return;
  std::ranges::sort(budgets, std::greater<>());
  const Budget& agreed = budgets[budgets.size() / 2];  // if any is
  const auto agreeing = static_cast<std::size_t>(std::ranges::count(budgets, agreed));
  if (2 * agreeing > budgets.size() && agreed > progress_.budget() &&
      agreed.revision <= first_budget_revision_max)
    claims_.adopt(agreed, true);
}

// Claims beyond what was possible so far are credited as time passes.
void Conductor::credit_claims(Instant now) {
  believe_most_neighbours();
  Budget latest;
  for (const auto& [id, entry] : directory_.entries())
    if (claims_.believes(entry.record.budget, now)) latest = std::max(latest, entry.record.budget);
  hear_budget(latest, "the members", state_.id, now);
  for (const MemberStats& stats : claims_.on_tick(directory_, progress_.rate(), now))
    merge_stats(stats, now);
  if (const auto leap = claims_.take_leap(directory_, now)) refute(*leap, now);
  if (const auto words = claims_.summary(now)) log(Level::warning, *words);
}

void Conductor::merge_records(const std::vector<MemberRecord>& records, Instant now,
                              SessionId source) {
  bool changed_membership = false;
  for (const MemberRecord& record : records) {
    if (const Directory::Entry* before = directory_.find(record.id))
      look_at_former_addresses(before->record, record, now);
    const Directory::Outcome outcome = directory_.merge(record, now, source);
    const std::string words = " peer=" + to_hex(record.id) + " name=" + log_word(record.name) +
                              " address=" + log_word(to_string(record.address));
    switch (outcome) {
      case Directory::Outcome::joined:
        log(Level::info, "event=member-joined" + words);
        changed_membership = true;
        break;
      case Directory::Outcome::revived:
        log(Level::info, "event=member-back" + words);
        changed_membership = true;
        break;
      case Directory::Outcome::failed:
        log(Level::warning, "event=member-failed" + words + " by=gossip");
        changed_membership = true;
        break;
      case Directory::Outcome::left:
        log(Level::info, "event=member-" +
                             std::string(to_string(directory_.find(record.id)->record.state)) +
                             words);
        changed_membership = true;
        break;
      case Directory::Outcome::accused:
        recover_samples();
        refute(record.incarnation, now);
        break;
      case Directory::Outcome::recovered: recover_samples(); break;
      case Directory::Outcome::updated:
      case Directory::Outcome::unchanged: break;
    }
  }
  if (changed_membership) persistence_.request();
}

// After a restart from an old disk the others know more of this node's samples than it does.
void Conductor::recover_samples() {
  const Samples known = directory_.self().samples;
  if (!progress_.recover(known, directory_.self().step)) return;
  log(Level::info, "event=own-samples-recovered samples=" + std::to_string(known));
}

// A node that has left says so in its hello, since its goodbye may have reached nobody. If its disk
// is an old one, its incarnation is lower than what is known here. A copy's leave is not the
// member's: if another process of the id is linked or was heard later, this one says nothing of it;
// one that is not known here refutes it.
void Conductor::note_left(const Hello& hello, Instant now) {
  const auto* known = directory_.find(hello.id);
  if (known == nullptr || hello.id == state_.id) return;
  if (known->record.state == MemberState::left) return;
  // or somebody else has said it, and the member could never refute it
  if (!is_plausible_incarnation(hello.incarnation, known->record.incarnation, Told::of_us)) return;
  if (rival_of(hello) != nullptr || clones_.hear(hello) != Instances::Heard::alone) return;
  MemberRecord record = known->record;
  record.incarnation = std::max(hello.incarnation, known->record.incarnation);
  record.state = MemberState::left;
  merge_records({record}, now);
}

// ---- forgetting ---------------------------------------------------------------------------------

std::optional<Error> Conductor::forget(NodeId member, Instant now) {
  const Directory::Entry* known = directory_.find(member);
  if (known == nullptr || known->record.state == MemberState::forgotten)
    return Error{"unknown-member",
                 "no member has the id " + to_hex(member) + "; `gossipctl members` lists them"};
  if (member == state_.id && known->record.state == MemberState::left)
    return Error{"own-record", "this is the node itself, which has left; run this on a member"};
  if (!directory_.set_forgotten(member, now))
    return Error{"still-alive",
                 known->record.name + " (" + to_hex(member) +
                     ") has neither failed nor left; stop it, or let it leave, first"};
  log(Level::info, "event=member-forgotten peer=" + to_hex(member) +
                       " samples=" + std::to_string(known->record.samples));
  persistence_.urge();
  tell_news(now);
  return std::nullopt;
}

}  // namespace gossipd
