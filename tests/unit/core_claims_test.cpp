// What is believed of what peers claim: counters, samples, budgets.
#include <doctest/doctest.h>

#include "core/membership/claims.h"

using namespace gossipd;
using namespace std::chrono_literals;

namespace {

constexpr NodeId us{1}, other{2}, third{3}, stranger{9};
constexpr std::uint64_t all_ones = ~std::uint64_t{0};
const Instant begin{1000s};

MemberRecord record_of(NodeId id, Samples samples = 0, double rate = 0) {
  MemberRecord record;
  record.id = id;
  record.incarnation = 5;
  record.tick = record.news = 7;
  record.samples = samples;
  record.samples_per_second = rate;
  return record;
}

// Two others are known, with 1,000 samples each, all at 100 samples/s.
struct Known {
  Directory directory{us};
  explicit Known(Samples samples = 1000) {
    directory.set_self(record_of(us, samples, 100), true, begin);
    for (const NodeId id : {other, third}) {
      (void)directory.merge(record_of(id, samples, 100), begin);
      directory.heard_from(id, begin);
    }
  }
};

SampleCredit::Start member(double ratio = 10) {
  return {.self = us, .speed_ratio_max = ratio, .now = begin};
}
SampleCredit::Start newcomer() {
  return {.self = us, .speed_ratio_max = 10, .newcomer = true, .now = begin};
}

}  // namespace

TEST_CASE(
    "an incarnation is believed as far as somebody can still refute it, its owner's word further "
    "than hearsay") {
  CHECK(is_plausible_incarnation(5 + told_incarnation_jump_max, 5, Told::of_another));
  CHECK_FALSE(is_plausible_incarnation(6 + told_incarnation_jump_max, 5, Told::of_another));
  CHECK(is_plausible_incarnation(first_incarnation_max, std::nullopt, Told::of_another));
  CHECK_FALSE(is_plausible_incarnation(first_incarnation_max + 1, std::nullopt, Told::of_another));
  CHECK(is_plausible_incarnation(first_own_word_max, std::nullopt, Told::of_itself));
  CHECK_FALSE(is_plausible_incarnation(first_own_word_max + 1, std::nullopt, Told::of_itself));
  // Whatever a newcomer is made to believe of us we may refute, and all may believe the refutation
  // of us.
  CHECK(is_plausible_incarnation(refuted_first_max, 5, Told::of_us));
  CHECK_FALSE(is_plausible_incarnation(refuted_first_max + 1, 5, Told::of_us));
  CHECK(
      is_plausible_incarnation(first_incarnation_max + 2, first_incarnation_max + 1, Told::of_us));
  CHECK(is_plausible_incarnation(first_incarnation_max + 1, 5, Told::of_itself));
  for (const Told told : {Told::of_another, Told::of_itself, Told::of_us}) {
    CHECK_FALSE(is_plausible_incarnation(all_ones, 5, told));
    CHECK_FALSE(is_plausible_incarnation(counter_max, counter_max - 1, told));
    CHECK(is_plausible_incarnation(counter_max - 1, counter_max - 2, told));
  }
}

TEST_CASE("a record whose counters cannot be is doubted by kind") {
  const MemberRecord known = record_of(other);
  CHECK_FALSE(doubt(known, &known, Told::of_another));
  MemberRecord claim = known;
  claim.incarnation = all_ones;
  CHECK(doubt(claim, &known, Told::of_itself) == Doubt::incarnation);
  claim = known;
  claim.tick = all_ones;
  CHECK(doubt(claim, &known, Told::of_itself) == Doubt::counter);
  claim = known;
  claim.news = claim.tick + 1;
  CHECK(doubt(claim, &known, Told::of_itself) == Doubt::counter);
  claim = known;
  claim.step = all_ones;
  CHECK(doubt(claim, nullptr, Told::of_another) == Doubt::counter);
}

