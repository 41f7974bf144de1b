// Two transports on loopback with real sockets: opening, refusing, exchanging, stopping.
#include <openssl/evp.h>
#include <openssl/x509.h>

#include <boost/asio/connect.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/ssl.hpp>

#include <sys/resource.h>

#include "net/addresses.h"
#include "net_test_support.h"

using namespace gossipd;
using namespace gossipd::test;
using namespace std::chrono_literals;

namespace {

const ClusterKey our_key = test_key(0x11, 1);

// Dials once and waits for both ends' reasons for the failure.
struct Refusal {
  Error dialler, listener;
};
Refusal refusal(const std::optional<ClusterKey>& dialler_key,
                const std::optional<ClusterKey>& listener_key) {
  EventLoop loop;
  Node listener(loop, listener_key), dialler(loop, dialler_key);
  dialler.transport.dial(listener.listen());
  REQUIRE(loop.run_until(
      [&] { return !dialler.seen.failed.empty() && !listener.seen.rejected.empty(); }, patience));
  const Refusal refused{dialler.seen.failed[0].second, listener.seen.rejected[0]};
  CHECK(dialler.seen.opened.empty());
  CHECK(listener.seen.opened.empty());
  CHECK(dialler.transport.counters().dials_failed.at(refused.dialler.code) == 1);
  CHECK(listener.transport.counters().inbound_rejected.at(refused.listener.code) == 1);
  stop_all(loop, {&dialler, &listener});
  return refused;
}

// Connects as a stranger, sends `words`, and returns why the listener rejected it.
Error reject_stranger(const std::optional<ClusterKey>& key, const std::string& words,
                      bool hang_up = false) {
  EventLoop loop;
  Node listener(loop, key, PeerLimits{.handshake_timeout = 100ms, .close_timeout = 100ms});
  const Endpoint where = listener.listen();
  tcp::socket stranger(loop.io());
  stranger.connect(tcp::endpoint(asio::ip::make_address(where.host), where.port));
  asio::write(stranger, asio::buffer(words));
  if (hang_up) stranger.close();
  REQUIRE(loop.run_until([&] { return !listener.seen.rejected.empty(); }, patience));
  stop_all(loop, {&listener});
  CHECK(listener.seen.opened.empty());
  return listener.seen.rejected[0];
}

bool have_ipv6() {
  asio::io_context io;
  boost::system::error_code error;
  tcp::acceptor acceptor(io);
  acceptor.open(tcp::v6(), error);
  if (!error) acceptor.bind(tcp::endpoint(asio::ip::address_v6::loopback(), 0), error);
  return !error;
}

void exchange_both_ways(const std::optional<ClusterKey>& key) {
  EventLoop loop;
  Node a(loop, key), b(loop, key);
  connect(loop, a, b, b.listen());
  const Bytes big = random_bytes(1024 * 1024, 1), odd = random_bytes(70'001, 2);
  CHECK(a.transport.send(a.seen.session(), Lane::control, shared("hello")));
  CHECK(a.transport.send(a.seen.session(), Lane::bulk, shared(big)));
  CHECK(b.transport.send(b.seen.session(), Lane::bulk, shared(odd)));
  CHECK(b.transport.send(b.seen.session(), Lane::control, shared("well met")));
  REQUIRE(loop.run_until(
      [&] {
        return a.seen.received.size() == 2 && b.seen.received.size() == 2 &&
               a.seen.bulk_sent == big.size();
      },
      patience));
  CHECK(b.seen.received[0].bytes == bytes_of("hello"));
  CHECK(b.seen.received[1].bytes == big);
  CHECK(a.seen.received[0].bytes == bytes_of("well met"));
  CHECK(a.seen.received[1].bytes == odd);
  CHECK(a.seen.received[1].lane == Lane::bulk);
  CHECK(b.seen.signs_of_life > 0);
  CHECK(a.transport.bulk_queue_bytes(a.seen.session()) == 0);
  CHECK(a.seen.opened[0].second.outbound);
  CHECK(a.seen.opened[0].second.dialled == a.seen.opened[0].second.remote);
  CHECK(!b.seen.opened[0].second.outbound);
  CHECK(b.seen.opened[0].second.remote == a.seen.opened[0].second.local);
  stop_all(loop, {&a, &b});
}

}  // namespace

TEST_CASE("messages of both lanes cross in both directions under TLS") {
  exchange_both_ways(our_key);
}
TEST_CASE("messages of both lanes cross in both directions in plain") {
  exchange_both_ways(std::nullopt);
}

TEST_CASE(
    "wire bytes are counted below TLS, the same on both ends, and stay counted after the close") {
  EventLoop loop;
  Node a(loop, our_key), b(loop, our_key);
  connect(loop, a, b, b.listen());
  const std::size_t payload = 500'000;
  a.transport.send(a.seen.session(), Lane::bulk, shared(random_bytes(payload, 3)));
  REQUIRE(loop.run_until([&] { return b.seen.received.size() == 1; }, patience));
  const auto sent = a.transport.counters(a.seen.session());
  REQUIRE(sent);
  CHECK(sent->bulk_out == 1);
  CHECK(sent->wire.out > payload + 8 * frame_header_bytes);
  CHECK(sent->wire.out < payload + payload / 50);
  stop_all(loop, {&a, &b});
  CHECK(!a.transport.counters(a.seen.session()));
  CHECK(a.transport.counters().total.wire.out == b.transport.counters().total.wire.in);
  CHECK(a.transport.counters().total.wire.out >= sent->wire.out);
  CHECK(a.transport.counters().total.wire.in > 0);
}

TEST_CASE("a key of another cluster is refused with that reason on both ends") {
  const Refusal refused = refusal(test_key(0x22, 2), our_key);
  CHECK(refused.dialler.code == "wrong-key");
  CHECK(refused.listener.code == "wrong-key");
  CHECK(refused.listener.text.find("gossipd-0000000000000022") != std::string::npos);
  CHECK(refused.dialler.text.find("differs from ours") != std::string::npos);
  for (const Error& error : {refused.dialler, refused.listener})
    CHECK(error.text.find("missed a change of the key") != std::string::npos);
}

TEST_CASE("a key with our id but another secret is refused with that reason on both ends") {
  const Refusal refused = refusal(test_key(0x11, 2), our_key);
  CHECK(refused.dialler.code == "wrong-key");
  CHECK(refused.listener.code == "wrong-key");
  CHECK(refused.listener.text.find("another secret") != std::string::npos);
}

TEST_CASE(
    "a plain node that dials a node with a key learns why it is refused, and so does the other") {
  const Refusal refused = refusal(std::nullopt, our_key);
  CHECK(refused.dialler.code == "peer-speaks-tls");
  CHECK(refused.listener.code == "peer-speaks-plain");
}

TEST_CASE(
    "a node with a key that dials a plain node learns why it is refused, and so does the other") {
  const Refusal refused = refusal(our_key, std::nullopt);
  CHECK(refused.dialler.code == "peer-speaks-plain");
  CHECK(refused.listener.code == "peer-speaks-tls");
}

TEST_CASE("strangers are rejected with a reason that says what they are") {
  for (const auto& key : {std::optional<ClusterKey>(our_key), std::optional<ClusterKey>()}) {
    CAPTURE(key.has_value());
    CHECK(reject_stranger(key, "GET / HTTP/1.1\r\nHost: x\r\n\r\n").code == "not-a-peer");
    CHECK(reject_stranger(key, std::string(64, '\0')).code == "not-a-peer");
    CHECK(reject_stranger(key, "").code == "handshake-timeout");
    CHECK(reject_stranger(key, "", true).code == "handshake-cut");
    CHECK(reject_stranger(key, "gossi", true).code != "");
  }
  CHECK(reject_stranger(std::nullopt, "gossipd\x02").code == "frame-version");
  CHECK(reject_stranger(std::nullopt, "gossipd").code == "handshake-timeout");
}

TEST_CASE("a rejected stranger does not disturb the sessions there are") {
  EventLoop loop;
  Node a(loop, our_key), b(loop, our_key), plain(loop, std::nullopt),
      foreign(loop, test_key(0x33, 3));
  const Endpoint where = b.listen();
  connect(loop, a, b, where);
  plain.transport.dial(where);
  foreign.transport.dial(where);
  REQUIRE(loop.run_until([&] { return b.seen.rejected.size() == 2; }, patience));
  a.transport.send(a.seen.session(), Lane::control, shared("still here"));
  REQUIRE(loop.run_until([&] { return b.seen.received.size() == 1; }, patience));
  CHECK(b.seen.closed.empty());
  stop_all(loop, {&a, &b, &plain, &foreign});
}

TEST_CASE("a server with a certificate instead of the cluster key is refused") {
  EventLoop loop;
  EVP_PKEY* pair = EVP_EC_gen("P-256");
  X509* certificate = X509_new();
  X509_set_version(certificate, 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate), -3600);
  X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
  X509_set_pubkey(certificate, pair);
  X509_sign(certificate, pair, EVP_sha256());
  asio::ssl::context context(asio::ssl::context::tls_server);
  REQUIRE(SSL_CTX_use_certificate(context.native_handle(), certificate) == 1);
  REQUIRE(SSL_CTX_use_PrivateKey(context.native_handle(), pair) == 1);
  X509_free(certificate);
  EVP_PKEY_free(pair);

