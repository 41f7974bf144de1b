// A real Node and peers that send anything in any order, interleaved with time, snapshots, the
// operator and a slow disk: nothing crashes it, its invariants hold after every step, and its
// reaction to one message is bounded (tests/lone_node.h). The input is a script (session_script.h),
// so most of it passes the handshake.
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>

#include "core/codec/kernels.h"
#include "core/model/job_hash.h"
#include "core/wire/bytes.h"
#include "core/wire/file_piece.h"
#include "tests/fuzz/link_script.h"
#include "tests/fuzz/session_script.h"
#include "tests/lone_node.h"

using namespace gossipd;

namespace {

constexpr ClusterId cluster{7};
constexpr JobHash job{9};
constexpr Samples budget = 1'000;
constexpr std::size_t steps_max = 600;  // of one input
constexpr std::size_t sessions_of_peer_max = 64;
constexpr std::size_t refused_file_bytes = 1000;

// Numbers at boundaries.
// clang-format off
constexpr std::uint64_t numbers[] = {
    0, 1, 2, 3, 7, 64, 255, 1000, 65'535, 65'536, 0x7fffffff, 0x80000000, 0xffffffff, 0x100000000,
    0x7fffffffffffffff, 0x8000000000000000, 0xffffffffffffffff};
// clang-format on
constexpr double reals[] = {0, 1, -1, 0.5, 1e-300, 1e30, -1e30, 1e300};

const Schema& schema() {
  // Small, so that most of the time goes to the Node, not to floats; fuzz_turn has a larger one.
  static const auto built = Schema::build({{"weight", {6, 4}, 0, 24, SegmentKind::parameter},
                                           {"bias", {6}, 24, 6, SegmentKind::parameter},
                                           {"running_mean", {6}, 30, 6, SegmentKind::statistic},
                                           {"batches", {}, 36, 1, SegmentKind::local}});
  GOSSIPD_ASSERT(built);
  return *built;
}

class Input {
 public:
  explicit Input(std::span<const std::byte> in) : in_(in) {}
  [[nodiscard]] bool empty() const { return in_.empty(); }
  std::uint8_t u8() {
    if (in_.empty()) return 0;
    const auto value = std::to_integer<std::uint8_t>(in_[0]);
    in_ = in_.subspan(1);
    return value;
  }
  std::uint16_t u16() {
    const std::uint16_t low = u8();
    return static_cast<std::uint16_t>(low | u8() << 8);
  }
  std::span<const std::byte> bytes(std::size_t most) {
    const auto out = in_.first(std::min(most, in_.size()));
    in_ = in_.subspan(out.size());
    return out;
  }
  std::uint64_t number() {
    const std::uint8_t which = u8();
    return which < std::size(numbers) ? numbers[which] : which;
  }
  double real() { return reals[u8() % std::size(reals)]; }

 private:
  std::span<const std::byte> in_;
};

// The peer's half of the exchange.
struct Peer {
  NodeId id{};
  SessionId session{};
  std::size_t sessions = 0;
  std::optional<Ready> ready_of_node;
  std::uint32_t turn = 0;  // the last turn ended by either end
  std::array<Version, 4> said{};
  Lane last_lane{};
  Bytes last_said;
  Lane heard_lane{};
  SharedBytes last_heard;
};

class Script {
 public:
  explicit Script(std::span<const std::byte> in)
      : in_(in), start_(in_.u8()), node_(config(), LoneNode::state_of(fuzzed_node, cluster)) {
    for (std::size_t i = 0; i < peers_.size(); ++i) peers_[i].id = NodeId{i == 1 ? 9 : i + 1};
    peers_[1].id = NodeId{0xffffffffffffffff};
    peers_[2].id = NodeId{1};
    if (!(start_ & start_without_job))
      node_.prepare(schema(), "document", job, budget, !(start_ & start_without_model));
  }

  void run() {
    for (std::size_t i = 0; i < steps_max && !in_.empty(); ++i) {
      step(static_cast<SessionStep>(in_.u8() % static_cast<std::uint8_t>(SessionStep::count_)));
      listen();
      if (std::exchange(node_.job_arrived, false)) node_.prepare_model(schema(), false);
      node_.node().check_invariants();
    }
    const NodeView view = node_.node().view(node_.now());
    GOSSIPD_ASSERT(view.members.size() <= members_max && view.links.size() <= members_max &&
                   view.refusals.size() <= refusals_max);
    for (const float x : node_.model()) GOSSIPD_ASSERT(std::isfinite(x));
  }

