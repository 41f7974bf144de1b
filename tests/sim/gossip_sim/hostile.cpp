#include "tests/sim/gossip_sim/hostile.h"

#include "core/codec/kernels.h"
#include "core/exchange/turn_bounds.h"
#include "core/wire/bytes.h"
#include "tests/sim/gossip_sim/scenario.h"

namespace gossipd::sim {
namespace {

constexpr std::size_t remembered_max = 64;
constexpr std::size_t flood = 300;  // more sessions than a node accepts
constexpr Duration pause_between = std::chrono::milliseconds(200);
constexpr Duration pause_in_turn = std::chrono::milliseconds(20);
// First bytes of CBOR items that parsers recurse on or whose length they trust.
constexpr std::uint8_t bombs[] = {0x7f, 0x5f, 0x9f, 0xbf, 0x81, 0xa1, 0xc0, 0xd9, 0x9b, 0xbb, 0x7b};

}  // namespace

void Hostile::remember(Lane lane, const Bytes& message) {
  if (message.size() > 4096 || random_.below(8) != 0) return;
  heard_.emplace_back(lane, message);
  if (heard_.size() > remembered_max) heard_.pop_front();
}

void Hostile::strike(Kind kind, std::size_t victim) {
  for (std::size_t i = 0; i < (kind == Kind::flood ? flood : 1); ++i) {
    dialled_.emplace_back(kind, victim);
    cluster_.network().dial(host_, victim, VirtualCluster::endpoint(victim));
  }
}

void Hostile::end() {
  for (const auto& [id, open] : sessions_) cluster_.network().close(host_, id, "enough");
  sessions_.clear();
}

void Hostile::opened(SessionId id) {
  if (dialled_.empty()) return cluster_.network().close(host_, id, "nobody asked");
  const auto [kind, victim] = dialled_.front();
  dialled_.pop_front();
  sessions_[id] = Open{kind, victim, kind == Kind::flood ? 0 : 3 + random_.below(10)};
  sessions_[id].says_nothing = kind == Kind::endless && random_.below(4) == 0;
  const bool as_member = kind == Kind::member || kind == Kind::endless || kind == Kind::liar;
  if (as_member) say(id, Lane::control, hello(true, sessions_[id]));
  if (kind == Kind::bytes && random_.below(3) == 0)
    say(id, Lane::control, hello(false, sessions_[id]));
  if (kind != Kind::endless) say_next(id);
}

void Hostile::dial_failed() {
  if (!dialled_.empty()) dialled_.pop_front();
}

void Hostile::closed(SessionId id) { sessions_.erase(id); }

void Hostile::heard(SessionId id, Lane lane, const Bytes& message) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return;
  Open& open = found->second;
  if (open.kind != Kind::member && open.kind != Kind::endless && open.kind != Kind::liar) return;
  if (lane == Lane::bulk) {
    TurnHeader header;
    std::vector<TurnRecord> records;
    if (open.kind != Kind::endless || bulk_kind(message) != BulkKind::turn ||
        decode_turn(message, schema_, header, records) || !header.last)
      return;
    open.turn = header.turn + 1;
    return go_on(id);
  }
  const Result<Control> control = decode_control(message);
  if (!control) return;
  // Answers what keeps the session up, so that all of its nonsense is heard.
  if (const auto* ready = std::get_if<Ready>(&*control)) {
    Ready mine = *ready;
    mine.has_model = open.kind == Kind::endless || random_.below(2) == 0;
    mine.nonce = random_.next();
    // If both have a model the lower id speaks first, otherwise the one with a model.
    const bool first = !ready->has_model || open.own_id < raw(cluster_.id(open.victim));
    if (open.kind != Kind::endless && random_.below(8) == 0)
      mine.schema = SchemaHash{random_.next()};
    say(id, Lane::control, encode_control(mine));
    if (open.kind != Kind::endless || !first) return;
    open.turn = 1;
    go_on(id);
  } else if (const auto* ping = std::get_if<Ping>(&*control)) {
    say(id, Lane::control, encode_control(Pong{ping->nonce}));
  }
}

void Hostile::say(SessionId id, Lane lane, Bytes message) {
  if (message.empty()) return;
  (void)cluster_.network().send(host_, id, lane, std::make_shared<const Bytes>(std::move(message)));
}

