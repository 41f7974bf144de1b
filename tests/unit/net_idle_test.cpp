// Idle connections beside a joiner, which still gets a place.
#include "net_test_support.h"

using namespace gossipd;
using namespace gossipd::test;
using namespace std::chrono_literals;

namespace {

const ClusterKey our_key = test_key(0x11, 1);

// Silent connections from `hosts` loopback addresses. Each reconnects as soon as it is cut.
class Idlers {
 public:
  Idlers(EventLoop& loop, const Endpoint& target, std::size_t count, std::size_t hosts,
         std::string words = {})
      : loop_(loop),
        target_(asio::ip::make_address("127.0.0.1"), target.port),
        words_(std::move(words)) {
    for (std::size_t i = 0; i < count; ++i) {
      idle_.push_back(std::make_unique<tcp::socket>(loop.io()));
      begin(i, asio::ip::make_address_v4(0x7f000002 + static_cast<std::uint32_t>(i % hosts)));
    }
  }
  ~Idlers() { stopped_ = true; }
  [[nodiscard]] std::size_t reconnected() const { return reconnected_; }

 private:
  void begin(std::size_t i, asio::ip::address_v4 from) {
    tcp::socket& socket = *idle_[i];
    socket = tcp::socket(loop_.io());
    socket.open(tcp::v4());
    socket.bind({from, 0});
    socket.async_connect(target_, [this, i, from](const boost::system::error_code& error) {
      if (stopped_ || error == asio::error::operation_aborted) return;
      boost::system::error_code ignored;
      if (!words_.empty()) asio::write(*idle_[i], asio::buffer(words_), ignored);
      idle_[i]->async_wait(tcp::socket::wait_read,
                           [this, i, from](const boost::system::error_code& ended) {
                             if (stopped_ || ended == asio::error::operation_aborted) return;
                             ++reconnected_;
                             begin(i, from);
                           });
    });
  }

  EventLoop& loop_;
  tcp::endpoint target_;
  std::string words_;
  std::vector<std::unique_ptr<tcp::socket>> idle_;
  std::size_t reconnected_ = 0;
  bool stopped_ = false;
};

// Twice, to exclude luck; the second time the address is known.
void get_in_beside_idlers(std::size_t hosts, const std::string& words) {
  EventLoop loop;
  Node a(loop, our_key),
      b(loop, our_key, PeerLimits{.handshakes_max = 8, .handshakes_per_source_max = 4});
  const Endpoint where = b.listen("0.0.0.0");
  Idlers idlers(loop, where, 32, hosts, words);
  REQUIRE(loop.run_until([&] { return idlers.reconnected() > 100; }, patience));
  for (int i = 0; i < 2; ++i) connect(loop, a, b, {"127.0.0.1", where.port});
  CHECK(a.seen.failed.empty());
  stop_all(loop, {&a, &b});
}

}  // namespace

TEST_CASE("idle connections that come again as soon as they are cut keep no joiner out") {
  for (const std::size_t hosts : {1, 4, 32}) {
    CAPTURE(hosts);
    get_in_beside_idlers(hosts, "");
  }
}

TEST_CASE("nor do those that begin a handshake and do not go on with it") {
  for (const std::size_t hosts : {1, 4, 32}) {
    CAPTURE(hosts);
    get_in_beside_idlers(hosts, std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11));
  }
}

TEST_CASE("TLS begins with the first byte, so silence costs no more than a descriptor") {
  EventLoop loop;
  Node node(loop, our_key);
  const Endpoint where = node.listen();
  tcp::socket idle(loop.io());
  idle.connect({asio::ip::make_address("127.0.0.1"), where.port});
  bool stopped = false;
  REQUIRE(!loop.run_until([&] { return !node.seen.rejected.empty(); }, 50ms));
  node.transport.stop([&] { stopped = true; });  // an idle connection does not delay stop()
  REQUIRE(loop.run_until([&] { return stopped; }, patience));
  REQUIRE(node.seen.rejected.size() == 1);
  CHECK(node.seen.rejected[0].code == "stopping");
  CHECK(node.transport.counters().total.wire.in == 0);
}
