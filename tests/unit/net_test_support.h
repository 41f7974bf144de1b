// tests/unit/net_test_support.h - a recording handler, and a relay that can stall, cut, change and
// record.
#pragma once

#include <doctest/doctest.h>

#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/base/random.h"
#include "net/event_loop.h"
#include "net/peer/transport.h"
#include "net/task_group.h"

namespace gossipd::test {

namespace asio = boost::asio;
using tcp = asio::ip::tcp;

// The time after which a test gives up. Tests assert nothing about time.
inline constexpr Duration patience = std::chrono::seconds(60);

inline Bytes random_bytes(std::size_t count, std::uint64_t seed) {
  Random random(seed);
  Bytes bytes(count);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random.next());
  return bytes;
}
inline SharedBytes shared(Bytes bytes) { return std::make_shared<const Bytes>(std::move(bytes)); }
inline SharedBytes shared(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return shared(Bytes(bytes.begin(), bytes.end()));
}
inline Bytes bytes_of(const std::string& text) { return *shared(text); }

inline ClusterKey test_key(std::uint64_t id, std::uint64_t secret) {
  ClusterKey key;
  key.id = id;
  const Bytes bytes = random_bytes(key.secret.size(), secret);
  std::copy(bytes.begin(), bytes.end(), key.secret.begin());
  return key;
}

struct Recorder : PeerHandler {
  struct Received {
    SessionId session;
    Lane lane;
    Bytes bytes;
  };
  std::vector<std::pair<SessionId, SessionInfo>> opened;
  std::vector<std::pair<SessionId, Error>> closed;
  std::vector<std::pair<Endpoint, Error>> failed;
  std::vector<Error> rejected;
  std::vector<Received> received;
  std::size_t bulk_sent = 0;
  std::size_t signs_of_life = 0;
  std::function<void(SessionId)> when_open;

  void on_session_open(SessionId id, const SessionInfo& info) override {
    opened.emplace_back(id, info);
    if (when_open) when_open(id);
  }
  void on_session_closed(SessionId id, const Error& reason) override {
    closed.emplace_back(id, reason);
  }
  void on_dial_failed(const Endpoint& peer, const Error& reason) override {
    failed.emplace_back(peer, reason);
  }
  void on_message(SessionId id, Lane lane, std::span<const std::byte> message) override {
    received.push_back({id, lane, Bytes(message.begin(), message.end())});
  }
  void on_bytes(SessionId) override { ++signs_of_life; }
  void on_bulk_sent(SessionId, std::size_t bytes) override { bulk_sent += bytes; }
  void on_rejected_inbound(const Endpoint&, const Error& reason) override {
    rejected.push_back(reason);
  }

  [[nodiscard]] SessionId session() const { return opened.at(opened.size() - 1).first; }
};

struct Node {
  Node(EventLoop& loop, const std::optional<Keyring>& keys, const PeerLimits& limits = {})
      : transport(loop, seen, keys, limits) {}
  Node(EventLoop& loop, const PeerCertificates& certificates, const PeerLimits& limits = {})
      : transport(loop, seen, certificates, limits) {}
  Recorder seen;
  PeerTransport transport;

  Endpoint listen(const std::string& host = "127.0.0.1") {
    const auto where = transport.listen({host, 0});
    REQUIRE_MESSAGE(where, (where ? "" : where.error().text));
    return *where;
  }
};

inline void stop_all(EventLoop& loop, std::initializer_list<Node*> nodes) {
  std::size_t stopped = 0;
  for (Node* node : nodes) node->transport.stop([&stopped] { ++stopped; });
  REQUIRE(loop.run_until([&] { return stopped == nodes.size(); }, patience));
}

// Forwards each connection to `target`, both ways. Loop thread only.
class Relay {
 public:
  enum class Way { to_target, from_target };
  static constexpr std::size_t never = std::numeric_limits<std::size_t>::max();

  Relay(EventLoop& loop, Endpoint target)
      : state_(std::make_shared<State>(
            loop.io(), tcp::endpoint(asio::ip::make_address(target.host), target.port))) {
    state_->tasks.spawn(accept(state_));
  }
  ~Relay() {
    boost::system::error_code ignored;
    state_->acceptor.close(ignored);
    cut();
    open_gate();
  }
  [[nodiscard]] Endpoint endpoint() const {
    return {"127.0.0.1", state_->acceptor.local_endpoint().port()};
  }