  tcp::acceptor acceptor(loop.io(), {asio::ip::address_v4::loopback(), 0});
  asio::ssl::stream<tcp::socket> impostor(loop.io(), context);
  bool handshake_failed = false;
  acceptor.async_accept(impostor.lowest_layer(), [&](const boost::system::error_code& error) {
    REQUIRE(!error);
    impostor.async_handshake(asio::ssl::stream_base::server,
                             [&](const boost::system::error_code& failed) {
                               handshake_failed = static_cast<bool>(failed);
                             });
  });
  Node dialler(loop, our_key);
  dialler.transport.dial({"127.0.0.1", acceptor.local_endpoint().port()});
  REQUIRE(loop.run_until([&] { return !dialler.seen.failed.empty(); }, patience));
  CHECK(dialler.seen.failed[0].second.code == "wrong-key");
  CHECK(dialler.seen.opened.empty());
  CHECK(loop.run_until([&] { return handshake_failed; }, patience));
  stop_all(loop, {&dialler});
}

TEST_CASE("without a key only loopback is listened on and dialled") {
  EventLoop loop;
  Node node(loop, std::nullopt);
  for (const char* host : {"", "*", "0.0.0.0"}) {
    CAPTURE(host);
    const auto refused = node.transport.listen({host, 0});
    REQUIRE(!refused);
    CHECK(refused.error().code == "plain-not-loopback");
  }
  node.transport.dial({"192.0.2.1", 7610});
  CHECK(node.seen.failed.empty());  // never from inside the call
  REQUIRE(loop.run_until([&] { return node.seen.failed.size() == 1; }, patience));
  CHECK(node.seen.failed[0].second.code == "plain-not-loopback");
  stop_all(loop, {&node});
}

