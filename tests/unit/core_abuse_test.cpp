// A peer that goes beyond every bound: what it says is refused, nothing grows, and it rests.
#include <doctest/doctest.h>

#include <cstring>

#include "core/exchange/turn_bounds.h"
#include "core/membership/plausibility.h"
#include "core/node/control_allowance.h"
#include "core/wire/file_piece.h"
#include "tests/fuzz/link_script.h"
#include "tests/lone_node.h"

using namespace gossipd;
using namespace std::chrono_literals;

namespace {

constexpr ClusterId cluster{7};
constexpr JobHash job{9};
constexpr NodeId own{2}, peer{1};

Hello hello(NodeId id = peer) {
  return {.protocol = protocol_version,
          .cluster = cluster,
          .id = id,
          .incarnation = 1,
          .name = "peer",
          .address = {"peer", 1},
          .job = job,
          .newest = protocol_version};
}

Hello hello_in_life(std::uint64_t incarnation, bool leaving) {
  Hello said = hello();
  said.incarnation = incarnation;
  said.leaving = leaving;
  said.founded = cluster;
  return said;
}

// A member that has a model and an open link to a node that has one as well; the member has the
// first turn.
struct Linked {
  explicit Linked(std::size_t window = ExchangePolicy{}.bulk_window_bytes)
      : node(config_of(window), LoneNode::state_of(own, cluster)) {
    node.prepare(script_schema(), "document", job, 1'000'000, true);
    link_up();
  }
  static NodeConfig config_of(std::size_t window) {
    NodeConfig config = LoneNode::config_of(1);
    config.exchange.bulk_window_bytes = window;
    return config;
  }
  void link_up() {
    session = node.open(false, {"peer", 1});
    node.hear(session, hello());
    node.hear(session, Ready{.schema = script_schema().hash(), .has_model = true, .nonce = 5});
    REQUIRE(node.is_open(session));
    (void)node.take_sent();
  }
  std::string last_refusal() {
    std::string code;
    for (const auto& sent : node.take_sent()) {
      if (sent.lane != Lane::control) continue;
      const auto control = decode_control(*sent.message);
      if (const auto* refuse = control ? std::get_if<Refuse>(&*control) : nullptr)
        code = refuse->reason.code;
    }
    return code;
  }
  // Sent in words, and in the exchange, since the last call.
  std::vector<Control> take_words(std::size_t* bulk_bytes = nullptr) {
    std::vector<Control> words;
    for (const auto& sent : node.take_sent()) {
      if (sent.lane == Lane::control) words.push_back(*decode_control(*sent.message));
      if (sent.lane == Lane::bulk && bulk_bytes != nullptr) *bulk_bytes += sent.message->size();
    }
    return words;
  }
  [[nodiscard]] MemberView member(NodeId id) {
    for (const MemberView& item : node.node().view(node.now()).members)
      if (item.record.id == id) return item;
    return {};
  }
  bool is_suspect(NodeId id) { return member(id).record.state == MemberState::suspect; }
  std::uint64_t refused(Reject reason) { return node.link()->counters.refused[raw(reason)]; }

  LoneNode node;
  SessionId session{};
};

// A message of the first turn with a keyframe of one block.
Bytes keyframe_message(std::uint32_t block, Version version, bool last, std::uint32_t turn = 1) {
  const Schema schema = script_schema();
  const std::vector<float> values(schema.blocks()[block].size, 0.5f);
  Bytes message(turn_header_bytes + turn_record_bytes + turn_hash_bytes + 4 * values.size());
  write_turn_header(std::span(message).first<turn_header_bytes>(),
                    TurnHeader{.last = last, .records = 1, .turn = turn});
  const std::uint64_t hash = kernels().hash(values);
  const TurnRecord record{
      .block = block, .version = version, .codec = {CodecId::keyframe, 0}, .hash = hash};
  write_turn_record(std::span(message).subspan<turn_header_bytes, turn_record_bytes>(), record);
  std::byte* at = message.data() + turn_header_bytes + turn_record_bytes;
  std::memcpy(at, &hash, sizeof hash);
  std::memcpy(at + sizeof hash, values.data(), 4 * values.size());
  return message;
}

Bytes empty_message(bool last) {
  Bytes message(turn_header_bytes);
  write_turn_header(std::span(message).first<turn_header_bytes>(),
                    TurnHeader{.last = last, .turn = 1});
  return message;
}

}  // namespace

