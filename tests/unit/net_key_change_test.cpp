// A cluster's key changes while sessions are open or under way.
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ssl.hpp>

#include "net/peer/stream.h"
#include "net_test_support.h"

using namespace gossipd;
using namespace gossipd::test;

TEST_CASE("a cluster changes its key node by node and no session is refused on the way") {
  EventLoop loop;
  const ClusterKey old_key = test_key(1, 1), new_key = test_key(2, 2);
  Keyring both(old_key), changed(old_key);
  REQUIRE(!both.install(new_key));
  REQUIRE(!changed.install(new_key));
  REQUIRE(!changed.use(2));
  Keyring after = changed;
  REQUIRE(!after.retire(1));
  struct Case {
    Keyring dials, listens;
    std::uint64_t under;
  };
  // A dialler whose key is unknown to the other end tries its other keys.
  for (const Case& c : {Case{both, old_key, 1}, Case{old_key, both, 1}, Case{changed, both, 2},
                        Case{both, changed, 1}, Case{changed, old_key, 1}, Case{after, changed, 2},
                        Case{both, after, 2}}) {
    Node a(loop, c.dials), b(loop, c.listens);
    connect(loop, a, b, b.listen());
    CHECK(a.transport.sessions_by_key() == std::map<std::uint64_t, std::size_t>{{c.under, 1}});
    CHECK(b.transport.sessions_by_key() == a.transport.sessions_by_key());
    stop_all(loop, {&a, &b});
  }
  Node a(loop, Keyring(old_key)), b(loop, after);
  a.transport.dial(b.listen());
  REQUIRE(
      loop.run_until([&] { return !a.seen.failed.empty() && !b.seen.rejected.empty(); }, patience));
  CHECK(a.seen.failed[0].second.code == "wrong-key");
  CHECK(b.seen.rejected[0].code == "wrong-key");
  stop_all(loop, {&a, &b});
}

TEST_CASE("a peer that proves to hold a key and waits until it is retired gets no session") {
  EventLoop loop;
  Keyring ring(test_key(1, 1));
  REQUIRE(!ring.install(test_key(2, 2)));
  Node node(loop, ring);
  const Endpoint where = node.listen();
  WireBytes bytes;
  bool proved = false, ended = false;
  Keyring after = ring;
  REQUIRE(!after.use(2));
  REQUIRE(!after.retire(1));
  const auto wait_between = [&]() -> asio::awaitable<void> {
    tcp::socket socket(loop.io());
    co_await socket.async_connect({asio::ip::make_address(where.host), where.port},
                                  asio::use_awaitable);
    PeerStream stream(std::move(socket), std::make_shared<TlsContext>(ring), bytes);
    const auto error = co_await stream.handshake(true, 1);
    CHECK(!error);
    std::array<std::byte, 8> preamble{};
    CHECK(!co_await stream.read_all(preamble));  // the node's: it has seen our proof
    proved = true;
    node.transport.set_keys(after);
    CHECK(!co_await stream.write_all(preamble));
    while (!co_await stream.read_all(preamble)) {
    }
    ended = true;
  };
  asio::co_spawn(loop.io(), wait_between(), asio::detached);
  REQUIRE(loop.run_until([&] { return ended && !node.seen.rejected.empty(); }, patience));
  CHECK(proved);
  CHECK(node.seen.rejected[0].code == "key-retired");
  CHECK(node.seen.opened.empty());
  stop_all(loop, {&node});
}

TEST_CASE("sessions under a retired key end, with the reason on both sides, and others stay") {
  EventLoop loop;
  Keyring ring(test_key(1, 1));
  REQUIRE(!ring.install(test_key(2, 2)));
  Node a(loop, ring), b(loop, ring), c(loop, Keyring(test_key(2, 2)));
  const Endpoint where = b.listen();
  connect(loop, a, b, where);
  connect(loop, c, b, where);
  Keyring after = ring;
  REQUIRE(!after.use(2));
  REQUIRE(!after.retire(1));
  b.transport.set_keys(after);
  REQUIRE(
      loop.run_until([&] { return !a.seen.closed.empty() && !b.seen.closed.empty(); }, patience));
  CHECK(b.seen.closed[0].second.code == "key-retired");
  CHECK(a.seen.closed[0].second.text.find("was retired") != std::string::npos);
  CHECK(c.seen.closed.empty());
  connect(loop, a, b, where);  // with its other key
  CHECK(b.transport.sessions_by_key() == std::map<std::uint64_t, std::size_t>{{2, 2}});
  stop_all(loop, {&a, &b, &c});
}