void Hostile::say_next(SessionId id) {
  cluster_.events().at(cluster_.now() + pause_between, [this, id] {
    const auto found = sessions_.find(id);
    if (found == sessions_.end() || found->second.left == 0) return;
    --found->second.left;
    if (found->second.kind == Kind::liar) {
      say(id, Lane::control, lie());
      return say_next(id);
    }
    const Lane lane = random_.below(2) == 0 ? Lane::control : Lane::bulk;
    if (heard_.empty() || random_.below(4) == 0) {
      say(id, lane, random_bytes());
    } else {
      const auto& [real_lane, real] = heard_[random_.below(heard_.size())];
      const Result<Control> control =
          real_lane == Lane::control ? decode_control(real) : Result<Control>(Error{});
      const bool speaks_of_others = control && (std::holds_alternative<Members>(*control) ||
                                                std::holds_alternative<Hello>(*control));
      if (!speaks_of_others) say(id, real_lane, mutated(real));
    }
    say_next(id);
  });
}

// One message at a time, each after the arrival of its predecessor, so the other end has seen it.
void Hostile::go_on(SessionId id) {
  cluster_.events().at(cluster_.now() + pause_in_turn, [this, id] {
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) return;
    Open& open = found->second;
    if (!cluster_.network().is_quiet(host_, id)) return go_on(id);
    GOSSIPD_SIM_REQUIRE(open.said <= turn_records_per_block_max * schema_.blocks().size() + 1,
                        "queues",
                        "node" + std::to_string(open.victim) + " hears a turn of " +
                            std::to_string(open.said) + " messages that has no end");
    say(id, Lane::bulk, part_of_turn(open));
    ++open.said;
    go_on(id);
  });
}

// All blocks as a whole, and again.
Bytes Hostile::part_of_turn(const Open& open) const {
  const bool nothing = open.says_nothing || schema_.blocks().empty();
  const auto index = static_cast<std::uint32_t>(nothing ? 0 : open.said % schema_.blocks().size());
  const std::vector<float> values(nothing ? 0 : schema_.blocks()[index].size, 0.5f);
  Bytes message(turn_header_bytes);
  ByteWriter writer(message);
  write_turn_header(
      std::span(message).first<turn_header_bytes>(),
      TurnHeader{.records = static_cast<std::uint16_t>(nothing ? 0 : 1), .turn = open.turn});
  if (nothing) return message;
  const TurnRecord record{.block = index,
                          .version = static_cast<Version>(open.said + 1),
                          .codec = {CodecId::keyframe, 0},
                          .hash = kernels().hash(values)};
  write_turn_record(writer.grow(turn_record_bytes).first<turn_record_bytes>(), record);
  writer.put(*record.hash);
  for (const float value : values) writer.put(value);
  return message;
}