// ---- a turn -------------------------------------------------------------------------------------

TEST_CASE(
    "a turn says of a block one record that goes whole and one delta; a third is refused and "
    "changes nothing") {
  TurnBounds bounds;
  bounds.begin(4);
  const TurnHeader header;
  const TurnRecord whole{.block = 1, .codec = {CodecId::keyframe, 0}},
      delta{.block = 1, .codec = {CodecId::int8, 0}};
  const TurnRecord other{.block = 3, .codec = {CodecId::int8, 0}};
  CHECK_FALSE(bounds.admit(header, std::vector{whole, delta}));
  CHECK(bounds.admit(header, std::vector{other, delta}) == Reject::endless_turn);
  // was not taken along with the refused one
  CHECK_FALSE(bounds.admit(header, std::vector{other}));
  CHECK(bounds.admit(header, std::vector{whole}) == Reject::endless_turn);
  bounds.begin(4);
  CHECK_FALSE(bounds.admit(header, std::vector{delta, other}));
}

TEST_CASE("rests grow, and begin small again after an hour without one") {
  Linked linked;
  const std::pair<double, Duration> rests[] = {{10, 11s}, {20, 59min}, {40, 62min}, {10, 0s}};
  for (const auto& [rest_s, then] : rests) {
    linked.node.hear(linked.session, Lane::bulk, empty_message(false));
    REQUIRE_FALSE(linked.node.is_open(linked.session));
    CHECK(linked.node.link()->quarantine_s == doctest::Approx(rest_s));
    linked.node.pass(then);
    if (then > 0s) linked.link_up();
  }
}

TEST_CASE("a message of a turn that says nothing must be the last") {
  TurnBounds bounds;
  bounds.begin(4);
  CHECK(bounds.admit(TurnHeader{.last = false}, {}) == Reject::endless_turn);
  CHECK_FALSE(bounds.admit(TurnHeader{.last = true}, {}));
}

TEST_CASE("a peer whose turn does not end is refused as endless_turn at once, and rests") {
  for (const bool says_nothing : {false, true}) {
    Linked linked;
    std::size_t taken = 0;
    for (Version version = 1; linked.node.is_open(linked.session); ++version) {
      REQUIRE(taken < 10);
      ++taken;
      linked.node.hear(linked.session, Lane::bulk,
                       says_nothing ? empty_message(false) : keyframe_message(0, version, false));
    }
    CHECK(taken == (says_nothing ? 1 : 2));
    CHECK(linked.refused(Reject::endless_turn) == 1);
    CHECK(linked.last_refusal() == "quarantined");
    linked.node.node().check_invariants();
    // It is not let in before its time is over.
    const SessionId again = linked.node.open(false, {"peer", 1});
    linked.node.hear(again, hello());
    CHECK_FALSE(linked.node.is_open(again));
  }
}

template <typename Word>
const Word* last_of(const std::vector<Control>& words) {
  const Word* last = nullptr;
  for (const Control& word : words)
    if (const auto* one = std::get_if<Word>(&word)) last = one;
  return last;
}

TEST_CASE("a peer that comes back and holds nothing is not sent the whole model in one piece") {
  constexpr std::size_t window = 2000;
  Linked linked(window);
  linked.node.hear(linked.session, Lane::bulk, keyframe_message(0, 1, true));
  for (int i = 0; i < 50 && linked.node.link()->counters.turns_spoken == 0; ++i) {
    linked.node.pass(100ms);
    linked.node.train(0.01f, true);
  }
  REQUIRE(linked.node.link()->counters.turns_spoken == 1);
  linked.node.cut(linked.session);
  (void)linked.node.take_sent();
  linked.session = linked.node.open(false, {"peer", 1});
  linked.node.hear(linked.session, hello());
  const std::vector<Control> words = linked.take_words();
  const Ready* own_ready = last_of<Ready>(words);
  REQUIRE(own_ready != nullptr);
  REQUIRE(own_ready->spoken == 2);
  Ready ready = *own_ready;
  ready.nonce = 6;
  ready.spoken = 1;
  ready.heard = 0;
  linked.node.hear(linked.session, ready);
  std::size_t bulk_bytes = 0;
  (void)linked.take_words(&bulk_bytes);
  REQUIRE(bulk_bytes > 0);  // what it holds
  ReplicaState nothing;
  nothing.blocks.resize(script_schema().blocks().size());
  bulk_bytes = 0;
  linked.node.hear(linked.session, Lane::bulk, encode_replica_state(nothing));
  const std::vector<Control> last_words = linked.take_words(&bulk_bytes);
  CHECK(bulk_bytes <= window);
  CHECK_FALSE(linked.node.is_open(linked.session));
  REQUIRE(last_of<Bye>(last_words) != nullptr);
  CHECK(last_of<Bye>(last_words)->why == bye_rotated);
  CHECK_FALSE(linked.is_suspect(peer));
  linked.link_up();
  CHECK(linked.node.link()->state == "open");
}

