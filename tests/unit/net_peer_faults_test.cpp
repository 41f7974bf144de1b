// Sessions through a relay that stalls, cuts, changes or listens: lanes, bounds, deadlines,
// connections lost anywhere, what TLS keeps from who sits between.
#include <dlfcn.h>
#include <netdb.h>
#include <openssl/ssl.h>

#include <atomic>
#include <boost/asio/ssl.hpp>

#include "net/addresses.h"
#include "net_test_support.h"

using namespace gossipd;
using namespace gossipd::test;
using namespace std::chrono_literals;

namespace {

const ClusterKey our_key = test_key(0x11, 1);

// a dials b through the relay.
struct Rig {
  explicit Rig(const std::optional<ClusterKey>& key = our_key, const PeerLimits& limits = {})
      : a(loop, key, limits), b(loop, key, limits), relay(loop, b.listen()) {}
  EventLoop loop;
  Node a, b;
  Relay relay;

  bool run_until(const std::function<bool()>& condition) {
    return loop.run_until(condition, patience);
  }
  SessionId open() {
    a.transport.dial(relay.endpoint());
    REQUIRE_MESSAGE(run_until([&] {
                      return (a.seen.opened.size() == 1 && b.seen.opened.size() == 1) ||
                             !a.seen.failed.empty();
                    }),
                    "neither open nor failed");
    REQUIRE_MESSAGE(a.seen.failed.empty(), a.seen.failed[0].second.text);
    return a.seen.session();
  }
  void stop() { stop_all(loop, {&a, &b}); }
};

// While a test holds them, names that begin with "slow" get no answer; other names do.
std::atomic<bool> slow_held = false;
std::atomic<int> slow_asked = 0;

}  // namespace

extern "C" int getaddrinfo(const char* host, const char* service, const addrinfo* hints,
                           addrinfo** found) {
  if (host != nullptr && std::string_view(host).starts_with("slow")) {
    ++slow_asked;
    slow_asked.notify_all();
    slow_held.wait(true);
    return EAI_NONAME;
  }
  static const auto real =
      reinterpret_cast<decltype(&getaddrinfo)>(::dlsym(RTLD_NEXT, "getaddrinfo"));
  return real(host, service, hints, found);
}

TEST_CASE("names whose server is silent hold up no other name, and are asked for once at a time") {
  EventLoop loop;
  slow_held = true;
  slow_asked = 0;
  Node a(loop, our_key, PeerLimits{.resolve_timeout = 100ms}), b(loop, our_key);
  const Endpoint there = b.listen();
  for (std::uint16_t port = 1; port <= 3; ++port) a.transport.dial({"slow-one", port});
  a.transport.dial({"slow-two", 1});
  REQUIRE(loop.run_until([&] { return a.seen.failed.size() == 4; }, patience));
  a.transport.dial({"slow-one", 4});
  REQUIRE(loop.run_until([&] { return a.seen.failed.size() == 5; }, patience));
  for (int asked = slow_asked; asked < 2; asked = slow_asked) slow_asked.wait(asked);
  CHECK(slow_asked == 2);
  a.transport.dial({"localhost", there.port});
  CHECK(
      loop.run_until([&] { return !a.seen.opened.empty() || a.seen.failed.size() > 5; }, patience));
  CHECK(a.seen.failed.size() == 5);
  for (std::size_t i = 3; i <= LookUps::running_max; ++i)
    a.transport.dial({"slow-" + std::to_string(i), 1});
  a.transport.dial({"slow-too-many", 1});
  REQUIRE(loop.run_until([&] { return a.seen.failed.size() == 5 + LookUps::running_max - 1; },
                         patience));
  CHECK(std::ranges::count_if(a.seen.failed,
                              [](const auto& f) { return f.second.code == "too-many"; }) == 1);
  slow_held = false;
  slow_held.notify_all();
  stop_all(loop, {&a, &b});
}

