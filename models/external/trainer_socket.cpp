#include "models/external/trainer_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "core/base/printable.h"
#include "models/external/segment_list.h"

namespace gossipd {

namespace {

using attach::FromDaemon;
using attach::Notice;

constexpr auto hearing_limit = std::chrono::seconds(10);

}  // namespace

Result<std::unique_ptr<TrainerSocket>> TrainerSocket::open(const std::string& path) {
  Result<Descriptor> listening = listen_for_packets(path);
  if (!listening) return listening.error();
  return std::unique_ptr<TrainerSocket>(
      new TrainerSocket(path, std::move(*listening), group_of(path)));
}

TrainerSocket::TrainerSocket(std::string path, Descriptor listening, gid_t group)
    : path_(std::move(path)), listening_(std::move(listening)), group_(group) {
  thread_ = std::thread([this] { run(); });
}

TrainerSocket::~TrainerSocket() {
  close("stopping", "the daemon is about to end; attach again when it is back");
}

// ---- any thread ----

void TrainerSocket::wait(const std::string& code, const std::string& text) {
  const std::lock_guard lock(mutex_);
  mode_ = Mode::waiting;
  code_ = code;
  text_ = text;
  alarm_.ring();
}

void TrainerSocket::refuse(const std::string& code, const std::string& text) {
  const std::lock_guard lock(mutex_);
  mode_ = Mode::refusing;
  code_ = code;
  text_ = text;
  alarm_.ring();
}

void TrainerSocket::serve(const Schema& schema, std::function<void()> on_guest) {
  const std::lock_guard lock(mutex_);
  mode_ = Mode::serving;
  schema_ = schema;
  on_guest_ = std::move(on_guest);
  alarm_.ring();
}

std::optional<TrainerSocket::Guest> TrainerSocket::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(let_in_, std::nullopt);
}

void TrainerSocket::vacate() {
  const std::lock_guard lock(mutex_);
  seated_.reset();
}

void TrainerSocket::close(const std::string& code, const std::string& text) {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    code_ = code;
    text_ = text;
  }
  alarm_.ring();
  thread_.join();
  visitors_.clear();
  listening_ = Descriptor();
  ::unlink(path_.c_str());
}

Schema TrainerSocket::first_schema() {
  std::unique_lock lock(mutex_);
  schema_came_.wait(lock, [this] { return first_schema_.has_value(); });
  return *first_schema_;
}

// ---- the thread ----

void TrainerSocket::run() {
  while (true) {
    // poll() passes over a negative number.
    const int listening = accepts_again_ ? -1 : listening_.number();
    std::vector<pollfd> on{{listening, POLLIN, 0}, {alarm_.number(), POLLIN, 0}};
    for (const Visitor& visitor : visitors_)
      on.push_back({visitor.guest.socket.number(), POLLIN, 0});
    (void)::poll(on.data(), on.size(), until_next_deadline());
    alarm_.silence();
    const std::unique_lock lock(mutex_);
    if (stopping_) {
      for (Visitor& visitor : visitors_) turn_away(visitor, code_, text_);
      return;
    }
    for (std::size_t i = 0; i < visitors_.size(); ++i)
      if (on[i + 2].revents != 0) hear(visitors_[i]);
    for (Visitor& visitor : visitors_) answer(visitor);
    std::erase_if(visitors_, [](const Visitor& visitor) { return visitor.gone; });
    accept_all();
  }
}

int TrainerSocket::until_next_deadline() const {
  std::optional<WallClock::time_point> first = accepts_again_;
  for (const Visitor& visitor : visitors_)
    if (!visitor.schema) first = std::min(first.value_or(visitor.until), visitor.until);
  if (!first) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*first - WallClock::now());
  return static_cast<int>(std::max<std::int64_t>(0, left.count()));
}