Bytes Hostile::random_bytes() {
  if (random_.below(6) == 0)
    return Bytes(control_bytes_max, static_cast<std::byte>(bombs[random_.below(std::size(bombs))]));
  Bytes bytes(1 + random_.below(random_.below(20) == 0 ? 60'000 : 300));
  for (std::byte& b : bytes) b = static_cast<std::byte>(random_.next());
  return bytes;
}

// Changes a few bits, a few bytes of a meaningful number, or the length.
Bytes Hostile::mutated(Bytes bytes) {
  const std::uint64_t how = random_.below(4);
  if (how == 0) bytes.resize(1 + random_.below(bytes.size() + 8));
  for (std::uint64_t i = 0; how == 1 && i < 1 + random_.below(4); ++i)
    bytes[random_.below(bytes.size())] ^= static_cast<std::byte>(1u << random_.below(8));
  if (how == 2) {
    const std::byte fill = static_cast<std::byte>(random_.below(2) == 0 ? 0xff : 0x7f);
    const std::size_t at = random_.below(bytes.size());
    for (std::size_t i = at; i < std::min(bytes.size(), at + 4); ++i) bytes[i] = fill;
  }
  return bytes;
}

// ---- lies ----

std::uint64_t Hostile::boundary() {
  constexpr std::uint64_t one = 1;
  const std::uint64_t powers[] = {one << 8,  one << 16, one << 20, one << 31, one << 32, one << 40,
                                  one << 41, one << 47, one << 53, one << 60, one << 62, one << 63};
  const std::uint64_t draw = random_.below(std::size(powers) + 3);
  if (draw == std::size(powers)) return random_.below(3);
  if (draw > std::size(powers)) return ~std::uint64_t{0} - random_.below(2);
  return powers[draw] - 1 + random_.below(3);
}

NodeId Hostile::somebody() {
  const std::size_t host = random_.below(cluster_.size());
  const bool member = !cluster_.is_stranger(host) && cluster_.disk(host).cluster == own_cluster;
  return !member || random_.below(3) == 0 ? NodeId{0xbad00000000ull + random_.below(3)}
                                          : cluster_.id(host);
}

// A budget of the next revision would count as an operator's command.
MemberRecord Hostile::lying_record() {
  const double reals[] = {0, -1, 1, 1e9, 3e38, -3e38};
  MemberRecord record;
  record.id = somebody();
  record.name = std::string(random_.below(2) * name_bytes_max, 'x');
  record.address = VirtualCluster::endpoint(random_.below(cluster_.size()));
  if (random_.below(4) == 0) record.address = Endpoint{"", static_cast<std::uint16_t>(boundary())};
  record.incarnation = boundary();
  record.state = static_cast<MemberState>(random_.below(5));
  record.tick = boundary();
  record.news = random_.below(2) == 0 ? record.tick : boundary();
  record.phase = static_cast<Phase>(random_.below(phase_count));
  record.samples = Hostile::is_own(record.id) ? boundary() : 0;
  record.step = boundary();
  record.samples_per_second = reals[random_.below(std::size(reals))];
  record.batch = static_cast<std::uint32_t>(boundary());
  record.loss = reals[random_.below(std::size(reals))];
  record.consensus_distance = reals[random_.below(std::size(reals))];
  if (random_.below(2) == 0)
    record.budget = Budget{boundary() | std::uint64_t{1} << 40, boundary()};
  return record;
}

Members Hostile::lying_members() {
  Members members;
  for (std::uint64_t i = 0; i < 1 + random_.below(3); ++i)
    members.records.push_back(lying_record());
  for (std::uint64_t i = 0; i < random_.below(3); ++i)
    members.stats.push_back(stats_of(lying_record()));
  for (std::uint64_t i = 0; i < random_.below(3); ++i)
    members.suspicions.push_back({somebody(), boundary(), somebody()});
  return members;
}

// Mostly about members, since most others end the session.
Bytes Hostile::lie() {
  const auto small = [this] { return static_cast<std::uint32_t>(boundary()); };
  switch (random_.below(20)) {
    case 0:
      return encode_control(Ready{SchemaHash{boundary()},
                                  random_.below(2) == 0,
                                  boundary(),
                                  boundary(),
                                  small(),
                                  small(),
                                  small(),
                                  {small()},
                                  true});
    case 1: return encode_control(Ping{boundary()});
    case 2: return encode_control(Pong{boundary()});
    case 3: return encode_control(Resync{{small(), small()}});
    case 4:
      return encode_control(Digest{std::vector<std::uint64_t>(1 + random_.below(200), boundary())});
    case 5:
      return encode_control(FileRequest{JobFile{boundary(), boundary(), boundary()}, boundary()});
    case 6: return encode_control(FileAbsent{JobFile{boundary(), boundary(), boundary()}});
    case 7: return encode_control(JobOffer{JobHash{boundary()}, boundary(), "lie"});
    case 8:
      return encode_control(Cloned{somebody(), 1 + random_.below(3), boundary() | 4,
                                   VirtualCluster::endpoint(0), Endpoint{}});
    case 9:
      return random_.below(2) == 0
                 ? encode_control(Bye{"left"})
                 : encode_control(Refuse{Error{"cloned", std::string(1024, 'x')}});
    case 10: {
      Hello hello;
      hello.protocol = small();
      hello.id = somebody();
      hello.incarnation = boundary();
      hello.cluster = ClusterId{boundary()};
      hello.job = JobHash{boundary()};
      hello.newest = small();
      hello.instance = boundary();
      return encode_control(hello);
    }
    case 11: return encode_control(JobRequest{});
    case 12:
      return encode_control(
          Reached{VirtualCluster::endpoint(0), random_.below(2) == 0, std::string(200, 'r')});
    case 13: return encode_control(Spare{});
    case 14:  // of this cluster and with its own hash it would be a takeover, which is allowed
      return encode_control(
          Succession{ClusterId{boundary()}, boundary(), JobHash{boundary()}, "lie"});
    default: return encode_control(lying_members());
  }
}

Bytes Hostile::hello(bool right_cluster, Open& open) {
  Hello hello;
  hello.protocol = right_cluster || random_.below(2) == 0
                       ? protocol_version
                       : static_cast<std::uint32_t>(random_.next());
  hello.id = NodeId{0xbad00000000ull + random_.below(3)};
  open.own_id = raw(hello.id);
  hello.incarnation = random_.below(1000) + 1;
  hello.name = "hostile";
  hello.address = VirtualCluster::endpoint(host_);
  hello.cluster =
      right_cluster ? cluster_.disk(open.victim).cluster : ClusterId{random_.next() | 1};
  hello.job = right_cluster ? cluster_.disk(open.victim).job : JobHash{random_.next()};
  return encode_control(hello);
}

}  // namespace gossipd::sim
