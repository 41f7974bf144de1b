// Writes the first inputs of every fuzz target, by our own writers, so that they never grow stale:
//
//     make_seeds DIRECTORY JOB.toml     writes DIRECTORY/<target>/<name>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "core/base/random.h"
#include "core/wire/control.h"
#include "models/safetensors.h"
#include "tests/fuzz/link_script.h"

using namespace gossipd;

namespace {

std::filesystem::path directory;

void write(const std::string& target, const std::string& name, std::span<const std::byte> bytes) {
  std::filesystem::create_directories(directory / target);
  std::ofstream file(directory / target / name, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  GOSSIPD_ASSERT(file.good());
}

void write(const std::string& target, const std::string& name, const std::string& text) {
  write(target, name, std::as_bytes(std::span(text)));
}

void control_seeds() {
  MemberRecord record{.id = NodeId{7}, .name = "box1", .address = {"10.0.0.11", 7610}, .incarnation = 3, .state = MemberState::suspect,
                      .tick = 5, .phase = Phase::training, .samples = 640, .step = 10, .samples_per_second = 100, .batch = 64, .loss = 0.5};
  write("control", "hello", encode_control(Hello{.protocol = 1, .cluster = ClusterId{9}, .id = NodeId{7}, .incarnation = 3, .name = "box1",
                                                 .address = {"::1", 7610}, .job = JobHash{5}}));
  write("control", "refuse", encode_control(Refuse{{"other-job", "trains another job"}}));
  write("control", "members", encode_control(Members{{record, record}}));
  write("control", "job-request", encode_control(JobRequest{}));
  write("control", "job-offer", encode_control(JobOffer{JobHash{5}, 600'000, "name = \"a\"\n"}));
  write("control", "ready", encode_control(Ready{SchemaHash{4}, true, 11, 12, 3, 2}));
  write("control", "ping", encode_control(Ping{1}));
  write("control", "pong", encode_control(Pong{1}));
  write("control", "resync", encode_control(Resync{{0, 5, 70'000}}));
  write("control", "bye", encode_control(Bye{"left"}));
}

void append_piece(Bytes& script, std::span<const std::byte> message) {
  script.push_back(static_cast<std::byte>(message.size() & 0xff));
  script.push_back(static_cast<std::byte>(message.size() >> 8));
  script.insert(script.end(), message.begin(), message.end());
}

// What the peer says in a real conversation: keyframes, deltas, a reconnect, more deltas.
Bytes turn_script(Codec codec) {
  const Schema schema = script_schema();
  const ExchangePolicy policy;
  Link peer(fuzzing_peer, fuzzed_node, schema, policy), node(fuzzed_node, fuzzing_peer, schema, policy);
  std::vector<float> peers_model(schema.floats()), nodes_model(schema.floats(), 0.125f);
  Random random(1);
  Bytes script;
  Instant now{};
  std::uint64_t nonce = 0;
  const auto open = [&] {
    ++nonce;
    Ready of_peer, of_node;
    describe_ready(peer, nonce, of_peer);
    describe_ready(node, nonce, of_node);
    const bool remembered = node.open(of_node, of_peer, now);
    GOSSIPD_ASSERT(peer.open(of_peer, of_node, now) == remembered);
    if (!remembered) return;
    const Bytes state = encode_replica_state(peer.replica_state());
    append_piece(script, state);
    GOSSIPD_ASSERT(!peer.on_replica_state(encode_replica_state(node.replica_state()), now) && !node.on_replica_state(state, now));
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
    for (const SharedBytes& message : node.take_messages()) GOSSIPD_ASSERT(!peer.on_turn(*message, 0.001, now));
    if (turn != 1) continue;
    append_piece(script, std::span(&reconnect, 1));
    peer.close();
    node.close();
    open();
  }
  return script;
}

void turn_seeds() {
  for (const char* name : {"fp32", "bf16", "int8", "int4", "ternary", "top_k"}) write("turn", name, turn_script(*parse_codec(name)));
}

// Frames as fuzz_frame.cpp describes them: {selector, length, total / 8, first} and the payload.
void frame_seeds() {
  const std::string payload(64, 'x');
  write("frame", "control", std::string("\x07\x00\x40\x00\x01", 5) + payload);
  write("frame", "goodbye", std::string("\x3f\x02\x10\x00\x01", 5) + payload.substr(0, 16));
  write("frame", "bulk-in-two-chunks", std::string("\x03\x01\x40\x10\x01", 5) + payload + std::string("\x01\x40\x10\x00", 4) + payload);
  write("frame", "control-between-chunks", std::string("\x20\x01\x40\x10\x01", 5) + payload + std::string("\x00\x08\x00\x01", 4) +
                                               payload.substr(0, 8) + std::string("\x01\x40\x10\x00", 4) + payload);
  write("frame", "noise", std::string("\x05\xff\x20\x00\x01", 5) + payload);
}

void idx_seeds() {
  write("idx", "labels", std::string("\0\0\x08\x01\0\0\0\x03\x01\x02\x03", 11));
  write("idx", "images", std::string("\0\0\x08\x03\0\0\0\x02\0\0\0\x02\0\0\0\x02", 16) + "abcdefgh");
  write("idx", "short", std::string("\0\0\x08\x02\xff\xff\xff\xff\0\0\0\x02", 12));
  // gzip of the three labels above, so that the fuzzer finds its way through the checksum.
  write("idx", "labels.gz", std::string("\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\x63\x60\xe0\x60\x64\x60\x60\x60\x66\x64\x62\x06\x00"
                                        "\x8b\xe5\xbd\xa4\x0b\x00\x00\x00", 31));
}

void safetensors_seeds() {
  std::vector<TensorEntry> tensors = {{"weight", TensorType::f32, {2, 3}, 0, 0}, {"step", TensorType::i64, {}, 0, 0}};
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
  write("toml", "small", std::string("name = \"a\"\nbudget_samples = 100\n[model]\nkind = \"mlp\"\nhidden = [8, 4]\n"
                                     "[data]\nkind = \"idx\"\nshape = [1, 2, 2]\nclasses = 3\n[schedule]\nkind = \"step\"\nmilestones = [10, 20]\n"));
  write("toml", "misspelt", std::string("nmae = 1\n[modle]\nkind = 'cnn'\n"));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fputs("usage: make_seeds DIRECTORY JOB.toml\n", stderr);
    return 2;
  }
  directory = argv[1];
  std::filesystem::remove_all(directory);
  control_seeds();
  turn_seeds();
  frame_seeds();
  idx_seeds();
  safetensors_seeds();
  toml_seeds(argv[2]);
  return 0;
}