  void close_gate() { state_->gate_open = false; }  // accepts nothing more from the dialling side
  void open_gate() {
    state_->gate_open = true;
    state_->gate.cancel();
  }
  // Cuts a connection after this many of its bytes to, and from, the target.
  void cut_after(std::size_t to_target, std::size_t from_target) {
    state_->limits = {to_target, from_target};
  }
  // Changes a bit of the byte that comes that way after so many more.
  void flip_after(Way way, std::size_t more) {
    Passed& passed = state_->passed[index(way)];
    passed.flip_at = passed.bytes + more;
  }
  // Keeps all that passes from now on.
  void record() { state_->recording = true; }
  [[nodiscard]] const std::string& recorded(Way way) const {
    return state_->passed[index(way)].recorded;
  }
  void cut() {
    for (const auto& pair : state_->pairs) pair->close();
    state_->pairs.clear();
  }

 private:
  struct Pair {
    explicit Pair(asio::io_context& io) : near(io), far(io) {}
    tcp::socket near, far;
    void close() {
      boost::system::error_code ignored;
      near.close(ignored);
      far.close(ignored);
    }
  };
  struct Passed {
    std::size_t bytes = 0, flip_at = never;
    std::string recorded;
  };
  static std::size_t index(Way way) { return way == Way::to_target ? 0 : 1; }
  struct State {
    State(asio::io_context& io_in, tcp::endpoint target_in)
        : io(io_in),
          target(target_in),
          acceptor(io, {asio::ip::address_v4::loopback(), 0}),
          gate(io, asio::steady_timer::time_point::max()),
          tasks(io) {}
    asio::io_context& io;
    tcp::endpoint target;
    tcp::acceptor acceptor;
    asio::steady_timer gate;
    bool gate_open = true;
    std::array<std::size_t, 2> limits{never, never};
    std::array<Passed, 2> passed;
    bool recording = false;
    std::set<std::shared_ptr<Pair>> pairs;
    TaskGroup tasks;
  };
  static constexpr auto as_values = asio::as_tuple(asio::use_awaitable);

  static asio::awaitable<void> accept(std::shared_ptr<State> state) {
    while (state->acceptor.is_open()) {
      auto pair = std::make_shared<Pair>(state->io);
      const auto [error] = co_await state->acceptor.async_accept(pair->near, as_values);
      if (error) co_return;
      const auto [refused] = co_await pair->far.async_connect(state->target, as_values);
      if (refused) continue;
      state->pairs.insert(pair);
      state->tasks.spawn(pump(state, pair, Way::to_target));
      state->tasks.spawn(pump(state, pair, Way::from_target));
    }
  }

  static asio::awaitable<void> pump(std::shared_ptr<State> state, std::shared_ptr<Pair> pair,
                                    Way way) {
    const bool to_target = way == Way::to_target;
    tcp::socket& from = to_target ? pair->near : pair->far;
    tcp::socket& into = to_target ? pair->far : pair->near;
    std::size_t left = state->limits[index(way)];
    std::vector<char> buffer(16 * 1024);
    while (left > 0) {
      while (to_target && !state->gate_open) (void)co_await state->gate.async_wait(as_values);
      const auto [error, count] = co_await from.async_read_some(
          asio::buffer(buffer, std::min(left, buffer.size())), as_values);
      if (error == asio::error::eof) {
        boost::system::error_code ignored;
        into.shutdown(tcp::socket::shutdown_send, ignored);
        co_return;
      }
      if (error) break;
      pass(*state, way, std::span(buffer.data(), count));
      const auto [broken, written] =
          co_await asio::async_write(into, asio::buffer(buffer, count), as_values);
      if (broken) break;
      if (left != never) left -= count;
    }
    pair->close();
    state->pairs.erase(pair);
  }

  static void pass(State& state, Way way, std::span<char> bytes) {
    Passed& passed = state.passed[index(way)];
    if (passed.flip_at - passed.bytes < bytes.size()) bytes[passed.flip_at - passed.bytes] ^= 1;
    passed.bytes += bytes.size();
    if (state.recording) passed.recorded.append(bytes.begin(), bytes.end());
  }

  std::shared_ptr<State> state_;
};

struct TemporaryFolder {
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "gossipd-net-XXXXXX").string();
    REQUIRE(::mkdtemp(pattern.data()) != nullptr);
    path = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  std::filesystem::path path;
};

// Dials and waits until both ends have a session.
inline void connect(EventLoop& loop, Node& from, Node& to, const Endpoint& where) {
  const std::size_t theirs = to.seen.opened.size(), ours = from.seen.opened.size();
  from.transport.dial(where);
  REQUIRE_MESSAGE(
      loop.run_until(
          [&] { return from.seen.opened.size() > ours && to.seen.opened.size() > theirs; },
          patience),
      (from.seen.failed.empty() ? "no session" : from.seen.failed.back().second.text));
}

}  // namespace gossipd::test
