// Writes the first inputs of every fuzz target, by our own writers, so that they never grow stale:
//
//     make_seeds DIRECTORY JOB.toml CORPUS     writes DIRECTORY/<target>/<name>
//
// and DIRECTORY/<target>.inputs: these and what lies in CORPUS/<target>, in one order on every machine, as -seed_inputs=@FILE reads them.
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
                                                 .address = {"::1", 7610}, .job = JobHash{5}, .newest = 2}));
  write("control", "refuse", encode_control(Refuse{{"other-job", "trains another job"}}));
  write("control", "hello-probe", encode_control(Hello{.protocol = 1, .id = NodeId{7}, .leaving = true, .probe = true}));
  write("control", "members", encode_control(Members{{record, record}, {figures_of(record)}, {Suspicion{NodeId{7}, 1, NodeId{8}}}}));
  write("control", "figures", encode_control(Members{.figures = {figures_of(record), figures_of(record)}}));
  write("control", "suspicions", encode_control(Members{.suspicions = {Suspicion{NodeId{7}, 1, NodeId{8}}, Suspicion{NodeId{8}, 2, NodeId{7}}}}));
  MemberRecord forgotten = record;
  forgotten.state = MemberState::forgotten;
  forgotten.phase = Phase::broken;
  forgotten.news = 4;
  forgotten.budget = {2, 700'000};
  write("control", "forgotten", encode_control(Members{{forgotten}}));
  write("control", "digest", encode_control(Digest{{1, 2, 3}}));
  write("control", "job-request", encode_control(JobRequest{}));
  write("control", "file-request", encode_control(FileRequest{{1, 2, 3000}, 1024}));
  write("control", "file-absent", encode_control(FileAbsent{{1, 2, 3000}}));
  write("control", "job-offer", encode_control(JobOffer{JobHash{5}, 600'000, "name = \"a\"\n"}));
  write("control", "ready", encode_control(Ready{SchemaHash{4}, true, 11, 12, 3, 2}));
  write("control", "ready-joiner", encode_control(Ready{.schema = SchemaHash{4}, .nonce = 11, .first_block = 7, .held_flips = {2, 5}}));
  write("control", "ping", encode_control(Ping{1}));
  write("control", "pong", encode_control(Pong{1}));
  write("control", "resync", encode_control(Resync{{0, 5, 70'000}}));
  write("control", "bye", encode_control(Bye{"left"}));
  write("control", "unknown", encode_control(UnknownControl{"of a later release"}));
}

void append_piece(Bytes& script, std::span<const std::byte> message) {
  script.push_back(static_cast<std::byte>(message.size() & 0xff));
  script.push_back(static_cast<std::byte>(message.size() >> 8));
  script.insert(script.end(), message.begin(), message.end());
}

// What the peer says in a real conversation: keyframes, deltas, a reconnect, more deltas.
Bytes turn_script(Codec codec, std::byte first) {
  const Schema schema = script_schema();
  const ExchangePolicy policy;
  Link peer(fuzzing_peer, fuzzed_node, schema, policy), node(fuzzed_node, fuzzing_peer, schema, policy);
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
    const bool remembered = node.open(of_node, of_peer, protocol, now);
    GOSSIPD_ASSERT(peer.open(of_peer, of_node, protocol, now) == remembered);
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

void file_piece_seeds() {
  const Bytes content(300, std::byte{7});
  write("file_piece", "first", encode_file_piece({0, content}));
  write("file_piece", "later", encode_file_piece({1 << 20, content}));
}

void turn_seeds() {
  for (const char* name : {"fp32", "bf16", "int8", "int4", "ternary", "top_k"})
    for (const unsigned char first : {0, 1}) write("turn", std::string(name) + "-" + std::to_string(first), turn_script(*parse_codec(name), std::byte{first}));
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

void http_seeds() {
  write("http", "browser", std::string("/v1/status?limit=3&name=a%20b\nGET\nhost: 127.0.0.1:7611\norigin: http://127.0.0.1:7611\n"));
  write("http", "token", std::string("/v1/status\nGET\nauthorization: Bearer 0123456789abcdef\n"));
  write("http", "rebound", std::string("/v1/pause\nPOST\nhost: evil.example\norigin: http://evil.example\n"));
}

void keyring_seeds() {
  const std::string secret(63, 'a');
  const auto key = [&](int digit) { return "gossipd-key-1 000000000000000" + std::to_string(digit) + " " + secret + std::to_string(digit) + "\n"; };
  write("keyring", "one", key(1));
  write("keyring", "rotated", key(2) + key(1) + "gossipd-key-retired 0000000000000003\n");
}

void idx_seeds() {
  write("idx", "labels", std::string("\0\0\x08\x01\0\0\0\x03\x01\x02\x03", 11));
  write("idx", "images", std::string("\0\0\x08\x03\0\0\0\x02\0\0\0\x02\0\0\0\x02", 16) + "abcdefgh");
  write("idx", "short", std::string("\0\0\x08\x02\xff\xff\xff\xff\0\0\0\x02", 12));
  // gzip of the three labels above, so that the fuzzer finds its way through the checksum.
  write("idx", "labels.gz", std::string("\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\x63\x60\xe0\x60\x64\x60\x60\x60\x66\x64\x62\x06\x00"
                                        "\x8b\xe5\xbd\xa4\x0b\x00\x00\x00", 31));
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
      GOSSIPD_ASSERT(tjCompress2(encoder, pixels.data(), 24, 0, 16, TJPF_RGB, &out, &size, subsampling, 80, flags) == 0);
      write("image", "jpeg-" + std::to_string(subsampling) + "-" + std::to_string(flags), std::string(1, '\0') + std::string(reinterpret_cast<char*>(out), size));
      tjFree(out);
    }
  tjDestroy(encoder);
  for (const png_uint_32 format : {png_uint_32{PNG_FORMAT_RGB}, png_uint_32{PNG_FORMAT_GRAY}, png_uint_32{PNG_FORMAT_RGBA}}) {
    png_image image{};
    image.version = PNG_IMAGE_VERSION;
    image.width = image.height = 12;
    image.format = format;
    std::string file(4096, '\0');
    png_alloc_size_t size = file.size();
    GOSSIPD_ASSERT(png_image_write_to_memory(&image, file.data(), &size, 0, pixels.data(), 0, nullptr) != 0);
    write("image", "png-" + std::to_string(format), std::string(1, '\3') + file.substr(0, size));
  }
}

void cifar_seeds() {
  for (const char kind : {'\0', '\1', '\3'}) {
    const std::string record = std::string(kind == 0 ? 1 : 2, '\5') + std::string(3072, 'x');
    write("cifar", "two-" + std::to_string(kind), std::string(1, kind) + record + record);
  }
}

// Three samples of two inputs; the first byte says what the target reads them as.
void tensors_seeds() {
  const auto file = [](TensorType inputs, TensorType targets, std::vector<std::int64_t> target_shape) {
    std::vector<TensorEntry> tensors = {{"inputs", inputs, {3, 2}, 0, 0}, {"targets", targets, std::move(target_shape), 0, 0}};
    std::string text = safetensors_header(tensors, {});
    return text.append(tensors.back().end, '\1');
  };
  write("tensors", "floats", std::string(1, '\0') + file(TensorType::f32, TensorType::f16, {3}));
  write("tensors", "classes", std::string(1, '\1') + file(TensorType::bf16, TensorType::u8, {3}));
  write("tensors", "tokens", std::string(1, '\7') + file(TensorType::u8, TensorType::i8, {3, 2}));
  write("tensors", "doubles", std::string(1, '\4') + file(TensorType::f64, TensorType::f64, {3, 2}));
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
  write("toml", "images", std::string("name = \"a\"\nbudget_samples = 9\n[data]\nkind = \"images\"\nclass_names = [\"cat\", \"dog\"]\nlabels = \"file_name\"\ndivision = \"shared\"\n"
                                      "mean = [0.5, 0.4, 0.3]\nvalidation_fraction = 0.1\nrandom_crop = 4\nrandom_flip = true\n"));
  write("toml", "misspelt", std::string("nmae = 1\n[modle]\nkind = 'cnn'\n"));
}

std::vector<std::string> files_in(const std::filesystem::path& folder) {
  std::vector<std::string> paths;
  if (std::filesystem::is_directory(folder))
    for (const auto& entry : std::filesystem::directory_iterator(folder)) paths.push_back(std::filesystem::absolute(entry.path()).string());
  std::sort(paths.begin(), paths.end());
  return paths;
}

void list_inputs(const std::filesystem::path& corpus) {
  for (const std::string& target : files_in(directory)) {
    std::vector<std::string> inputs = files_in(target);
    for (std::string& path : files_in(corpus / std::filesystem::path(target).filename())) inputs.push_back(std::move(path));
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
  control_seeds();
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