 private:
  [[nodiscard]] NodeConfig config() const {
    static const Codec codecs[] = {
        {CodecId::top_k, 64}, {CodecId::int8, 0}, {CodecId::ternary, 0}, {CodecId::bf16, 0}};
    NodeConfig config = LoneNode::config_of(1);
    if (start_ & start_older) config.membership.protocol = protocol_oldest;
    config.exchange.codec = codecs[start_ >> 3 & 3];
    if (start_ >> 5 & 1) config.exchange.replicas = ReplicaFormat::bf16;
    if (start_ >> 6 & 1) config.exchange.correction.future_position = 1;
    if (start_ >> 7 & 1) config.exchange.correction.loss_trust = LossTrust::holt;
    return config;
  }

  Peer& peer() { return peers_[selected_]; }

  void say(Lane lane, std::span<const std::byte> message) {
    if (message.empty()) return;
    peer().last_lane = lane;
    peer().last_said.assign(message.begin(), message.end());
    node_.hear(peer().session, lane, message);
  }
  void say(const Control& message) { say(Lane::control, encode_control(message)); }

  // A reader of the node's messages knows whose turn it is.
  void listen() {
    if (node_.next_job) {
      const NextJobEffect next = *std::exchange(node_.next_job, std::nullopt);
      node_.node().on_next_job_kept(next.state, in_.u8() % 2 == 0, node_.now());
      node_.settle();
    }
    for (LoneNode::Sent& sent : node_.take_sent()) {
      for (Peer& peer : peers_) {
        if (peer.session != sent.session) continue;
        peer.heard_lane = sent.lane;
        peer.last_heard = sent.message;
        if (sent.lane == Lane::control)
          hear_control(peer, *sent.message);
        else
          hear_turn(peer, *sent.message);
      }
    }
  }
  static void hear_control(Peer& peer, std::span<const std::byte> message) {
    const auto control = decode_control(message);
    GOSSIPD_ASSERT(control);
    if (const auto* ready = std::get_if<Ready>(&*control)) peer.ready_of_node = *ready;
  }
  static void hear_turn(Peer& peer, std::span<const std::byte> message) {
    if (bulk_kind(message) != BulkKind::turn) return;
    TurnHeader header;
    std::vector<TurnRecord> records;
    GOSSIPD_ASSERT(!decode_turn(message, schema(), header, records));
    if (header.last) peer.turn = header.turn;
  }

  void step(SessionStep what) {
    switch (what) {
      case SessionStep::select: selected_ = in_.u8() % peers_.size(); break;
      case SessionStep::dial_in: dial_in(in_.u8()); break;
      case SessionStep::hello:
        hello(static_cast<HelloOddity>(in_.u8() % static_cast<std::uint8_t>(HelloOddity::count_)));
        break;
      case SessionStep::ready: ready(in_.u8()); break;
      case SessionStep::link_up:
        dial_in(0);
        hello(HelloOddity::none);
        listen();
        ready(0);
        break;
      case SessionStep::cut: node_.cut(peer().session); break;
      case SessionStep::control: control(in_.u8()); break;
      case SessionStep::control_raw: say(Lane::control, in_.bytes(in_.u16())); break;
      case SessionStep::control_fill: fill(Lane::control, std::size_t{1} + in_.u16()); break;
      case SessionStep::bulk_raw: say(Lane::bulk, in_.bytes(in_.u16())); break;
      case SessionStep::bulk_fill: fill(Lane::bulk, std::size_t{4096} * in_.u8()); break;
      case SessionStep::turn: turn(in_.u8()); break;
      case SessionStep::replica: replica(in_.u8()); break;
      case SessionStep::piece: piece(); break;
      case SessionStep::time:
        node_.pass(std::chrono::milliseconds(1 << std::min<int>(in_.u8(), 22)));
        break;
      case SessionStep::train: train(in_.u8()); break;
      case SessionStep::op: operate(in_.u8()); break;
      case SessionStep::disk:
        node_.holds_reads = (in_.u8() & 1) != 0;
        if (!node_.holds_reads) node_.read_all();
        break;
      case SessionStep::repeat: repeat(in_.u8()); break;
      case SessionStep::say_again:
        if (peer().last_heard) say(peer().heard_lane, Bytes(*peer().last_heard));
        break;
      case SessionStep::count_: break;
    }
  }