// Who connects stays in the kernel's queue, and poll() would return at once, as long as there is no
// descriptor for it.
void TrainerSocket::accept_all() {
  if (accepts_again_ && WallClock::now() < *accepts_again_) return;
  accepts_again_.reset();
  for (std::size_t i = 0; i < guests_max; ++i) {
    Descriptor accepted(
        ::accept4(listening_.number(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (accepted.is_open()) {
      greet(PacketSocket(std::move(accepted)));
      continue;
    }
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      ++accepts_failed_;
      accepts_again_ = WallClock::now() + accept_pause;
    }
    return;
  }
}

void TrainerSocket::greet(PacketSocket socket) {
  Result<PeerProcess> peer = allowed_peer(socket, group_);
  Visitor visitor{.guest = {std::move(socket), PeerProcess{}, {}},
                  .until = WallClock::now() + hearing_limit,
                  .segments = {},
                  .schema = {},
                  .told = {}};
  if (!peer) return turn_away(visitor, peer.error().code, peer.error().text);
  if (visitors_.size() >= guests_max)
    return turn_away(visitor, "occupied",
                     std::to_string(guests_max) + " trainers wait here already; end some of them");
  visitor.guest.peer = std::move(*peer);
  visitors_.push_back(std::move(visitor));
}

// All that has come.
void TrainerSocket::hear(Visitor& visitor) {
  std::byte buffer[attach::packet_bytes_max + 1];
  while (!visitor.gone) {
    const PacketSocket::Received received = visitor.guest.socket.receive(buffer);
    if (received.kind == PacketSocket::Received::Kind::nothing) return;
    if (received.kind == PacketSocket::Received::Kind::closed) {
      visitor.gone = true;
      return;
    }
    const Result<attach::FromTrainer> packet = attach::decode_from_trainer(received.packet);
    std::optional<Error> refused = packet ? take_in(visitor, *packet) : packet.error();
    if (refused) turn_away(visitor, refused->code, refused->text);
  }
}

std::optional<Error> TrainerSocket::take_in(Visitor& visitor, const attach::FromTrainer& packet) {
  if (std::holds_alternative<attach::Detach>(packet)) {
    visitor.gone = true;
    return std::nullopt;
  }
  if (const auto* attach = std::get_if<attach::Attach>(&packet); attach && !visitor.attach_came) {
    visitor.guest.attach = *attach;
    visitor.attach_came = true;
    return std::nullopt;
  }
  const auto* list = std::get_if<attach::Segments>(&packet);
  const std::size_t wanted = visitor.guest.attach.segments;
  if (!list || !visitor.attach_came || visitor.schema)
    return Error{"bad-packet",
                 "ATTACH and SEGMENTS come first, once each; then ATTACHED is waited "
                 "for"};
  if (list->first != visitor.segments.size() || list->segments.size() > wanted - list->first)
    return Error{"bad-packet", "SEGMENTS do not follow each other, or are more than ATTACH says"};
  visitor.segments.insert(visitor.segments.end(), list->segments.begin(), list->segments.end());
  if (visitor.segments.size() < wanted) return std::nullopt;
  Result<Schema> schema = schema_of(std::move(visitor.segments));
  if (!schema) return Error{"bad-packet", schema.error().text};
  if (schema->floats() != visitor.guest.attach.floats)
    return Error{"bad-packet", "the segments have " + std::to_string(schema->floats()) +
                                   " floats, ATTACH says " +
                                   std::to_string(visitor.guest.attach.floats)};
  visitor.schema = std::move(*schema);
  if (!first_schema_) first_schema_ = *visitor.schema;
  schema_came_.notify_all();
  return std::nullopt;
}

void TrainerSocket::answer(Visitor& visitor) {
  if (visitor.gone) return;
  if (!visitor.schema) {
    if (WallClock::now() >= visitor.until)
      turn_away(visitor, "too-slow",
                "ten seconds have gone without all of ATTACH and SEGMENTS; send them at once");
    return;
  }
  if (mode_ == Mode::refusing) return turn_away(visitor, code_, text_);
  if (mode_ == Mode::serving) return let_in(visitor);
  const Notice notice{.refused = false, .code = code_, .text = text_};
  if (notice == visitor.told) return;
  visitor.told = notice;
  if (visitor.guest.socket.send(attach::encode(FromDaemon(notice))) == PacketSocket::Sent::closed)
    visitor.gone = true;
}

void TrainerSocket::let_in(Visitor& visitor) {
  if (const auto differs = first_difference(*visitor.schema, schema_))
    return turn_away(visitor, "other-segments",
                     "this model is not the cluster's: " + *differs +
                         "; train the same model on every node, or found a cluster of its own");
  if (seated_)
    return turn_away(visitor, "occupied",
                     "process " + std::to_string(*seated_) +
                         " trains for this daemon; end it, or start another daemon for this one");
  seated_ = visitor.guest.peer.id;
  let_in_ = std::move(visitor.guest);
  visitor.gone = true;
  on_guest_();
}

void TrainerSocket::turn_away(Visitor& visitor, const std::string& code, const std::string& text) {
  (void)visitor.guest.socket.send(
      attach::encode(FromDaemon(Notice{.refused = true, .code = code, .text = text})));
  visitor.gone = true;
}

}  // namespace gossipd