TEST_CASE(
    "the revision of a budget may rise by so much at once, by more with time, and never to where "
    "nothing follows") {
  BudgetBound bound(3, false, begin);
  CHECK(bound.is_plausible({3 + budget_revision_jump_max, 10}, begin));
  CHECK_FALSE(bound.is_plausible({4 + budget_revision_jump_max, 10}, begin));
  CHECK(bound.is_plausible({4 + budget_revision_jump_max, 10}, begin + 1s));
  CHECK_FALSE(bound.is_plausible({all_ones, 10}, begin + 1000h));
  CHECK_FALSE(bound.is_plausible({4, 0}, begin));
  CHECK_FALSE(bound.is_plausible({0, 10}, begin));  // that is the job's own
  CHECK_FALSE(bound.is_plausible({4, all_ones}, begin));
  bound.adopt(1 << 30, false);
  CHECK_FALSE(bound.is_plausible({1 << 30, 10}, begin));
  bound.adopt(1 << 30, true);
  CHECK(bound.is_plausible({(1 << 30) + 5, 10}, begin));
  BudgetBound fresh(0, true, begin);
  CHECK(fresh.is_plausible({1 << 30, 10}, begin));
  CHECK_FALSE(fresh.is_plausible({first_budget_revision_max + 1, 10}, begin));
  fresh.adopt(1 << 30, false);
  fresh.end_trust();
  CHECK(fresh.is_plausible({(1 << 30) + 5, 10}, begin));
  CHECK_FALSE(fresh.is_plausible({1ull << 31, 10}, begin));
}

TEST_CASE(
    "claimed samples count at so many times the typical speed, and what is beyond counts later") {
  SampleCredit credit(member());
  credit.advance(100, 1000, begin);
  // no time has passed
  CHECK(credit.credit({.id = other, .claimed = 5000, .known = 1000, .met = true}) == 1000);
  credit.advance(100, 1000, begin + 1s);
  CHECK(credit.due() == std::vector<std::pair<NodeId, Samples>>{{other, 2000}});
  credit.advance(100, 1000, begin + 3s);
  CHECK(credit.due() == std::vector<std::pair<NodeId, Samples>>{{other, 4000}});
  credit.advance(100, 1000, begin + 60s);
  CHECK(credit.due() == std::vector<std::pair<NodeId, Samples>>{{other, 5000}});
  CHECK(credit.due().empty());
  // An honest member is credited in full: 57 s have passed.
  CHECK(credit.credit({.id = other, .claimed = 5000 + 5700, .known = 5000, .met = true}) ==
        5000 + 5700);
}

TEST_CASE("unused time is kept for so long only, and claims never add up beyond their range") {
  SampleCredit credit(member());
  credit.advance(100, 1000, begin);
  credit.advance(100, 1000, begin + 100h);
  const double kept = 1000 * seconds(SampleCredit::reserve);
  CHECK(static_cast<double>(
            credit.credit({.id = other, .claimed = all_ones, .known = 1000, .met = true})) ==
        doctest::Approx(1000 + kept));
  CHECK(credit.credit({.id = third, .claimed = 10, .known = 0, .met = true}) == 10);
  SampleCredit trusting(newcomer());
  CHECK(trusting.credit({.id = other, .claimed = all_ones, .known = 0, .met = false}) ==
        member_samples_max);
}

TEST_CASE("invented members in any number do not stop the samples of those that are met") {
  SampleCredit credit(member());
  Samples known = 1000, own = 1000;
  const auto hear = [&](int s) {
    credit.advance(100, 1000, begin + s * 1s);
    own += 100;
    known = credit.credit({.id = other, .claimed = own, .known = known, .own_word = true});
    (void)credit.due();
  };
  hear(0);
  std::uint64_t next = 100;
  for (int s = 1; s < 400; ++s) {  // 6,400 of them
    for (int i = 0; i < 16; ++i)
      (void)credit.credit(
          {.id = NodeId{++next}, .claimed = member_samples_max, .known = 0, .met = false});
    hear(s);
  }
  CHECK(known == own);
  CHECK(credit.credit({.id = third, .claimed = 500, .known = 0, .own_word = true}) == 500);
}

TEST_CASE("whoever comes after more members than are remembered has samples that count") {
  SampleCredit credit(member());
  credit.advance(100, 0, begin);
  Instant now = begin;
  const auto says = [&](std::size_t i, Samples claimed) {
    return credit.credit({.id = NodeId{100 + i}, .claimed = claimed, .own_word = true});
  };
  for (std::size_t i = 0; i < SampleCredit::accounts_max + 10; ++i) {
    credit.advance(100, 0, now += 10ms);
    REQUIRE(says(i, 0) == 0);
  }
  credit.advance(100, 0, now += 60s);
  CHECK(says(SampleCredit::accounts_max + 10, 100) == 100);
  CHECK(says(SampleCredit::accounts_max, 100) == 100);
  CHECK(says(0, 100) == 100);
}