TEST_CASE("a control message overtakes megabytes of bulk that were queued before it") {
  for (const auto& key : {std::optional<ClusterKey>(our_key), std::optional<ClusterKey>()}) {
    CAPTURE(key.has_value());
    Rig rig(key);
    const SessionId session = rig.open();
    rig.relay.close_gate();
    const SharedBytes megabyte = shared(random_bytes(1024 * 1024, 1));
    for (int i = 0; i < 8; ++i) REQUIRE(rig.a.transport.send(session, Lane::bulk, megabyte));
    // the first chunk is on its way
    REQUIRE(rig.run_until([&] { return rig.a.seen.bulk_sent > 0; }));
    REQUIRE(rig.a.transport.send(session, Lane::control, shared("ping")));
    rig.relay.open_gate();
    REQUIRE(rig.run_until([&] { return rig.b.seen.received.size() == 9; }));
    std::size_t position = 0;
    while (rig.b.seen.received[position].lane != Lane::control) ++position;
    CHECK(position <= 1);
    for (const auto& message : rig.b.seen.received) {
      REQUIRE((message.lane == Lane::control || message.bytes == *megabyte));
    }
    rig.stop();
  }
}

TEST_CASE("bulk waits in the session and not in the kernel") {
  Rig rig;
  const SessionId session = rig.open();
  rig.relay.close_gate();
  const SharedBytes megabyte = shared(random_bytes(1024 * 1024, 1));
  for (int i = 0; i < 16; ++i) REQUIRE(rig.a.transport.send(session, Lane::bulk, megabyte));
  bool settled = false;
  std::size_t before = 0;
  Timer settle(rig.loop, [&] {  // until nothing moves for a while
    settled = rig.a.seen.bulk_sent == before;
    before = rig.a.seen.bulk_sent;
    if (!settled) settle.arm_after(300ms);
  });
  settle.arm_after(300ms);
  REQUIRE(rig.run_until([&] { return settled; }));
  CHECK(rig.a.transport.bulk_queue_bytes(session) > 8 * 1024 * 1024);
  rig.relay.open_gate();
  REQUIRE(rig.run_until([&] { return rig.b.seen.received.size() == 16; }));
  rig.stop();
}

TEST_CASE("a full control queue closes the session with that reason, once") {
  Rig rig(our_key, PeerLimits{.control_queue_max = 16, .close_timeout = 100ms});
  const SessionId session = rig.open();
  std::size_t queued = 0;
  while (rig.a.transport.send(session, Lane::control, shared("x"))) ++queued;
  CHECK(queued == 16);
  CHECK(rig.a.seen.closed.empty());  // never from inside the call
  REQUIRE(rig.run_until([&] { return !rig.a.seen.closed.empty() && !rig.b.seen.closed.empty(); }));
  CHECK(rig.a.seen.closed[0].second.code == "control-queue-full");
  CHECK(rig.a.transport.counters().sessions_closed.at("control-queue-full") == 1);
  rig.stop();
  CHECK(rig.a.seen.closed.size() == 1);
}

TEST_CASE("a full bulk queue closes the session with that reason, once") {
  Rig rig(our_key, PeerLimits{.bulk_queue_bytes_max = 3'000'000});
  const SessionId session = rig.open();
  const SharedBytes megabyte = shared(random_bytes(1'000'000, 1));
  for (int i = 0; i < 3; ++i) REQUIRE(rig.a.transport.send(session, Lane::bulk, megabyte));
  CHECK(!rig.a.transport.send(session, Lane::bulk, shared("x")));
  REQUIRE(rig.run_until([&] { return !rig.a.seen.closed.empty() && !rig.b.seen.closed.empty(); }));
  CHECK(rig.a.seen.closed[0].second.code == "bulk-queue-full");
  CHECK(rig.b.seen.received.empty());
  rig.stop();
}