  void dial_in(std::uint8_t how) {
    if (++peer().sessions > sessions_of_peer_max) return;
    peer().session = node_.open((how & 1) != 0, {"peer" + std::to_string(selected_), 1});
    peer().ready_of_node.reset();
  }

  void hello(HelloOddity oddity) {
    Hello hello{.protocol = protocol_oldest,
                .cluster = cluster,
                .id = peer().id,
                .incarnation = peer().sessions,
                .name = "peer",
                .address = {"peer" + std::to_string(selected_), 1},
                .job = job,
                .newest = protocol_version};
    switch (oddity) {
      case HelloOddity::own_id: hello.id = fuzzed_node; break;
      case HelloOddity::other_cluster: hello.cluster = ClusterId{8}; break;
      case HelloOddity::no_cluster: hello.cluster = ClusterId{}; break;
      case HelloOddity::other_job: hello.job = JobHash{10}; break;
      case HelloOddity::no_job: hello.job = JobHash{}; break;
      case HelloOddity::old_protocol: hello.newest = protocol_oldest; break;
      case HelloOddity::leaving: hello.leaving = true; break;
      case HelloOddity::probe: hello.probe = true; break;
      case HelloOddity::no_address: hello.address = {}; break;
      case HelloOddity::none:
      case HelloOddity::count_: break;
    }
    say(hello);
  }

  void ready(std::uint8_t bits) {
    Ready ready{.schema = SchemaHash{raw(schema().hash()) ^ (bits & ready_foreign)},
                .has_model = !(bits & ready_without_model),
                .nonce = peer().sessions + 1,
                .bf16 = (bits & ready_bf16) != 0};
    if (bits & ready_ordered) ready.first_block = 1, ready.held_flips = {0, 2};
    const bool remembers = (bits & ready_remembered) && peer().ready_of_node;
    if (remembers) {
      ready.epoch = peer().ready_of_node->epoch;
      ready.spoken = peer().ready_of_node->heard;
      ready.heard = peer().ready_of_node->spoken;
    } else {
      peer().turn = 0;
      peer().said = {};
    }
    // Both replicas begin as the initial model, in version 1.
    if ((bits & ready_initial) && peer().ready_of_node) {
      ready.initial = peer().ready_of_node->initial;
      ready.initial_age = bits;
      if (ready.initial != 0 && !remembers) peer().said.fill(1);
    }
    say(ready);
  }

  MemberRecord record() {
    MemberRecord r;
    r.id = NodeId{in_.number()};
    r.name = std::string(in_.u8() % 80, 'n');
    r.address = {in_.u8() % 2 ? "peer1" : "", static_cast<std::uint16_t>(in_.number())};
    r.incarnation = in_.number();
    r.state = static_cast<MemberState>(in_.u8() % (raw(MemberState::forgotten) + 1));
    r.tick = in_.number();
    r.phase = static_cast<Phase>(in_.u8() % phase_count);
    r.samples = in_.number();
    r.step = in_.number();
    r.samples_per_second = in_.real();
    r.batch = static_cast<std::uint32_t>(in_.number());
    r.loss = in_.real();
    r.consensus_distance = in_.real();
    r.budget = {in_.number(), in_.number()};
    r.news = in_.number();
    return r;
  }

  Members members() {
    Members m;
    for (std::uint8_t i = in_.u8() % 4; i > 0; --i) m.records.push_back(record());
    for (std::uint8_t i = in_.u8() % 4; i > 0; --i) {
      const MemberRecord r = record();
      m.stats.push_back(stats_of(r));
      m.stats.back().age_seconds = in_.real();
    }
    for (std::uint8_t i = in_.u8() % 4; i > 0; --i) {
      const std::uint64_t id = in_.number(), incarnation = in_.number();
      m.suspicions.push_back(Suspicion{NodeId{id}, incarnation, NodeId{in_.number()}});
    }
    return m;
  }

  JobFile file() {
    const std::uint64_t high = in_.number(), low = in_.number();
    return JobFile{high, low, in_.number()};
  }