TEST_CASE("samples that others trained on while this node was down count at once") {
  SampleCredit::Start start = member();
  start.down_for = 1h;
  SampleCredit credit(start);
  // no rate is known yet
  CHECK(credit.credit({.id = other, .claimed = 1000 + 360'000, .known = 1000, .met = true}) ==
        1000);
  credit.advance(100, 1000, begin);
  CHECK(credit.due() == std::vector<std::pair<NodeId, Samples>>{{other, 361'000}});
}

TEST_CASE(
    "of itself a node believes what is older than its start and newer than its disk, and no more") {
  SampleCredit::Start start = member();
  start.down_for = 10s;
  SampleCredit credit(start);
  credit.advance(100, 1000, begin + 100h);
  CHECK(credit.credit({.id = us, .claimed = 6000, .known = 1000, .met = true}) == 6000);
  CHECK(credit.credit({.id = us, .claimed = all_ones, .known = 6000, .met = true}) == 11'000);
  start.unsure_for = 5s;  // it died before it had been told
  SampleCredit again(start);
  again.advance(100, 1000, begin + 100h);
  CHECK(again.credit({.id = us, .claimed = all_ones, .known = 1000, .met = true}) == 16'000);
  SampleCredit without(member());
  without.advance(100, 1000, begin + 100h);
  CHECK(without.credit({.id = us, .claimed = 1001, .known = 1000, .met = true}) == 1000);
}

TEST_CASE("claims about another member count as far as it can have trained since its own claim") {
  SampleCredit credit(member());
  credit.advance(100, 1000, begin);
  credit.advance(100, 1000, begin + 30s);
  credit.advance(100, 1000, begin + 60s);
  CHECK(credit.credit({.id = other, .claimed = 2000, .known = 1000, .own_word = true}) == 2000);
  const Samples slack = 1000 * 30;
  for (int i = 0; i < 3; ++i)
    CHECK(credit.credit({.id = other, .claimed = all_ones, .known = 2000}) == 2000 + slack);
  credit.advance(100, 1000, begin + 61s);
  for (int i = 0; i < 3; ++i)
    CHECK(credit.credit({.id = other, .claimed = all_ones, .known = 2000}) == 3000 + slack);
  credit.advance(100, 1000, begin + 100h);
  CHECK(credit.due().empty());
}

TEST_CASE("a member's own claim that was read after this node stood still may be as old as that") {
  SampleCredit credit(member());
  credit.advance(100, 1000, begin);
  credit.advance(100, 1000, begin + 1h);
  const Samples trained = 100 * 3600;  // by a typical member meanwhile
  CHECK(credit.credit({.id = other, .claimed = 2000, .known = 1000, .own_word = true}) == 2000);
  CHECK(credit.credit({.id = other, .claimed = trained, .known = 2000}) == trained);
  // A claim of its own that was not waiting bounds what others say again.
  credit.advance(100, 1000, begin + 1h + SampleCredit::own_word_slack);
  CHECK(credit.credit({.id = other, .claimed = trained, .known = trained, .own_word = true}) ==
        trained);
  CHECK(credit.credit({.id = other, .claimed = all_ones, .known = trained}) == trained + 1000 * 30);
}

TEST_CASE("a newcomer without a rate believes what is told of a member after its own claim") {
  SampleCredit credit(newcomer());
  CHECK(credit.credit({.id = other, .claimed = 0, .known = 0, .met = true, .own_word = true}) == 0);
  CHECK(credit.credit({.id = other, .claimed = 32, .known = 0, .met = true}) == 32);
}

TEST_CASE(
    "a member that is met late may be as old as this node, and a newcomer believes what it is told "
    "of others") {
  SampleCredit credit(member());
  credit.advance(100, 50'000, begin);
  CHECK(credit.credit({.id = stranger, .claimed = 400'000, .known = 0, .met = false}) == 400'000);
  CHECK(credit.credit({.id = NodeId{10}, .claimed = 600'000, .known = 0, .met = false}) == 100'000);
  SampleCredit fresh(newcomer());
  CHECK(fresh.credit({.id = other, .claimed = 1'000'000, .known = 0, .met = false}) == 1'000'000);
  CHECK(fresh.credit({.id = us, .claimed = 1'000'000, .known = 0, .met = true}) == 0);
  fresh.end_trust();
  fresh.advance(100, 10, begin);
  CHECK(fresh.credit({.id = other, .claimed = 2'000'000, .known = 1'000'000, .met = true}) ==
        1'000'000);
}

TEST_CASE("members that were only ever heard of count together no more than one that has spoken") {
  SampleCredit credit(member());
  credit.advance(100, 1000, begin);
  const auto all = [&credit](Samples claimed) {
    Samples sum = 0;
    for (std::uint64_t id = 100; id < 300; ++id)
      sum += credit.credit({.id = NodeId{id}, .claimed = claimed, .known = 0, .met = false});
    return sum;
  };
  CHECK(all(all_ones) == 10'000);  // one head start of ratio * own samples
  credit.advance(100, 1000, begin + 10s);
  Samples more = 0;
  for (const auto& [id, samples] : credit.due()) more += samples;
  CHECK(more <= 10'000 + 10'000);  // and the bound of one member for the time that has passed
  // A member that speaks itself has a head start of its own.
  CHECK(credit.credit(
            {.id = NodeId{400}, .claimed = 9000, .known = 0, .met = false, .own_word = true}) ==
        9000);
  // After `proof` a member that was heard of counts by itself.
  credit.advance(100, 1000, begin + SampleCredit::proof + 1s);
  more = 0;
  for (const auto& [id, samples] : credit.due()) more += samples;
  CHECK(more > 100 * 10 * 600);
}

TEST_CASE("invented members neither fill the directory nor decide what is typical") {
  Known known;
  Claims claims(member(), 0);
  (void)claims.on_tick(known.directory, 100, begin);
  std::size_t admitted = 0;
  for (std::uint64_t id = 1000; id < 5000; ++id) {
    MemberRecord invented = record_of(NodeId{id}, 0, 1e12);
    if (!claims.admit(invented, known.directory, other)) continue;
    ++admitted;
    (void)known.directory.merge(invented, begin);
  }
  CHECK(admitted == static_cast<std::size_t>(Claims::newcomers_max));
  CHECK(typical_rate(known.directory, us, 100) == 100);
  (void)claims.on_tick(known.directory, 100, begin + 1s);
  MemberRecord later = record_of(NodeId{6000});
  CHECK(claims.admit(later, known.directory, other));
  MemberRecord itself = record_of(NodeId{7000});
  for (int i = 0; i < 100; ++i) CHECK(claims.admit(itself, known.directory, NodeId{7000}));
}

TEST_CASE("one member does not decide what is typical") {
  Known known;
  CHECK(typical_rate(known.directory, us, 100) == 100);
  MemberRecord liar = record_of(other, 1000, 1e30);
  ++liar.tick;
  (void)known.directory.merge(liar, begin);
  CHECK(typical_rate(known.directory, us, 100) == 100);
  CHECK(typical_rate(known.directory, us, 0) == 100);
  Directory two(us);
  two.set_self(record_of(us), true, begin);
  (void)two.merge(liar, begin);
  two.heard_from(other, begin);
  CHECK(typical_rate(two, us, 0) == 0);
  CHECK(typical_rate(two, us, 50) == 50);
  // A node that restarts after the end trains no more: the last rate of the only other is all that
  // it can go by.
  liar.phase = Phase::finished;
  liar.samples_per_second = 70;
  ++liar.tick;
  ++liar.news;
  (void)two.merge(liar, begin);
  CHECK(typical_rate(two, us, 0) == 70);
  CHECK(typical_rate(two, us, 50) == 50);
}

TEST_CASE("refused claims are counted by kind and source, and told once a minute") {
  Known known;
  Claims claims(member(), 0);
  CHECK(claims.on_tick(known.directory, 100, begin).empty());
  CHECK_FALSE(claims.summary(begin));
  MemberRecord lie = record_of(third, 1000);
  CHECK(claims.admit(lie, known.directory, other));
  lie.incarnation = all_ones;
  for (int i = 0; i < 3; ++i) CHECK_FALSE(claims.admit(lie, known.directory, other));
  CHECK_FALSE(claims.admit(Budget{all_ones, 1}, third, begin));
  CHECK_FALSE(claims.admit(Suspicion{us, all_ones, other}, known.directory, other));
  CHECK(claims.admit(Suspicion{us, 6, other}, known.directory, other));
  CHECK(claims.refused() == 5);
  CHECK(claims.summary(begin) ==
        "event=claims-refused count=5 kinds=incarnation:4,budget:1 said_by=" + to_hex(other) +
            ":4," + to_hex(third) + ":1");
  CHECK_FALSE(claims.admit(lie, known.directory, other));
  CHECK_FALSE(claims.summary(begin + 59s));
  CHECK(claims.summary(begin + 61s));
  CHECK_FALSE(claims.summary(begin + 122s));
}

TEST_CASE(
    "a node follows a claim of a far life of its own once a minute, or a liar would drive it to "
    "the end of its range") {
  Known known;
  Claims claims(member(), 0);
  (void)claims.on_tick(known.directory, 100, begin);
  CHECK_FALSE(claims.take_leap(known.directory, begin));
  MemberRecord lie = record_of(us, 1000);
  lie.incarnation = 5 + told_incarnation_jump_max;
  CHECK(claims.admit(lie, known.directory, other));
  for (std::uint64_t far : {std::uint64_t{1} << 30, first_incarnation_max}) {
    lie.incarnation = far;
    CHECK_FALSE(claims.admit(lie, known.directory, other));
  }
  CHECK(claims.take_leap(known.directory, begin) == first_incarnation_max);
  CHECK_FALSE(claims.admit(lie, known.directory, other));
  CHECK_FALSE(claims.take_leap(known.directory, begin + 59s));
  CHECK(claims.take_leap(known.directory, begin + 60s) == first_incarnation_max);
  CHECK_FALSE(claims.take_leap(known.directory, begin + 600s));
  MemberStats stats = stats_of(lie);
  CHECK_FALSE(claims.admit(stats, known.directory, other));
}

TEST_CASE("of a member that is not known, a life beyond belief counts as one that it can outbid") {
  Known known;
  Claims claims(newcomer(), 0);
  (void)claims.on_tick(known.directory, 100, begin);
  MemberRecord far = record_of(stranger, 1000);
  far.incarnation = 2 * first_incarnation_max;
  far.state = MemberState::failed;
  REQUIRE(claims.admit(far, known.directory, other));
  CHECK(far.incarnation == first_incarnation_max);
  CHECK(far.samples == 1000);
  CHECK(claims.refused() == 1);
  far.incarnation = all_ones;
  CHECK_FALSE(claims.admit(far, known.directory, other));
}

TEST_CASE("an admitted record holds the samples that count") {
  Known known;
  Claims claims(member(), 0);
  (void)claims.on_tick(known.directory, 100, begin);
  MemberRecord claim = record_of(other, all_ones, 100);
  REQUIRE(claims.admit(claim, known.directory, other));
  CHECK(claim.samples == 1000);
  MemberStats stats = stats_of(record_of(us, Samples{1} << 62));
  REQUIRE(claims.admit(stats, known.directory, other));
  CHECK(stats.samples == 1000);
  CHECK(claims.refused() == 2);
  CHECK(claims.rate_max() == 1000);
}

TEST_CASE("a member that claims fewer samples than are known of it is told the rest") {
  Known known;
  Claims claims(member(), 0);
  MemberRecord claim = record_of(other, 300, 100);
  ++claim.incarnation;  // a start from an old disk
  REQUIRE(claims.admit(claim, known.directory, other));
  CHECK(claim.samples == 300);
  MemberStats stats = stats_of(record_of(third, 300, 100));
  ++stats.tick;
  REQUIRE(claims.admit(stats, known.directory, third));
  CHECK(stats.samples == 300);
  const SessionId teller{7};
  (void)known.directory.merge(claim, begin, teller);
  (void)known.directory.merge(stats, begin, teller);
  Directory::Sweep sweep;
  std::map<NodeId, Samples> told;
  for (const MemberStats& said : known.directory.next_stats(sweep, teller, 10, begin))
    told[said.id] = said.samples;
  CHECK(told[other] == 1000);
  CHECK(told[third] == 1000);
}