TEST_CASE("a peer that takes no bytes for too long loses the session") {
  Rig rig(our_key, PeerLimits{.write_stall_timeout = 200ms});
  const SessionId session = rig.open();
  rig.relay.close_gate();
  const SharedBytes megabyte = shared(random_bytes(1024 * 1024, 1));
  for (int i = 0; i < 16; ++i) REQUIRE(rig.a.transport.send(session, Lane::bulk, megabyte));
  REQUIRE(rig.run_until([&] { return !rig.a.seen.closed.empty(); }));
  CHECK(rig.a.seen.closed[0].second.code == "write-stalled");
  rig.relay.open_gate();
  rig.stop();
}

TEST_CASE("a close that the peer does not take ends at its deadline with the reason given") {
  Rig rig(our_key, PeerLimits{.close_timeout = 200ms});
  const SessionId session = rig.open();
  rig.relay.close_gate();
  const SharedBytes megabyte = shared(random_bytes(1024 * 1024, 1));
  for (int i = 0; i < 16; ++i) REQUIRE(rig.a.transport.send(session, Lane::bulk, megabyte));
  REQUIRE(rig.run_until([&] { return rig.a.seen.bulk_sent > 0; }));
  rig.a.transport.close(session, Error{"left", "this node left"});
  REQUIRE(rig.run_until([&] { return !rig.a.seen.closed.empty(); }));
  CHECK(rig.a.seen.closed[0].second.code == "left");
  rig.relay.open_gate();
  rig.stop();
}

TEST_CASE("a dialler that meets silence gives up at the handshake deadline") {
  EventLoop loop;
  tcp::acceptor silent(loop.io(), {asio::ip::address_v4::loopback(), 0});
  Node node(loop, our_key, PeerLimits{.handshake_timeout = 100ms});
  node.transport.dial({"127.0.0.1", silent.local_endpoint().port()});
  REQUIRE(loop.run_until([&] { return !node.seen.failed.empty(); }, patience));
  CHECK(node.seen.failed[0].second.code == "handshake-timeout");
  stop_all(loop, {&node});
}

TEST_CASE("a plain peer that breaks the framing is told so and loses its session alone") {
  EventLoop loop;
  Node node(loop, std::nullopt);
  const Endpoint where = node.listen();
  tcp::socket peer(loop.io());
  peer.connect(tcp::endpoint(asio::ip::make_address(where.host), where.port));
  asio::write(peer, asio::buffer(std::string("gossipd\x01 and now some garbage")));
  std::string answer;
  std::array<char, 1024> buffer;
  std::function<void()> read = [&] {
    peer.async_read_some(asio::buffer(buffer),
                         [&](const boost::system::error_code& error, std::size_t count) {
                           answer.append(buffer.data(), count);
                           if (error) return peer.close();
                           read();
                         });
  };
  read();
  REQUIRE(loop.run_until([&] { return !node.seen.closed.empty(); }, patience));
  CHECK(node.seen.closed[0].second.code == "frame-magic");
  CHECK(answer.find("frame-magic") != std::string::npos);
  CHECK(node.seen.received.empty());
  stop_all(loop, {&node});
}

TEST_CASE("a goodbye that has come counts, though a write finds the connection reset first") {
  EventLoop loop;
  Node node(loop, std::nullopt);
  const Endpoint where = node.listen();
  tcp::socket peer(loop.io());
  peer.connect(tcp::endpoint(asio::ip::make_address(where.host), where.port));
  asio::write(peer, asio::buffer(std::string("gossipd\x01")));
  REQUIRE(loop.run_until([&] { return !node.seen.opened.empty(); }, patience));
  // More than the kernel takes of a peer that reads nothing: a write is under way.
  const SharedBytes megabyte = shared(random_bytes(1024 * 1024, 1));
  for (int i = 0; i < 64; ++i)
    REQUIRE(node.transport.send(node.seen.session(), Lane::bulk, megabyte));
  REQUIRE(loop.run_until([&] { return node.seen.bulk_sent > 0; }, patience));
  while (loop.io().poll() > 0) {
  }
  Bytes goodbye;
  const Bytes words = bytes_of("job-mismatch: another job");
  const auto length = static_cast<std::uint32_t>(words.size());
  append_frame({.kind = FrameKind::goodbye, .first = true, .length = length, .total = length},
               words, goodbye);
  asio::write(peer, asio::buffer(goodbye));
  peer.set_option(asio::socket_base::linger(true, 0));
  peer.close();  // a reset
  REQUIRE(loop.run_until([&] { return !node.seen.closed.empty(); }, patience));
  CHECK(node.seen.closed[0].second.code == "closed-by-peer");
  CHECK(node.seen.closed[0].second.text.find("another job") != std::string::npos);
  stop_all(loop, {&node});
}