TEST_CASE("a peer that asks for the whole model after every turn rests") {
  Linked linked;
  std::vector<std::uint32_t> all(script_schema().blocks().size());
  for (std::uint32_t i = 0; i < all.size(); ++i) all[i] = i;
  std::uint32_t turn = 1;
  std::size_t asked = 0;
  for (int i = 0; i < 400 && linked.node.is_open(linked.session); ++i) {
    const auto link = linked.node.link();
    if (link->counters.turns_spoken < (turn + 1) / 2) {
      if (turn % 2 == 1)
        linked.node.hear(linked.session, Lane::bulk,
                         keyframe_message(0, (turn + 1) / 2, true, turn)),
            ++turn;
    } else {
      linked.node.hear(linked.session, Resync{all});
      ++asked, ++turn;
    }
    linked.node.pass(100ms);
    linked.node.train(0.01f, true);
  }
  CHECK(asked >= 3);
  CHECK(asked <= 6);
  CHECK(linked.last_refusal() == "quarantined");
}

// ---- what is said of others and of this node ----------------------------------------------------

TEST_CASE("what a hello claims of a member's life is taken back by the member's own word") {
  for (const std::uint64_t life : {~std::uint64_t{0}, std::uint64_t{1} << 49}) {
    for (const bool leaving : {false, true}) {
      CAPTURE(life);
      CAPTURE(leaving);
      Linked linked;
      linked.node.cut(linked.session);
      const SessionId liar = linked.node.open(false, {"liar", 1});
      linked.node.hear(liar, hello_in_life(life, leaving));
      linked.node.cut(liar);
      CHECK(linked.member(peer).record.state != MemberState::left);
      linked.link_up();
      CHECK(linked.member(peer).record.state == MemberState::alive);
      CHECK(linked.member(peer).record.incarnation == 1);
    }
  }
}

TEST_CASE("a probe of a member whose life was lied about does not take it away") {
  Linked linked;
  linked.node.cut(linked.session);
  const SessionId liar = linked.node.open(false, {"liar", 1});
  const std::uint64_t life = std::uint64_t{1} << 49;
  linked.node.hear(liar, hello_in_life(life, false));
  linked.node.cut(liar);
  REQUIRE(linked.member(peer).record.incarnation == life);
  Hello probe = hello();
  probe.probe = true;
  linked.node.hear(linked.node.open(false, {"peer", 1}), probe);
  CHECK(linked.member(peer).record.incarnation == life);
}

TEST_CASE("a member that left says so in its hello, from an old disk as well") {
  for (const std::uint64_t life : {std::uint64_t{1}, std::uint64_t{1} << 22}) {
    Linked linked;
    linked.node.cut(linked.session);
    linked.node.hear(linked.node.open(false, {"peer", 1}), hello_in_life(life, true));
    CHECK(linked.member(peer).record.state == MemberState::left);
  }
}

TEST_CASE("a word does not age with its snapshot while the trainer is busy with something else") {
  Linked linked;
  linked.node.train(0.01f, true);
  (void)linked.take_words();
  linked.node.pass(5s);
  const std::vector<Control> words = linked.take_words();
  const auto* members = last_of<Members>(words);
  REQUIRE(members != nullptr);
  REQUIRE(!members->stats.empty());
  const MemberStats& of_itself = members->stats.front();
  CHECK(of_itself.id == own);
  CHECK(of_itself.samples == 32);
  CHECK(of_itself.age_seconds == doctest::Approx(0.03));  // three steps
}

