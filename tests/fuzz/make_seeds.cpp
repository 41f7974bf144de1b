// Writes the first inputs of every fuzz target with our own encoders, so that they never become
// outdated:
//
//     make_seeds DIRECTORY JOB.toml CORPUS     writes DIRECTORY/<target>/<name>
//
// and DIRECTORY/<target>.inputs: these and CORPUS/<target>, in the same order on every machine, as
// -seed_inputs=@FILE reads them.
#include <png.h>
#include <turbojpeg.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "core/base/random.h"
#include "core/wire/control.h"
#include "core/wire/file_piece.h"
#include "models/files/safetensors.h"
#include "net/peer/invite.h"
#include "tests/fuzz/attach_seeds.h"
#include "tests/fuzz/link_script.h"
#include "tests/fuzz/session_script.h"

using namespace gossipd;

namespace {

std::filesystem::path directory;

void write(const std::string& target, const std::string& name, std::span<const std::byte> bytes) {
  std::filesystem::create_directories(directory / target);
  std::ofstream file(directory / target / name, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  GOSSIPD_ASSERT(file.good());
}

void write(const std::string& target, const std::string& name, const std::string& text) {
  write(target, name, std::as_bytes(std::span(text)));
}

void control_seeds() {
  MemberRecord record{.id = NodeId{7},
                      .name = "box1",
                      .address = {"10.0.0.11", 7610},
                      .incarnation = 3,
                      .state = MemberState::suspect,
                      .tick = 5,
                      .phase = Phase::training,
                      .samples = 640,
                      .step = 10,
                      .samples_per_second = 100,
                      .batch = 64,
                      .loss = 0.5};
  write("control", "hello",
        encode_control(Hello{.protocol = 1,
                             .cluster = ClusterId{9},
                             .id = NodeId{7},
                             .incarnation = 3,
                             .name = "box1",
                             .address = {"::1", 7610},
                             .job = JobHash{5},
                             .newest = 2}));
  write("control", "refuse", encode_control(Refuse{{"other-job", "trains another job"}}));
  write("control", "hello-probe",
        encode_control(Hello{.protocol = 1, .id = NodeId{7}, .leaving = true, .probe = true}));
  write("control", "members",
        encode_control(
            Members{{record, record}, {stats_of(record)}, {Suspicion{NodeId{7}, 1, NodeId{8}}}}));
  write("control", "figures",
        encode_control(Members{.stats = {stats_of(record), stats_of(record)}}));
  write("control", "suspicions",
        encode_control(Members{.suspicions = {Suspicion{NodeId{7}, 1, NodeId{8}},
                                              Suspicion{NodeId{8}, 2, NodeId{7}}}}));
  MemberRecord forgotten = record;
  forgotten.state = MemberState::forgotten;
  forgotten.phase = Phase::broken;
  forgotten.news = 4;
  forgotten.budget = {2, 700'000};
  write("control", "forgotten", encode_control(Members{{forgotten}}));
  MemberRecord last_values = record;
  last_values.phase = Phase::waiting_for_trainer;
  last_values.reachability = Reachability::address_silent;
  write("control", "members-last-values", encode_control(Members{{last_values}}));
  const std::pair<const char*, Control> others[] = {
      {"digest", Digest{{1, 2, 3}}},
      {"job-request", JobRequest{}},
      {"file-request", FileRequest{{1, 2, 3000}, 1024}},
      {"job-offer", JobOffer{JobHash{5}, 600'000, "name = \"a\"\n"}},
      {"next-job", Succession{ClusterId{9}, 2, JobHash{5}, "name = \"a\"\n"}},
      {"ready-joiner",
       Ready{.schema = SchemaHash{4}, .nonce = 11, .first_block = 7, .held_flips = {2, 5}}},
      {"resync", Resync{{0, 5, 70'000}}},
      {"spare", Spare{}},
      {"cloned", Cloned{NodeId{7}, 5, 9, {"a", 1}, {"b", 2}}},
      {"reached", Reached{{"10.0.0.11", 7610}, false, "refused"}},
      {"ping", Ping{1}}};
  for (const auto& [name, message] : others) write("control", name, encode_control(message));
}

void append_piece(Bytes& script, std::span<const std::byte> message) {
  script.push_back(static_cast<std::byte>(message.size() & 0xff));
  script.push_back(static_cast<std::byte>(message.size() >> 8));
  script.insert(script.end(), message.begin(), message.end());
}

// The largest messages, which take other paths through allocators and bounds.
void largest_control_seeds() {
  const MemberRecord record{.id = NodeId{7},
                            .name = std::string(name_bytes_max, 'n'),
                            .address = {"10.0.0.11", 7610},
                            .incarnation = 3};
  const Bytes seeds[] = {
      encode_control(Resync{std::vector<std::uint32_t>(resync_blocks_max, 0xffffffff)}),
      encode_control(Members{std::vector<MemberRecord>(records_per_message_max, record)}),
      encode_control(JobOffer{JobHash{5}, 600'000, std::string(job_bytes_max, '#')}),
      encode_control(Digest{std::vector<std::uint64_t>(digest_buckets_max, ~0ull)}),
      // strings of unknown length, within each other …
      Bytes(control_bytes_max, std::byte{0x7f}), Bytes(control_bytes_max, std::byte{0x5f}),
      Bytes(control_bytes_max, std::byte{0x81}),   // … arrays of one …
      Bytes(control_bytes_max, std::byte{0xd9})};  // … and tags
  for (std::size_t i = 0; i < std::size(seeds); ++i)
    for (const char* target : {"control", "cbor"})
      write(target, "largest-" + std::to_string(i), seeds[i]);
}

void nesting_seeds() {
  write("nesting", "shallow", std::string("\x05{\"a\": [1, {\"b\": \"[[\\\"[\"}]}"));
  write("nesting", "deep",
        std::string(1, '\x0f') + std::string(3'000, '[') + std::string(3'000, ']'));
  write("nesting", "keys",
        std::string("\x03[a.b.\"c.d\"]\nx.y = \"\"\"a.b\n.c\"\"\"\"\n# a.b.c.d\nz = '''a'''\n"));
  std::string dotted(1, '\x13');
  while (dotted.size() < 6'000) dotted += "a.";
  write("nesting", "long-key", dotted + "a = 1");
  write("toml", "long-key", dotted.substr(1) + "a = 1");
  write("toml", "deep", "a = " + std::string(30'000, '['));
}

void text_seeds() {
  const std::vector<std::string> endpoints = {"box1", "box1:7610", "[::1]:7610", "::1",
                                              "10.0.0.1:1"};
  for (const std::string& endpoint : endpoints)
    write("text", "endpoint-" + std::to_string(endpoint.size()), '\0' + endpoint);
  write("text", "id", std::string("\1") + "0123456789abcdef");
  write("text", "file", std::string("\1") + "0123456789abcdef0123456789abcdef");
  write("text", "codec", std::string("\2") + "top_k:64");
  const std::vector<std::string> settings = {"words",   "/a/file", "long-one", "true",
                                             "-12.5e1", "2500",    "1000000",  "box1:7610"};
  for (std::size_t i = 0; i < settings.size(); ++i)
    write("text", "setting-" + std::to_string(i), static_cast<char>(4 * i + 3) + settings[i]);
}

void state_seeds() {
  const std::string member =
      R"({"id":"00000000000000aa","name":"box","host":"h","port":7610,"incarnation":3,)"
      R"("state":"alive","tick":4,"news":2,"phase":"training","samples":10,"step":3,)"
      R"("samples_per_second":1.5,"batch":32,"loss":0.5,"consensus_distance":0.1})";
  const auto state = [](const std::string& members) {
    return R"({"id":"00000000000000ab","cluster":"00000000000000cd","incarnation":5,)"
           R"("left":false,"job":"0000000000000001","own_samples":7,)"
           R"("budget_revision":0,"budget_samples":0,"members":[)" +
           members + "]}";
  };
  write("state", "alone", '\0' + state(""));
  write("state", "two", '\0' + state(member + "," + member));
  const std::string head = R"({"format":1,"checksum":"0000000000000000","state":)";
  write("state", "raw", '\1' + head + state("") + "}");
  write("state", "deep", std::string("\1") + std::string(5'000, '['));
  std::string many = member;
  while (many.size() < 10'000) many += "," + member;
  write("state", "many", '\0' + state(many));
}

// ---- whole sessions ---------------------------------------------------------------------------

class Steps {
 public:
  explicit Steps(std::uint8_t start) : bytes_(1, static_cast<char>(start)) {}
  Steps& operator()(SessionStep step, std::initializer_list<int> arguments = {}) {
    bytes_ += static_cast<char>(step);
    for (const int value : arguments) bytes_ += static_cast<char>(value);
    return *this;
  }
  // A turn about every block, and a step of the node's trainer, which answers.
  Steps& exchange(int codec) {
    (*this)(SessionStep::turn, {turn_last, 3});
    for (const int block : {0, 1, 2})
      for (const int value : {block | codec << 2, 0, 20, 1}) bytes_ += static_cast<char>(value);
    return (*this)(SessionStep::train, {1});
  }
  [[nodiscard]] const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

void session_seeds() {
  using enum SessionStep;
  constexpr int keyframe = 1, int8 = 4;
  for (const int start :
       {0, int{start_without_model}, int{start_without_job}, int{start_older}, 0x60, 0x98}) {
    Steps steps(static_cast<std::uint8_t>(start));
    steps(select, {2})(link_up).exchange(keyframe).exchange(int8).exchange(int8)(time, {8});
    steps(cut)(dial_in, {0})(hello, {0})(ready, {ready_remembered})(replica, {0, 1, 1, 1})
        .exchange(int8)(cut)(dial_in, {0})(hello, {0})(ready, {ready_initial})
        .exchange(int8);
    write("session", "exchange-" + std::to_string(start), steps.bytes());
  }
  for (int kind = 0; kind < 17; ++kind) {
    Steps steps(0);
    steps(select, {2})(link_up)(control, {kind, 2, 3, 1, 1, 1, 0, 4, 1, 2, 1, 1, 1, 1, 1, 1, 1, 1,
                                          1})(time, {10})(train, {1})(repeat, {100});
    write("session", "control-" + std::to_string(kind), steps.bytes());
  }
  for (int oddity = 0; oddity < static_cast<int>(HelloOddity::count_); ++oddity)
    write("session", "hello-" + std::to_string(oddity),
          Steps(0)(dial_in, {oddity & 1})(hello, {oddity})(ready, {oddity})(time, {14})(say_again)
              .bytes());
  for (int which = 0; which < 10; ++which) {
    Steps steps(0);
    steps(select, {2})(link_up).exchange(keyframe)(op, {which, 2})(time, {12})(train, {0x80})(
        op, {1})(time, {13})(piece, {0, 60});
    write("session", "operator-" + std::to_string(which), steps.bytes());
  }
  Steps endless(0);
  endless(select, {2})(link_up);
  for (int i = 0; i < 20; ++i) endless(turn, {0, 1, keyframe << 2, 0, 20, 1});
  write("session", "endless-turn", endless.bytes());
  Steps largest(0), four(0);
  largest(control_fill, {0xff, 0xff, 0x7f})(select, {2})(link_up)(bulk_fill, {0xff, 1});
  write("session", "largest", largest(control_fill, {0xff, 0xff, 0x5f}).bytes());
  four(link_up)(select, {1})(link_up)(select, {2})(link_up)(select, {3})(link_up)(disk, {1});
  write("session", "four", four(control, {6, 1, 2, 7, 0})(repeat, {9})(disk, {0}).bytes());
}

// The peer's part of a real exchange: keyframes, deltas, a reconnect, more deltas.
Bytes turn_script(Codec codec, std::byte first) {
  const Schema schema = script_schema();
  const ExchangePolicy policy;
  Link peer(fuzzing_peer, fuzzed_node, schema, policy),
      node(fuzzed_node, fuzzing_peer, schema, policy);
  std::vector<float> peers_model(schema.floats()), nodes_model(schema.floats(), 0.125f);
  Random random(1);
  const std::uint32_t protocol = script_protocol(first);
  Bytes script{first};
  Instant now{};
  std::uint64_t nonce = 0;
  const auto open = [&] {
    ++nonce;
    Ready of_peer, of_node;
    describe_ready(peer, nonce, of_peer);
    describe_ready(node, nonce, of_node);
    const bool remembered = node.open(of_node, of_peer, protocol);
    GOSSIPD_ASSERT(peer.open(of_peer, of_node, protocol) == remembered);
    if (!remembered) return;
    const Bytes state = encode_replica_state(peer.replica_state());
    append_piece(script, state);
    GOSSIPD_ASSERT(!peer.on_replica_state(encode_replica_state(node.replica_state()), now) &&
                   !node.on_replica_state(state, now));
  };
  open();
  for (int turn = 0; turn < 4; ++turn) {
    for (float& value : peers_model) value += static_cast<float>(random.uniform() - 0.5);
    speak_turn(peer, schema, policy, peers_model, codec, now);
    for (const SharedBytes& message : peer.take_messages()) {
      append_piece(script, *message);
      GOSSIPD_ASSERT(!node.on_turn(*message, 0.001, now));
    }
    speak_turn(node, schema, policy, nodes_model, policy.codec, now);
    for (const SharedBytes& message : node.take_messages())
      GOSSIPD_ASSERT(!peer.on_turn(*message, 0.001, now));
    if (turn != 1) continue;
    append_piece(script, std::span(&reconnect, 1));
    peer.close();
    node.close();
    open();
  }
  return script;
}

void file_piece_seeds() {
  const Bytes content(300, std::byte{7});
  write("file_piece", "first", encode_file_piece({0, content}));
  write("file_piece", "later", encode_file_piece({1 << 20, content}));
  write("file_piece", "largest", encode_file_piece({1 << 20, Bytes(file_piece_bytes_max)}));
}

void turn_seeds() {
  for (const char* name : {"fp32", "bf16", "int8", "int4", "ternary", "top_k"})
    for (const unsigned char first : {0, 1})
      write("turn", std::string(name) + "-" + std::to_string(first),
            turn_script(*parse_codec(name), std::byte{first}));
  // A message of the largest size that repeats one record.
  Bytes script{std::byte{1}, std::byte{0xff}, std::byte{0xff}};
  Bytes record(turn_record_bytes + 4 * script_schema().blocks()[1].size);
  write_turn_record(std::span(record).first<turn_record_bytes>(),
                    TurnRecord{.block = 1, .version = 1, .codec = {CodecId::fp32, 0}});
  Bytes message(turn_header_bytes);
  write_turn_header(std::span(message).first<turn_header_bytes>(),
                    TurnHeader{.last = true, .records = turn_records_max, .turn = 1});
  for (std::size_t i = 0; i < turn_records_max; ++i)
    message.insert(message.end(), record.begin(), record.end());
  script.insert(script.end(), message.begin(), message.end());
  write("turn", "largest", script);
}

// Frames as fuzz_frame.cpp describes them: {selector, length, total / 8, first} and the payload.
void frame_seeds() {
  const std::string payload(64, 'x');
  write("frame", "control", std::string("\x07\x00\x40\x00\x01", 5) + payload);
  write("frame", "goodbye", std::string("\x3f\x02\x10\x00\x01", 5) + payload.substr(0, 16));
  write("frame", "bulk-in-two-chunks",
        std::string("\x03\x01\x40\x10\x01", 5) + payload + std::string("\x01\x40\x10\x00", 4) +
            payload);
  write("frame", "control-between-chunks",
        std::string("\x20\x01\x40\x10\x01", 5) + payload + std::string("\x00\x08\x00\x01", 4) +
            payload.substr(0, 8) + std::string("\x01\x40\x10\x00", 4) + payload);
  // By the real limits, in units of 512 bytes: a control message, and a bulk message of 1 MiB in
  // chunks of 64 KiB.
  const std::string chunk(128 * 512, 'x');
  write("frame", "largest-control", std::string("\xbf\x00\x80\x00\x01", 5) + chunk);
  std::string bulk("\x9f");
  for (int i = 0; i < 16; ++i)
    bulk += std::string("\x01\x80", 2) + '\xff' + std::string(1, i == 0 ? '\1' : '\0') + chunk;
  write("frame", "largest-bulk", bulk);
  write("frame", "noise", std::string("\x05\xff\x20\x00\x01", 5) + payload);
}

void http_seeds() {
  write("http", "browser",
        std::string("/v1/status?limit=3&name=a%20b\nGET\nhost: 127.0.0.1:7611\norigin: "
                    "http://127.0.0.1:7611\n"));
  write("http", "token", std::string("/v1/status\nGET\nauthorization: Bearer 0123456789abcdef\n"));
  write("http", "rebound",
        std::string("/v1/pause\nPOST\nhost: evil.example\norigin: http://evil.example\n"));
}

void keyring_seeds() {
  write("key_line", "one", "gossipd-key-1 0000000000000001 " + std::string(64, 'a') + "\n");
  const std::string secret(63, 'a');
  const auto key = [&](int digit) {
    return "gossipd-key-1 000000000000000" + std::to_string(digit) + " " + secret +
           std::to_string(digit) + "\n";
  };
  write("keyring", "one", key(1));
  write("keyring", "rotated", key(2) + key(1) + "gossipd-key-retired 0000000000000003\n");
  Invite invite;
  invite.cluster = ClusterId{7};
  invite.seeds = {{"box1", 7610}, {"2001:db8::1", 7611}};
  write("invite", "line", "gossipd --join " + format_invite(invite) + " --data DIR\n");
}

void idx_seeds() {
  write("idx", "labels", std::string("\0\0\x08\x01\0\0\0\x03\x01\x02\x03", 11));
  write("idx", "images",
        std::string("\0\0\x08\x03\0\0\0\x02\0\0\0\x02\0\0\0\x02", 16) + "abcdefgh");
  write("idx", "short", std::string("\0\0\x08\x02\xff\xff\xff\xff\0\0\0\x02", 12));
  // gzip of the three labels above, so that the fuzzer passes the checksum.
  write("idx", "labels.gz",
        std::string("\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\x63\x60\xe0\x60\x64\x60\x60\x60\x66"
                    "\x64\x62\x06\x00"
                    "\x8b\xe5\xbd\xa4\x0b\x00\x00\x00",
                    31));
}

// The first byte is the target's choice of colours and fit.
void image_seeds() {
  std::vector<std::uint8_t> pixels(24 * 16 * 3);
  for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<std::uint8_t>(i * i / 7);
  const tjhandle encoder = tjInitCompress();
  for (const int subsampling : {TJSAMP_444, TJSAMP_420, TJSAMP_GRAY})
    for (const int flags : {0, TJFLAG_PROGRESSIVE}) {
      unsigned char* out = nullptr;
      unsigned long size = 0;
      GOSSIPD_ASSERT(tjCompress2(encoder, pixels.data(), 24, 0, 16, TJPF_RGB, &out, &size,
                                 subsampling, 80, flags) == 0);
      write("image", "jpeg-" + std::to_string(subsampling) + "-" + std::to_string(flags),
            std::string(1, '\0') + std::string(reinterpret_cast<char*>(out), size));
      tjFree(out);
    }
  tjDestroy(encoder);
  for (const png_uint_32 format :
       {png_uint_32{PNG_FORMAT_RGB}, png_uint_32{PNG_FORMAT_GRAY}, png_uint_32{PNG_FORMAT_RGBA}}) {
    png_image image{};
    image.version = PNG_IMAGE_VERSION;
    image.width = image.height = 12;
    image.format = format;
    std::string file(4096, '\0');
    png_alloc_size_t size = file.size();
    GOSSIPD_ASSERT(
        png_image_write_to_memory(&image, file.data(), &size, 0, pixels.data(), 0, nullptr) != 0);
    write("image", "png-" + std::to_string(format), std::string(1, '\3') + file.substr(0, size));
  }
}

void cifar_seeds() {
  for (const char kind : {'\0', '\1', '\3'}) {
    const std::string record = std::string(kind == 0 ? 1 : 2, '\5') + std::string(3072, 'x');
    write("cifar", "two-" + std::to_string(kind), std::string(1, kind) + record + record);
  }
}

// Three samples of two inputs; the first byte chooses how the target reads them.
void tensors_seeds() {
  const auto file = [](TensorType inputs, TensorType targets,
                       std::vector<std::int64_t> target_shape) {
    std::vector<TensorEntry> tensors = {{"inputs", inputs, {3, 2}, 0, 0},
                                        {"targets", targets, std::move(target_shape), 0, 0}};
    std::string text = safetensors_header(tensors, {});
    return text.append(tensors.back().end, '\1');
  };
  write("tensors", "floats", std::string(1, '\0') + file(TensorType::f32, TensorType::f16, {3}));
  write("tensors", "classes", std::string(1, '\1') + file(TensorType::bf16, TensorType::u8, {3}));
  write("tensors", "tokens", std::string(1, '\7') + file(TensorType::u8, TensorType::i8, {3, 2}));
  write("tensors", "doubles",
        std::string(1, '\4') + file(TensorType::f64, TensorType::f64, {3, 2}));
}

void safetensors_seeds() {
  std::vector<TensorEntry> tensors = {{"weight", TensorType::f32, {2, 3}, 0, 0},
                                      {"step", TensorType::i64, {}, 0, 0}};
  std::string file = safetensors_header(tensors, {{"step", "12"}, {"job", "0123456789abcdef"}});
  file.append(tensors.back().end, '\x01');
  write("safetensors", "two-tensors", file);
  std::vector<TensorEntry> none;
  write("safetensors", "empty", safetensors_header(none, {}));
}

void toml_seeds(const char* job) {
  std::ifstream file(job, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  GOSSIPD_ASSERT(!text.empty());
  write("toml", "job", text);
  write("toml", "small",
        std::string("name = \"a\"\nbudget_samples = 100\n[model]\nkind = \"mlp\"\nhidden = [8, 4]\n"
                    "[data]\nkind = \"idx\"\nshape = [1, 2, 2]\nclasses = 3\n[schedule]\nkind = "
                    "\"step\"\nmilestones = [10, 20]\n"));
  write("toml", "images",
        std::string("name = \"a\"\nbudget_samples = 9\n[data]\nkind = \"images\"\nclass_names = "
                    "[\"cat\", \"dog\"]\nlabels = \"file_name\"\ndivision = \"shared\"\n"
                    "mean = [0.5, 0.4, 0.3]\nvalidation_fraction = 0.1\nrandom_crop = "
                    "4\nrandom_flip = true\n"));
  write("toml", "misspelt", std::string("nmae = 1\n[modle]\nkind = 'cnn'\n"));
}

std::vector<std::string> files_in(const std::filesystem::path& folder) {
  std::vector<std::string> paths;
  if (std::filesystem::is_directory(folder))
    for (const auto& entry : std::filesystem::directory_iterator(folder))
      paths.push_back(std::filesystem::absolute(entry.path()).string());
  std::sort(paths.begin(), paths.end());
  return paths;
}

void list_inputs(const std::filesystem::path& corpus) {
  for (const std::string& target : files_in(directory)) {
    std::vector<std::string> inputs = files_in(target);
    for (std::string& path : files_in(corpus / std::filesystem::path(target).filename()))
      inputs.push_back(std::move(path));
    std::ofstream list(target + ".inputs");
    for (std::size_t i = 0; i < inputs.size(); ++i) list << (i == 0 ? "" : ",") << inputs[i];
    GOSSIPD_ASSERT(list.good());
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fputs("usage: make_seeds DIRECTORY JOB.toml CORPUS\n", stderr);
    return 2;
  }
  directory = argv[1];
  std::filesystem::remove_all(directory);
  attach_seeds([](const std::string& name, std::span<const std::byte> bytes) {
    write("attach", name, bytes);
  });
  control_seeds();
  largest_control_seeds();
  nesting_seeds();
  text_seeds();
  state_seeds();
  session_seeds();
  file_piece_seeds();
  turn_seeds();
  frame_seeds();
  http_seeds();
  keyring_seeds();
  idx_seeds();
  image_seeds();
  cifar_seeds();
  tensors_seeds();
  safetensors_seeds();
  toml_seeds(argv[2]);
  list_inputs(argv[3]);
  return 0;
}