// The ends have different traffic, to reveal a misplaced message.
void check_cut(Rig& rig, std::size_t to_target, std::size_t from_target) {
  CAPTURE(to_target);
  CAPTURE(from_target);
  const Bytes control_a = bytes_of("control from a"), control_b = bytes_of("and control from b");
  const Bytes bulk_a = random_bytes(150'000, 11), bulk_b = random_bytes(180'000, 12);
  const auto talk = [](Node& node, const Bytes& control, const Bytes& bulk) {
    node.seen = Recorder();
    node.seen.when_open = [&node, control = shared(control), bulk = shared(bulk)](SessionId id) {
      node.transport.send(id, Lane::bulk, bulk);
      node.transport.send(id, Lane::control, control);
    };
  };
  talk(rig.a, control_a, bulk_a);
  talk(rig.b, control_b, bulk_b);
  rig.relay.cut_after(to_target, from_target);
  rig.a.transport.dial(rig.relay.endpoint());
  REQUIRE(rig.run_until([&] {
    return rig.a.seen.failed.size() + rig.a.seen.closed.size() == 1 &&
           rig.b.seen.rejected.size() + rig.b.seen.closed.size() == 1;
  }));
  REQUIRE(rig.a.seen.opened.size() == rig.a.seen.closed.size());
  REQUIRE(rig.b.seen.opened.size() == rig.b.seen.closed.size());
  for (const auto& message : rig.a.seen.received)
    REQUIRE((message.lane == Lane::control ? message.bytes == control_b : message.bytes == bulk_b));
  for (const auto& message : rig.b.seen.received)
    REQUIRE((message.lane == Lane::control ? message.bytes == control_a : message.bytes == bulk_a));
  REQUIRE(rig.a.seen.received.size() <= 2);
  REQUIRE(rig.b.seen.received.size() <= 2);
}