TEST_CASE("with a key every address is served by one dual-stack listener") {
  EventLoop loop;
  Node a(loop, our_key), b(loop, our_key);
  const Endpoint where = b.listen("");
  connect(loop, a, b, {"127.0.0.1", where.port});
  CHECK(b.seen.opened[0].second.remote.host == "127.0.0.1");
  if (have_ipv6()) connect(loop, a, b, {"::1", where.port});
  stop_all(loop, {&a, &b});
}

TEST_CASE("host names resolve and all their addresses are tried") {
  EventLoop loop;
  Node a(loop, our_key), b(loop, our_key);
  connect(loop, a, b, {"localhost", b.listen("127.0.0.1").port});
  CHECK(a.seen.opened[0].second.dialled.host == "localhost");
  CHECK(a.seen.opened[0].second.remote.host == "127.0.0.1");
  stop_all(loop, {&a, &b});
}

TEST_CASE("of the addresses of a name those where this node listens come last") {
  const auto at = [](const char* host, std::uint16_t port) {
    return tcp::endpoint(asio::ip::make_address(host), port);
  };
  const tcp::endpoint own = at("127.0.0.1", 7), other = at("192.0.2.1", 7);  // TEST-NET-1
  const std::vector both{own, other};
  for (const char* everywhere : {"0.0.0.0", "::"})
    CHECK(own_last(both, {{everywhere, 7}}) == std::vector{other, own});
  CHECK(own_last(both, {{"127.0.0.1", 7}}) == std::vector{other, own});
  CHECK(own_last(both, {{"127.0.0.2", 7}}) == both);  // another process is at the first
  CHECK(own_last(both, {{"0.0.0.0", 8}}) == both);
  CHECK(own_last(both, {}) == both);
}

