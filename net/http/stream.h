// net/http/stream.h - one connection of REST (TCP, a Unix socket, or TCP under TLS) as a stream for
// Beast.
//
// Includes Asio and its SSL: for server.cpp and client.cpp only.
#pragma once

#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <variant>

namespace gossipd {

class HttpStream {
 public:
  using Socket = boost::asio::generic::stream_protocol::socket;  // TCP or Unix
  using executor_type = Socket::executor_type;
  using TlsStream = boost::asio::ssl::stream<Socket>;
  using error_code = boost::system::error_code;

  // A null `tls` means plain; otherwise it must outlive the stream.
  HttpStream(boost::asio::io_context& io, boost::asio::ssl::context* tls)
      : stream_(std::in_place_type<Socket>, io) {
    if (tls != nullptr) stream_.emplace<TlsStream>(io, *tls);
  }

  [[nodiscard]] executor_type get_executor() { return socket().get_executor(); }
  [[nodiscard]] Socket& socket() {
    TlsStream* secured = tls();
    return secured != nullptr ? secured->next_layer() : std::get<Socket>(stream_);
  }
  [[nodiscard]] TlsStream* tls() { return std::get_if<TlsStream>(&stream_); }  // nullptr: plain

  template <typename Buffers, typename Token>
  auto async_read_some(const Buffers& buffers, Token&& token) {
    return boost::asio::async_initiate<Token, void(error_code, std::size_t)>(
        [this](auto handler, const Buffers& into) {
          if (TlsStream* secured = tls())
            secured->async_read_some(into, std::move(handler));
          else
            socket().async_read_some(into, std::move(handler));
        },
        token, buffers);
  }

  template <typename Buffers, typename Token>
  auto async_write_some(const Buffers& buffers, Token&& token) {
    return boost::asio::async_initiate<Token, void(error_code, std::size_t)>(
        [this](auto handler, const Buffers& from) {
          if (TlsStream* secured = tls())
            secured->async_write_some(from, std::move(handler));
          else
            socket().async_write_some(from, std::move(handler));
        },
        token, buffers);
  }

 private:
  std::variant<Socket, TlsStream> stream_;
};

}  // namespace gossipd
