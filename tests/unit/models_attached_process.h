// tests/unit/models_attached_process.h - an external job's engine, and a process that attaches.
#pragma once

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <functional>

#include "models/external/external_engine.h"
#include "models_attach_words.h"
#include "models_test_support.h"

namespace gossipd::test {

using attach::FromDaemon;
using attach::FromTrainer;
using attach::Go;

// The other end: a training process, in this thread.
class Process {
 public:
  explicit Process(const std::string& path) {
    Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    REQUIRE(::connect(socket.number(), reinterpret_cast<const sockaddr*>(&address),
                      sizeof address) == 0);
    socket_ = std::move(socket);
  }
  void send(const FromTrainer& packet) { send_bytes(attach::encode(packet)); }
  void send_bytes(const Bytes& packet) {
    REQUIRE(::send(socket_.number(), packet.data(), packet.size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(packet.size()));
  }
  void attach(const attach::Attach& words, const std::vector<Segment>& list = segments()) {
    send(words);
    send(attach::Segments{.first = 0, .segments = list});
  }
  // Waits for one packet; nothing: the daemon has ended the connection.
  std::optional<FromDaemon> receive() {
    std::byte buffer[attach::packet_bytes_max];
    iovec part{buffer, sizeof buffer};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t count = ::recvmsg(socket_.number(), &message, MSG_CMSG_CLOEXEC);
    if (count <= 0) return std::nullopt;
    if (const cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr) {
      int passed = -1;
      std::memcpy(&passed, CMSG_DATA(header), sizeof passed);
      memory_ = Descriptor(passed);
    }
    auto packet = attach::decode_from_daemon(
        std::span(buffer).first(static_cast<std::size_t>(count)), floats);
    REQUIRE(packet);
    return *packet;
  }
  template <typename T>
  T expect() {
    const auto packet = receive();
    REQUIRE(packet);
    REQUIRE(std::holds_alternative<T>(*packet));
    return std::get<T>(*packet);
  }
  void expect_refusal(const std::string& code, const std::string& part = "") {
    const auto notice = expect<attach::Notice>();
    CHECK(notice.refused);
    CHECK(notice.code == code);
    CHECK_MESSAGE(notice.text.find(part) != std::string::npos, notice.text);
    CHECK_FALSE(receive());
  }
  int memory() const { return memory_.number(); }
  int socket() const { return socket_.number(); }
  void leave() { socket_ = Descriptor(); }

 private:
  Descriptor socket_, memory_;
};

// The daemon's end: an engine behind a socket in a directory of its own.
struct End {
  explicit End(ExternalEngine::Options options = {}, std::vector<Segment> of = segments())
      : list(std::move(of)) {
    auto made = ExternalEngine::create(*schema_of(list), *socket, std::move(options));
    REQUIRE(made);
    engine = std::move(*made);
  }
  OutsideSteps::News meet() {
    OutsideSteps::News news = engine->meet(order);
    for (const std::string& event : news.events) events.push_back(event);
    if (news.step) order.step = *news.step, order.samples = news.samples;
    return news;
  }
  // The trainer's packets take their way through the kernel: meets until `there` holds.
  void meet_until(const std::function<bool(const OutsideSteps::News&)>& there) {
    for (int i = 0; i < 10000; ++i)
      if (there(meet())) return;
    FAIL("in vain");
  }
  // `steps`: that the run has made already.
  void let_in(Process& trainer, std::uint8_t run = 1, Step steps = 0) {
    attach::Attach words = attach_words(run);
    words.counters = {.steps = steps, .samples = 64 * steps};
    trainer.attach(words, list);
    meet_until([](const auto& news) { return news.present; });
    (void)trainer.expect<attach::Attached>();
  }
  // A STEP of so many steps in all, and the GO to it.
  Go step(Process& trainer, std::uint64_t sequence, Step steps) {
    trainer.send(attach::StepDone{.sequence = sequence,
                                  .counters = {.steps = steps, .samples = 64 * steps},
                                  .loss = 1,
                                  .learning_rate = 0.1});
    meet_until([](const auto& news) { return news.step.has_value(); });
    engine->wake();
    meet();
    return trainer.expect<Go>();
  }
  void done(Process& trainer, const Go& go, Step steps) {
    trainer.send(
        attach::Done{.sequence = go.sequence, .counters = {.steps = steps, .samples = 64 * steps}});
    meet_until([](const auto& news) { return news.step.has_value(); });
  }
  std::vector<float> mirror() {
    std::vector<float> out(floats);
    engine->copy_model(out);
    return out;
  }

  std::vector<Segment> list;
  TemporaryDirectory directory;
  std::unique_ptr<TrainerSocket> socket =
      std::move(*TrainerSocket::open((directory / "s").string()));
  std::string path = socket->path();
  std::unique_ptr<ExternalEngine> engine;
  OutsideSteps::Order order{.training = true, .budget = 1000, .rate_factor = 1};
  std::vector<std::string> events;
};

struct Memory {
  explicit Memory(const Process& trainer)
      : begin(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, trainer.memory(), 0)) {
    REQUIRE(begin != MAP_FAILED);
  }
  ~Memory() { ::munmap(begin, bytes); }
  // 0: update, 1 and 2: snapshots
  std::span<float> part(std::size_t which) const {
    std::uint64_t at = 0;
    std::memcpy(&at, static_cast<std::byte*>(begin) + 24 + 8 * which, sizeof at);
    return {reinterpret_cast<float*>(static_cast<std::byte*>(begin) + at), floats};
  }
  static constexpr std::size_t bytes = 4 * 4096;
  void* begin;
};

}  // namespace gossipd::test