TEST_CASE("a dial without a file descriptor fails for want of something of this machine's own") {
  EventLoop loop;
  Node node(loop, our_key);
  (void)node.listen();
  struct NoDescriptors {
    NoDescriptors() {
      REQUIRE(getrlimit(RLIMIT_NOFILE, &usual) == 0);
      const rlimit none{0, usual.rlim_max};
      REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
    }
    ~NoDescriptors() { (void)setrlimit(RLIMIT_NOFILE, &usual); }
    rlimit usual{};
  };
  {
    const NoDescriptors none_left;
    node.transport.dial({"127.0.0.1", 9});
    CHECK(loop.run_until([&] { return !node.seen.failed.empty(); }, patience));
  }
  REQUIRE(node.seen.failed.size() == 1);
  CHECK(node.seen.failed[0].second.code == "short-of");
  CHECK(is_own_shortage(node.seen.failed[0].second));
  CHECK(is_own_shortage(Error{"too-many", ""}));
  CHECK_FALSE(is_own_shortage(Error{"connect-refused", ""}));
  stop_all(loop, {&node});
}

TEST_CASE("a port in use is an error that names the address and a way out") {
  EventLoop loop;
  Node a(loop, our_key), b(loop, our_key);
  const Endpoint taken = a.listen();
  const auto refused = b.transport.listen(taken);
  REQUIRE(!refused);
  CHECK(refused.error().code == "listen");
  CHECK(refused.error().text.find(to_string(taken)) != std::string::npos);
  CHECK(refused.error().text.find("choose another port") != std::string::npos);
  CHECK(b.transport.listening().empty());
  CHECK(a.transport.listening() == std::vector{taken});
  stop_all(loop, {&a, &b});
}

TEST_CASE("a dial where nothing listens fails once with the reason") {
  EventLoop loop;
  Node node(loop, our_key);
  tcp::acceptor unused(loop.io(), {asio::ip::address_v4::loopback(), 0});
  const Endpoint nobody{"127.0.0.1", unused.local_endpoint().port()};
  unused.close();
  node.transport.dial(nobody);
  REQUIRE(loop.run_until([&] { return !node.seen.failed.empty(); }, patience));
  CHECK(node.seen.failed[0].first == nobody);
  CHECK(node.seen.failed[0].second.code == "connect-refused");
  CHECK(node.seen.failed[0].second.text.find(to_string(nobody)) != std::string::npos);
  stop_all(loop, {&node});
  CHECK(node.seen.failed.size() == 1);
}

TEST_CASE("a dial of a name that does not exist fails as a look-up") {
  EventLoop loop;
  Node node(loop, our_key, PeerLimits{.resolve_timeout = 200ms});
  node.transport.dial({"no-such-host.invalid", 7610});
  REQUIRE(loop.run_until([&] { return !node.seen.failed.empty(); }, patience));
  CHECK(node.seen.failed[0].second.code == "resolve");
  stop_all(loop, {&node});
}

TEST_CASE("more dials than allowed fail as too many") {
  EventLoop loop;
  Node a(loop, our_key, PeerLimits{.dials_max = 1}), b(loop, our_key);
  const Endpoint where = b.listen();
  a.transport.dial(where);
  a.transport.dial(where);
  REQUIRE(
      loop.run_until([&] { return !a.seen.failed.empty() && !a.seen.opened.empty(); }, patience));
  CHECK(a.seen.failed[0].second.code == "too-many");
  stop_all(loop, {&a, &b});
}

TEST_CASE("more sessions than allowed are turned away and the others stay") {
  EventLoop loop;
  Node a(loop, our_key), b(loop, our_key, PeerLimits{.sessions_max = 1});
  const Endpoint where = b.listen();
  connect(loop, a, b, where);
  a.transport.dial(where);
  REQUIRE(
      loop.run_until([&] { return !a.seen.failed.empty() && !b.seen.rejected.empty(); }, patience));
  CHECK(b.seen.rejected[0].code == "too-many");
  CHECK(b.seen.closed.empty());
  stop_all(loop, {&a, &b});
}