TEST_CASE("a burst of budgets is told a few times, and then the last of them") {
  Linked linked;
  MemberRecord record = linked.member(peer).record;
  std::size_t told = 0;
  for (std::uint64_t revision = 1; revision <= 1000; ++revision) {
    record.tick = record.news = revision;
    record.budget = {revision, 2'000'000 + revision};
    linked.node.hear(linked.session, Members{{record}, {}, {}});
    told += linked.take_words().size();
  }
  CHECK(told <= 4);
  linked.node.pass(100ms);
  Budget last;
  for (const Control& word : linked.take_words())
    if (const auto* members = std::get_if<Members>(&word))
      for (const MemberRecord& said : members->records)
        if (said.id == own) last = said.budget;
  CHECK(last.revision == 1000);
}

TEST_CASE(
    "a budget beyond the plausible revisions is in force once most neighbours say it themselves") {
  constexpr NodeId second{3}, third{4};
  constexpr Budget far{10 * budget_revision_jump_max, 2'000'000};
  Linked linked;
  const auto link = [&](NodeId id) {
    const SessionId session = linked.node.open(false, {"peer", static_cast<std::uint16_t>(id)});
    linked.node.hear(session, hello(id));
    return session;
  };
  const auto say = [&](SessionId by, NodeId of, const Budget& budget) {
    MemberRecord record = linked.member(of).record;
    ++record.tick;
    record.news = record.tick;
    record.budget = budget;
    linked.node.hear(by, Members{{record}, {}, {}});
    linked.node.pass(1100ms);
    return linked.member(own).record.budget.revision;
  };
  CHECK(say(linked.session, peer, far) == 0);  // one alone
  const SessionId session = link(second);
  const SessionId last = link(third);
  CHECK(say(linked.session, second, far) == 0);  // is said of it, not by it
  CHECK(say(session, second, {first_budget_revision_max + 1, 1}) == 0);
  CHECK(say(last, third, {first_budget_revision_max + 1, 1}) == 0);  // nothing may follow
  CHECK(say(last, third, far) == far.revision);
}

TEST_CASE("a dial that fails for want of something of this machine's own accuses nobody") {
  for (const bool own_shortage : {true, false}) {
    Linked linked;
    MemberRecord third;
    third.id = NodeId{5};
    third.address = {"third", 1};
    third.incarnation = third.tick = third.news = 1;
    linked.node.hear(linked.session, Members{{third}, {}, {}});
    for (int i = 0; i < 50; ++i) {
      linked.node.pass(100ms);
      linked.node.hear(linked.session, Ping{1});
    }
    REQUIRE_FALSE(linked.is_suspect(third.id));
    linked.node.node().on_dial_failed(third.address, "words", linked.node.now(), own_shortage);
    linked.node.settle();
    CHECK(linked.is_suspect(third.id) == !own_shortage);
  }
}

// ---- control messages ---------------------------------------------------------------------------

TEST_CASE("an allowance fills with time and is never more than its maximum") {
  ControlAllowance allowance;
  Instant now{};
  const Control ping = Ping{1};
  const auto spend_all = [&] {
    std::size_t count = 0;
    while (allowance.admit(ping, 20, now)) ++count;
    return count;
  };
  const auto price = price_of_message + 20 * price_of_byte;
  CHECK(spend_all() == static_cast<std::size_t>(allowance_max / price));
  now += 1s;
  const auto of_a_second = static_cast<std::size_t>(allowance_per_second / price);
  const std::size_t spent = spend_all();
  CHECK((spent == of_a_second || spent == of_a_second + 1));  // with what was left over
  now += 1h;
  CHECK(spend_all() == static_cast<std::size_t>(allowance_max / price));
  now -= 1h;  // a clock that goes back gives nothing
  CHECK(spend_all() == 0);
}