  Hello any_hello() {
    Hello hello{.protocol = static_cast<std::uint32_t>(in_.number()),
                .cluster = ClusterId{in_.number()},
                .id = NodeId{in_.number()}};
    hello.incarnation = in_.number();
    hello.job = JobHash{in_.number()};
    hello.newest = static_cast<std::uint32_t>(in_.number());
    return hello;
  }

  void control(std::uint8_t kind) {
    switch (kind % 17) {
      case 0: return say(members());
      case 1:
        return say(Refuse{
            Error{in_.u8() % 2 ? "duplicate" : "left", std::string(in_.number() % 2000, 'w')}});
      case 2: return say(Ping{in_.number()});
      case 3: return say(Pong{in_.number()});
      case 4: return say(JobRequest{});
      case 5: {
        const std::string document(1 + in_.u8() % 64, 'd');
        const Samples samples = in_.number();
        return say(JobOffer{in_.u8() % 2 ? job : JobHash{in_.number()}, samples, document});
      }
      case 6: {
        const JobFile wanted = file();
        return say(FileRequest{wanted, in_.number()});
      }
      case 7: return say(FileAbsent{file()});
      case 8: {
        Ready ready{.schema = in_.u8() % 2 ? schema().hash() : SchemaHash{in_.number()},
                    .has_model = in_.u8() % 2 == 0,
                    .nonce = in_.number()};
        ready.epoch = in_.number();
        ready.spoken = static_cast<std::uint32_t>(in_.number());
        ready.heard = static_cast<std::uint32_t>(in_.number());
        ready.first_block = static_cast<std::uint32_t>(in_.number());
        for (std::uint8_t i = in_.u8() % 4; i > 0; --i)
          ready.held_flips.push_back(static_cast<std::uint32_t>(in_.number()));
        return say(ready);
      }
      case 9: {
        Resync resync;
        for (std::uint8_t i = in_.u8() % 8; i > 0; --i)
          resync.blocks.push_back(static_cast<std::uint32_t>(in_.number()));
        return say(resync);
      }
      case 10: return say(Bye{in_.u8() % 2 ? bye_rotated : "left"});
      case 11: {
        Digest digest{std::vector<std::uint64_t>(1 + in_.u8() % digest_buckets_max)};
        digest.buckets[0] = in_.number();
        return say(digest);
      }
      case 12: {
        const std::uint64_t keeps = in_.number(), gives_up = in_.number();
        return say(Cloned{NodeId{in_.number()}, keeps, gives_up, {"peer1", 1}, {}});
      }
      case 13: return say(Reached{{"lone", 1}, in_.u8() % 2 == 0, std::string(in_.u8(), 'r')});
      case 14: {
        const std::uint64_t generation = in_.number();
        const std::string document(in_.u8() % 64, 'd');
        const JobHash hash = in_.u8() % 2 ? job_hash_of(document) : JobHash{in_.number()};
        return say(Succession{cluster, generation, hash, document});
      }
      case 15: return say(Spare{});
      default: return say(any_hello());
    }
  }

  void fill(Lane lane, std::size_t count) {
    const Bytes message(
        std::min(count, lane == Lane::control ? control_bytes_max : bulk_message_bytes_max),
        std::byte{in_.u8()});
    say(lane, message);
  }

