// net/peer/stream.h - one TCP connection, plain or under TLS, with its bytes counted below TLS.
//
// One read and one write may be under way at a time. Includes Asio and its SSL: for session.cpp and
// transport.cpp only.
#pragma once

#include <array>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/compose.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <variant>

#include "net/peer/tcp_path.h"
#include "net/peer/tls.h"
#include "net/peer/transport.h"

namespace gossipd {

using tcp = boost::asio::ip::tcp;
using boost::system::error_code;

// Sees the TCP stream's bytes and keeps the first, which identify an unexpected peer.
struct WireTap {
  WireBytes session;
  WireBytes* total = nullptr;
  std::array<std::byte, 8> first{};
  std::size_t first_filled = 0;
  std::function<void()> on_sent;  // may be empty

  void received(const void* bytes, std::size_t count);
  void sent(std::size_t count);
};

// A TCP socket that reports to a tap: exactly what asio::ssl::stream needs of its lower layer.
class CountingSocket {
 public:
  using executor_type = tcp::socket::executor_type;
  using lowest_layer_type = tcp::socket::lowest_layer_type;

  CountingSocket(tcp::socket socket, WireTap& tap) : socket_(std::move(socket)), tap_(&tap) {}

  [[nodiscard]] executor_type get_executor() { return socket_.get_executor(); }
  [[nodiscard]] lowest_layer_type& lowest_layer() { return socket_.lowest_layer(); }
  [[nodiscard]] tcp::socket& socket() { return socket_; }

  template <typename Buffers, typename Token>
  auto async_read_some(const Buffers& buffers, Token&& token) {
    return boost::asio::async_compose<Token, void(error_code, std::size_t)>(
        [this, buffers, started = false](auto& self, const error_code& error = {},
                                         std::size_t count = 0) mutable {
          if (!std::exchange(started, true)) {
            const Buffers into = buffers;  // `self` is about to move, and this lambda with it
            socket_.async_read_some(into, std::move(self));
            return;
          }
          tap_->received(boost::asio::buffer_sequence_begin(buffers)->data(), count);
          self.complete(error, count);
        },
        token, socket_);
  }

  template <typename Buffers, typename Token>
  auto async_write_some(const Buffers& buffers, Token&& token) {
    return boost::asio::async_compose<Token, void(error_code, std::size_t)>(
        [this, buffers, started = false](auto& self, const error_code& error = {},
                                         std::size_t count = 0) mutable {
          if (!std::exchange(started, true)) {
            const Buffers from = buffers;
            socket_.async_write_some(from, std::move(self));
            return;
          }
          tap_->sent(count);
          self.complete(error, count);
        },
        token, socket_);
  }

 private:
  tcp::socket socket_;
  WireTap* tap_;
};

class PeerStream {
 public:
  // A null `tls` means plain. `total` must outlive the stream.
  PeerStream(tcp::socket socket, std::shared_ptr<TlsContext> tls, WireBytes& total);
  PeerStream(const PeerStream&) = delete;
  PeerStream& operator=(const PeerStream&) = delete;

  // See session.h. Used until the handshake ends.
  void when_proved(std::function<void()> call);
  // No-op when plain. `offer`: the key to dial with.
  [[nodiscard]] boost::asio::awaitable<std::optional<Error>> handshake(bool outbound,
                                                                       std::uint64_t offer);
  // that both ends proved to have; 0 when plain or with certificates
  [[nodiscard]] std::uint64_t key() const { return attempt_.key; }
  [[nodiscard]] bool began_under(const std::shared_ptr<TlsContext>& tls) const {
    return tls_ == tls;
  }
  [[nodiscard]] SSL* tls() {
    return tls_ == nullptr ? nullptr : std::get<1>(stream_).native_handle();
  }
  [[nodiscard]] boost::asio::awaitable<std::pair<error_code, std::size_t>> read_some(
      std::span<std::byte> into);
  [[nodiscard]] boost::asio::awaitable<error_code> read_all(std::span<std::byte> into);
  [[nodiscard]] boost::asio::awaitable<error_code> write_all(std::span<const std::byte> from);
  // Reads and discards the TCP stream below TLS until it ends or `bytes_max` have arrived.
  [[nodiscard]] boost::asio::awaitable<void> drain(std::size_t bytes_max);

  void shutdown_send();
  void close();  // ends a pending read and write
  [[nodiscard]] const WireTap& tap() const { return tap_; }
  [[nodiscard]] std::optional<TcpPath> path() { return tcp_path(lower().socket().native_handle()); }
  // The meaning of OpenSSL's error; nullopt if it is another. The accepting end checks the other's
  // certificate after the dialling end has finished its handshake, so the latter learns of a
  // refusal with its first read.
  [[nodiscard]] std::optional<Error> tls_refusal(const error_code& error, bool outbound) const;
  // What the first bytes received reveal about something that is not a peer; nullopt if they look
  // right.
  [[nodiscard]] std::optional<Error> unexpected_peer() const;

 private:
  using TlsStream = boost::asio::ssl::stream<CountingSocket>;
  [[nodiscard]] CountingSocket& lower();

  // as of the session's start; the transport may have a newer one
  std::shared_ptr<TlsContext> tls_;
  WireTap tap_;
  TlsAttempt attempt_;
  std::variant<CountingSocket, TlsStream> stream_;
};

}  // namespace gossipd