TEST_CASE(
    "a member that asks at the pace of the line is answered for a while, then refused, and rests") {
  struct Case {
    const char* name;
    Control message;
    std::size_t answers_max;
  };
  const Case cases[] = {{"ping", Ping{1}, 20'000},         {"job", JobRequest{}, 20},
                        {"digest", Digest{{1, 2, 3}}, 40}, {"unknown", UnknownControl{"x"}, 20'000},
                        {"members", Members{}, 20'000},    {"resync", Resync{{0, 1}}, 20'000}};
  for (const Case& c : cases) {
    CAPTURE(c.name);
    Linked linked;
    std::size_t said = 0;
    for (; linked.node.is_open(linked.session) && said < 30'000; ++said)
      linked.node.hear(linked.session, c.message);
    CHECK(said > 1);
    CHECK(said <= c.answers_max + 1);
    CHECK(linked.last_refusal() == "quarantined");
  }
}

TEST_CASE(
    "a new connection gives no new allowance, and connections at the pace of the line end in a "
    "rest") {
  Linked linked;
  std::size_t asked = 0;
  for (int connection = 0; connection < 5 && linked.node.is_open(linked.session); ++connection) {
    for (int i = 0; i < 6 && linked.node.is_open(linked.session); ++i, ++asked)
      linked.node.hear(linked.session, JobRequest{});
    if (!linked.node.is_open(linked.session)) break;
    linked.node.cut(linked.session);
    linked.session = linked.node.open(false, {"peer", 1});
    linked.node.hear(linked.session, hello());
  }
  CHECK(asked <= 21);
  Linked flapping;
  std::size_t links = 0;
  for (; flapping.node.is_open(flapping.session) && links < 1000; ++links) {
    flapping.node.cut(flapping.session);
    flapping.session = flapping.node.open(false, {"peer", 1});
    flapping.node.hear(flapping.session, hello());
  }
  CHECK(links <= 401);
  CHECK(flapping.last_refusal() == "flood");
}

TEST_CASE(
    "an honest peer's pace is far below the allowance: a message every 2 ms for a minute, and a "
    "whole file") {
  Linked linked;
  for (int i = 0; i < 30'000; ++i) {
    linked.node.pass(2ms);
    linked.node.hear(linked.session, Ping{1});
    linked.node.hear(linked.session,
                     FileRequest{{1, 2, job_file_bytes_max}, static_cast<std::uint64_t>(i)});
    if (i % 64 == 0) (void)linked.node.take_sent();
  }
  CHECK(linked.node.is_open(linked.session));
}

TEST_CASE("requests for a file do not pile up at a slow disk") {
  Linked linked;
  linked.node.holds_reads = true;
  for (int i = 0; i < 1000; ++i)
    linked.node.hear(linked.session, FileRequest{{1, 2, job_file_bytes_max}, 0});
  CHECK(linked.node.reads_waiting() == 4);
  linked.node.read_all();
  linked.node.hear(linked.session, FileRequest{{1, 2, job_file_bytes_max}, 0});
  CHECK(linked.node.reads_waiting() == 1);
}

TEST_CASE("pieces of a file that nobody has asked for end the link") {
  Linked linked;
  const Bytes piece = encode_file_piece({0, Bytes(file_piece_bytes_max)});
  int said = 0;
  for (; linked.node.is_open(linked.session) && said < 100; ++said)
    linked.node.hear(linked.session, Lane::bulk, piece);
  CHECK(said == 9);
  CHECK(linked.last_refusal() == "quarantined");
}

TEST_CASE("a peer that comes under ever new ids leaves no more replicas than links are accepted") {
  LoneNode node(LoneNode::config_of(1), LoneNode::state_of(own, cluster));
  node.prepare(script_schema(), "document", job, 1'000'000, true);
  const std::size_t most = MembershipPolicy{}.accepted_links();
  for (std::uint64_t id = 100; id < 100 + 4 * most; ++id) {
    const SessionId session = node.open(false, {"peer", 1});
    node.hear(session, hello(NodeId{id}));
    node.hear(session, Ready{.schema = script_schema().hash(), .has_model = true, .nonce = 5});
    node.hear(session, Lane::bulk, keyframe_message(0, 1, true));
    node.cut(session);
    node.pass(1ms);
  }
  std::size_t remembered = 0;
  for (std::uint64_t id = 100; id < 100 + 4 * most; ++id)
    remembered += node.node().received_from(NodeId{id}).empty() ? 0 : 1;
  CHECK(remembered > 0);
  CHECK(remembered <= most + 1);
}