  // One record: block and kind in a byte, then the recipe for its content.
  void append_record(Bytes& message) {
    const std::uint8_t what = in_.u8();
    const std::uint32_t block = what % 4;  // the fourth is not in the schema
    TurnRecord record{.block = block, .version = peer().said[block] + 1};
    record.codec = {static_cast<CodecId>(what >> 2 & 7), 32};
    const std::uint8_t how = in_.u8();
    if (how & 1) record.version = static_cast<Version>(in_.number());
    record.fresh =
        (how & 2) != 0 && (record.codec.id == CodecId::int8 || record.codec.id == CodecId::bf16);
    const std::size_t floats = block < schema().blocks().size() ? schema().blocks()[block].size : 1;
    std::vector<float> target(floats, std::ldexp(1.0f, static_cast<int>(in_.u8() % 40) - 20)),
        replica(floats, 0.0f);
    target[in_.u8() % floats] = (how & 4) ? std::numeric_limits<float>::infinity() : -1.0f;
    Bytes payload(encoded_size(record.codec, floats));
    if (record.codec.id != CodecId::mirror && !encode(record.codec, target, replica, payload))
      payload.assign(payload.size(), std::byte{in_.u8()});
    if (how & 8)
      for (const std::byte b : in_.bytes(in_.u8()))
        payload.empty() ? void()
                        : void(payload[std::to_integer<std::size_t>(b) % payload.size()] ^= b);
    const bool hashed = is_whole(record) != ((how & 16) != 0);
    if (hashed)
      record.hash = kernels().hash(
          record.codec.id == CodecId::keyframe || record.codec.id == CodecId::mirror ? target
                                                                                     : replica);
    peer().said[block] = record.version;
    ByteWriter writer(message);
    write_turn_record(writer.grow(turn_record_bytes).first<turn_record_bytes>(), record);
    if (record.hash) writer.put(*record.hash);
    message.insert(message.end(), payload.begin(), payload.end());
  }

  void turn(std::uint8_t bits) {
    TurnHeader header{.last = (bits & turn_last) != 0,
                      .records = static_cast<std::uint16_t>(in_.u8() % 12),
                      .turn = peer().turn + 1,
                      .step = 5,
                      .step_seconds = 0.01f,
                      .loss = 1};
    if (bits & turn_answers) header.gain_speaker = header.gain_listener = 0.25f;
    if (bits & turn_out_of_order) header.turn = static_cast<std::uint32_t>(in_.number());
    if (bits & turn_odd_header) {
      header.weight = static_cast<float>(in_.real());
      header.in_flight = static_cast<std::uint32_t>(in_.number());
      header.step = in_.number();
      header.step_seconds = static_cast<float>(in_.real());
      header.snapshot_age_seconds = static_cast<float>(in_.real());
      header.loss = static_cast<float>(in_.real());
    }
    Bytes message(turn_header_bytes);
    write_turn_header(std::span(message).first<turn_header_bytes>(), header);
    for (std::uint16_t i = 0; i < header.records; ++i) append_record(message);
    if (header.last && !(bits & turn_out_of_order)) peer().turn = header.turn;
    say(Lane::bulk, message);
  }

  void replica(std::uint8_t bits) {
    ReplicaState state;
    const std::vector<std::uint64_t> published = node_.node().published_to(peer().id);
    for (std::size_t i = 0; i < schema().blocks().size(); ++i)
      state.blocks.push_back(
          {static_cast<Version>(in_.u8()), (i < published.size() ? published[i] : 0) ^ (bits & 1)});
    say(Lane::bulk, encode_replica_state(state));
  }

  void piece() {
    const std::uint64_t offset = in_.number();
    const Bytes content(1 + in_.u8() * std::size_t{16}, std::byte{7});
    say(Lane::bulk, encode_file_piece({offset, content}));
  }

  void train(std::uint8_t how) {
    node_.train(static_cast<float>(how & 63) / 1024, (how & 0x80) == 0);
  }

  void repeat(std::uint8_t count) {
    const Bytes message = peer().last_said;
    for (std::uint8_t i = 0; i < count && node_.is_open(peer().session); ++i) {
      say(peer().last_lane, message);
      listen();
    }
  }

  void operate(std::uint8_t which) {
    Node& node = node_.node();
    const Instant now = node_.now();
    switch (which % 10) {
      case 0: (void)node.pause(now); break;
      case 1: (void)node.resume(now); break;
      case 2: (void)node.leave(now); break;
      case 3: (void)node.join({{"peer" + std::to_string(in_.u8() % 4), 1}}, now); break;
      case 4: (void)node.extend_budget(in_.number(), now); break;
      case 5: node.end_early("a test", now); break;
      case 6: (void)node.forget(NodeId{in_.number()}, now); break;
      case 7: node.want_file(JobFile{1, 2, refused_file_bytes}, now); break;
      case 8: node.stop(now); break;
      case 9: (void)node.start_job("next", job_hash_of("next"), now); break;
      default: break;
    }
    node_.settle();
  }

  Input in_;
  const std::uint8_t start_;
  LoneNode node_;
  std::array<Peer, session_peers> peers_;
  std::size_t selected_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Script(std::as_bytes(std::span(data, size))).run();
  return 0;
}