TEST_CASE(
    "a connection cut after any number of bytes ends each side exactly once and yields no partial "
    "message") {
  for (const auto& key : {std::optional<ClusterKey>(our_key), std::optional<ClusterKey>()}) {
    CAPTURE(key.has_value());
    Rig rig(key);
    for (std::size_t n = 0; n < 700; n += n < 40 ? 1 : 13) {
      check_cut(rig, n, Relay::never);
      check_cut(rig, Relay::never, n);
    }
    Random random(7);
    for (int i = 0; i < 30; ++i) {
      check_cut(rig, random.below(150'000), Relay::never);
      check_cut(rig, Relay::never, random.below(180'000));
    }
    rig.stop();
  }
}

TEST_CASE("a byte changed after the handshake ends each side once and passes for no message") {
  Rig rig;
  const Bytes control = bytes_of("control"), bulk = random_bytes(60'000, 13);
  Random random(8);
  for (const Relay::Way way : {Relay::Way::to_target, Relay::Way::from_target}) {
    for (std::size_t n = 0; n < 50'000; n += n < 40 ? 1 : 1 + random.below(3'000)) {
      CAPTURE(n);
      rig.a.seen = Recorder();
      rig.b.seen = Recorder();
      rig.open();
      rig.relay.flip_after(way, n);
      for (Node* node : {&rig.a, &rig.b}) {
        node->transport.send(node->seen.session(), Lane::control, shared(control));
        node->transport.send(node->seen.session(), Lane::bulk, shared(bulk));
      }
      REQUIRE(rig.run_until(
          [&] { return rig.a.seen.closed.size() == 1 && rig.b.seen.closed.size() == 1; }));
      for (Node* node : {&rig.a, &rig.b})
        for (const auto& message : node->seen.received)
          REQUIRE(message.bytes == (message.lane == Lane::control ? control : bulk));
      const Node& receiver = way == Relay::Way::to_target ? rig.b : rig.a;
      // the changed byte is of the second message at the latest
      REQUIRE(receiver.seen.received.size() < 2);
      // by TLS: who changes a byte can change a frame's checksum as well
      REQUIRE(receiver.seen.closed[0].second.code.find("frame-") == std::string::npos);
    }
  }
  rig.stop();
}

TEST_CASE("what a session says is nowhere on the wire in clear") {
  for (const auto& key : {std::optional<ClusterKey>(our_key), std::optional<ClusterKey>()}) {
    CAPTURE(key.has_value());
    Rig rig(key);
    rig.relay.record();
    rig.open();
    const Bytes words = random_bytes(64, 14);
    for (Node* node : {&rig.a, &rig.b})
      for (const Lane lane : {Lane::control, Lane::bulk})
        node->transport.send(node->seen.session(), lane, shared(words));
    REQUIRE(rig.run_until(
        [&] { return rig.a.seen.received.size() == 2 && rig.b.seen.received.size() == 2; }));
    const std::string_view needle(reinterpret_cast<const char*>(words.data()), words.size());
    // Without a key it is there, so the search would find it.
    for (const Relay::Way way : {Relay::Way::to_target, Relay::Way::from_target})
      CHECK((rig.relay.recorded(way).find(needle) == std::string::npos) == key.has_value());
    rig.stop();
  }
}

// Offers our_key as a client of TLS 1.3 does that knows nothing of gossipd's code.
int offer_our_key(SSL* ssl, const EVP_MD*, const unsigned char** id, std::size_t* id_bytes,
                  SSL_SESSION** session) {
  static const std::string identity = "gossipd-" + to_hex(our_key.id);
  constexpr unsigned char aes_128_gcm_sha256[] = {0x13, 0x01};
  *session = SSL_SESSION_new();
  SSL_SESSION_set1_master_key(*session,
                              reinterpret_cast<const unsigned char*>(our_key.secret.data()),
                              our_key.secret.size());
  SSL_SESSION_set_cipher(*session, SSL_CIPHER_find(ssl, aes_128_gcm_sha256));
  SSL_SESSION_set_protocol_version(*session, TLS1_3_VERSION);
  *id = reinterpret_cast<const unsigned char*>(identity.data());
  *id_bytes = identity.size();
  return 1;
}

TEST_CASE(
    "a session by key has an ephemeral key exchange, so a key that leaks opens no recording") {
  EventLoop loop;
  Node node(loop, our_key);
  const Endpoint where = node.listen();
  asio::ssl::context context(asio::ssl::context::tls_client);
  SSL_CTX_set_psk_use_session_callback(context.native_handle(), offer_our_key);
  // It would do without one.
  SSL_CTX_set_options(context.native_handle(), SSL_OP_ALLOW_NO_DHE_KEX);
  asio::ssl::stream<tcp::socket> peer(loop.io(), context);
  peer.next_layer().connect(tcp::endpoint(asio::ip::make_address(where.host), where.port));
  std::optional<boost::system::error_code> shaken;
  peer.async_handshake(asio::ssl::stream_base::client,
                       [&](const boost::system::error_code& error) { shaken = error; });
  REQUIRE(loop.run_until([&] { return shaken.has_value(); }, patience));
  REQUIRE_MESSAGE(!*shaken, shaken->message());
  CHECK(SSL_session_reused(peer.native_handle()) == 1);  // as OpenSSL says of a shared key
  EVP_PKEY* theirs = nullptr;
  CHECK(SSL_get_peer_tmp_key(peer.native_handle(), &theirs) == 1);
  EVP_PKEY_free(theirs);
  stop_all(loop, {&node});
}