TEST_CASE("close() flushes the control lane and tells the peer the reason") {
  EventLoop loop;
  Node a(loop, our_key), b(loop, our_key);
  connect(loop, a, b, b.listen());
  const SessionId session = a.seen.session();
  for (int i = 0; i < 100; ++i)
    a.transport.send(session, Lane::control, shared("last words " + std::to_string(i)));
  a.transport.close(session, Error{"wrong-job", "this cluster trains another job"});
  CHECK(a.seen.closed.empty());  // never from inside the call
  CHECK(!a.transport.send(session, Lane::control, shared("too late")));
  REQUIRE(
      loop.run_until([&] { return !a.seen.closed.empty() && !b.seen.closed.empty(); }, patience));
  CHECK(b.seen.received.size() == 100);
  CHECK(a.seen.closed[0].second.code == "wrong-job");
  CHECK(b.seen.closed[0].second.code == "closed-by-peer");
  CHECK(b.seen.closed[0].second.text.find("wrong-job: this cluster trains another job") !=
        std::string::npos);
  stop_all(loop, {&a, &b});
  CHECK(a.seen.closed.size() == 1);
  CHECK(b.seen.closed.size() == 1);
}

TEST_CASE("stop() right after close() still lets the last words and the reason arrive") {
  EventLoop loop;
  Node a(loop, our_key), b(loop, our_key);
  connect(loop, a, b, b.listen());
  a.transport.send(a.seen.session(), Lane::control, shared("I restart"));
  a.transport.close(a.seen.session(), Error{"restarting", "this node restarts"});
  stop_all(loop, {&a});
  REQUIRE(loop.run_until([&] { return !b.seen.closed.empty(); }, patience));
  REQUIRE(b.seen.received.size() == 1);
  CHECK(b.seen.received[0].bytes == bytes_of("I restart"));
  CHECK(b.seen.closed[0].second.text.find("restarting") != std::string::npos);
  CHECK(a.seen.closed[0].second.code == "restarting");
  stop_all(loop, {&b});
}

TEST_CASE("both ends may close at once") {
  EventLoop loop;
  Node a(loop, our_key), b(loop, our_key);
  connect(loop, a, b, b.listen());
  a.transport.close(a.seen.session(), Error{"left", "a goes"});
  b.transport.close(b.seen.session(), Error{"left", "b goes"});
  REQUIRE(
      loop.run_until([&] { return !a.seen.closed.empty() && !b.seen.closed.empty(); }, patience));
  CHECK(a.seen.closed[0].second.text == "a goes");
  CHECK(b.seen.closed[0].second.text == "b goes");
  stop_all(loop, {&a, &b});
}

TEST_CASE("stop() with open sessions and dials under way ends all of them, and then says so") {
  EventLoop loop;
  auto a = std::make_unique<Node>(loop, our_key);
  Node b(loop, our_key);
  const Endpoint where = b.listen();
  connect(loop, *a, b, where);
  connect(loop, *a, b, where);
  a->transport.dial(where);
  bool stopped = false;
  a->transport.stop([&] { stopped = true; });
  REQUIRE(loop.run_until([&] { return stopped; }, patience));
  CHECK(a->seen.closed.size() == a->seen.opened.size());
  CHECK(a->seen.failed.size() == 1);
  CHECK(a->seen.failed[0].second.code == "stopping");
  a.reset();
  REQUIRE(loop.run_until([&] { return b.seen.closed.size() == b.seen.opened.size(); }, patience));
  CHECK(b.seen.closed[0].second.text.find("stopping") != std::string::npos);
  stop_all(loop, {&b});
}

TEST_CASE("a transport destroyed with everything under way calls nobody back and leaks nothing") {
  EventLoop loop;
  auto a = std::make_unique<Node>(loop, our_key), b = std::make_unique<Node>(loop, our_key);
  const Endpoint where = b->listen();
  connect(loop, *a, *b, where);
  a->transport.send(a->seen.session(), Lane::bulk, shared(random_bytes(1024 * 1024, 4)));
  a->transport.dial(where);
  a.reset();
  REQUIRE(loop.run_until([&] { return b->seen.closed.size() == b->seen.opened.size(); }, patience));
  b.reset();  // and the loop goes with their coroutines still in it
}

TEST_CASE("sessions over IPv6 loopback work like the others") {
  if (!have_ipv6()) {
    MESSAGE("skipped: this host has no IPv6");
    return;
  }
  EventLoop loop;
  Node a(loop, std::nullopt), b(loop, std::nullopt);
  const Endpoint where = b.listen("::1");
  CHECK(where.host == "::1");
  connect(loop, a, b, where);
  a.transport.send(a.seen.session(), Lane::control, shared("six"));
  REQUIRE(loop.run_until([&] { return b.seen.received.size() == 1; }, patience));
  CHECK(b.seen.opened[0].second.remote.host == "::1");
  stop_all(loop, {&a, &b});
}
