#include "net/peer/stream.h"

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <string_view>

namespace gossipd {

namespace asio = boost::asio;

namespace {

constexpr auto as_values = asio::as_tuple(asio::use_awaitable);
constexpr unsigned char protocol_version_alert[] = {0x15, 0x03, 0x03, 0x00, 0x02, 0x02, 0x46};

std::variant<CountingSocket, asio::ssl::stream<CountingSocket>> make_stream(tcp::socket socket,
                                                                            TlsContext* tls,
                                                                            WireTap& tap) {
  using Variant = std::variant<CountingSocket, asio::ssl::stream<CountingSocket>>;
  if (tls == nullptr) return Variant(std::in_place_index<0>, std::move(socket), tap);
  return Variant(std::in_place_index<1>, CountingSocket(std::move(socket), tap), tls->context());
}

}  // namespace

void WireTap::received(const void* bytes, std::size_t count) {
  session.in += count;
  total->in += count;
  const std::size_t kept = std::min(first.size() - first_filled, count);
  std::copy_n(static_cast<const std::byte*>(bytes), kept,
              first.begin() + static_cast<std::ptrdiff_t>(first_filled));
  first_filled += kept;
}

void WireTap::sent(std::size_t count) {
  session.out += count;
  total->out += count;
  if (on_sent) on_sent();
}

PeerStream::PeerStream(tcp::socket socket, std::shared_ptr<TlsContext> tls, WireBytes& total)
    : tls_(std::move(tls)),
      tap_{.total = &total},
      stream_(make_stream(std::move(socket), tls_.get(), tap_)) {
  if (tls_ != nullptr) TlsContext::attach(std::get<1>(stream_).native_handle(), attempt_);
}

CountingSocket& PeerStream::lower() {
  return stream_.index() == 0 ? std::get<0>(stream_) : std::get<1>(stream_).next_layer();
}

// A hello gets an answer only after its binder, which needs the key, was verified; or an alert.
void PeerStream::when_proved(std::function<void()> call) {
  if (tls_ == nullptr) return;
  tap_.on_sent = [ssl = tls(), call = std::move(call)] {
    if (SSL_session_reused(ssl) == 1) call();
  };
}

asio::awaitable<std::optional<Error>> PeerStream::handshake(bool outbound, std::uint64_t offer) {
  if (tls_ == nullptr) co_return std::nullopt;
  attempt_.key = offer;
  TlsStream& tls = std::get<1>(stream_);
  const auto role = outbound ? asio::ssl::stream_base::client : asio::ssl::stream_base::server;
  const auto [error] = co_await tls.async_handshake(role, as_values);
  tap_.on_sent = nullptr;
  if (!error) {
    if (tls_->proved(tls.native_handle(), attempt_)) co_return std::nullopt;
    co_return Error{"wrong-key", "TLS: the peer did not prove that it belongs to the cluster"};
  }
  if (auto unexpected = unexpected_peer()) {
    // OpenSSL ignores what is not TLS; these bytes tell a plain peer what it has reached.
    (void)co_await asio::async_write(lower(), asio::buffer(protocol_version_alert), as_values);
    co_return unexpected;
  }
  if (auto refused = tls_refusal(error, outbound)) co_return refused;
  co_return Error{"handshake-cut",
                  "the connection ended during the TLS handshake: " + error.message()};
}

asio::awaitable<std::pair<error_code, std::size_t>> PeerStream::read_some(
    std::span<std::byte> into) {
  const auto buffer = asio::buffer(into.data(), into.size());
  if (tls_ == nullptr) {
    const auto [error, count] = co_await std::get<0>(stream_).async_read_some(buffer, as_values);
    co_return std::pair(error, count);
  }
  const auto [error, count] = co_await std::get<1>(stream_).async_read_some(buffer, as_values);
  co_return std::pair(error, count);
}

asio::awaitable<error_code> PeerStream::read_all(std::span<std::byte> into) {
  while (!into.empty()) {
    const auto [error, count] = co_await read_some(into);
    if (error) co_return error;
    into = into.subspan(count);
  }
  co_return error_code{};
}

asio::awaitable<error_code> PeerStream::write_all(std::span<const std::byte> from) {
  const auto buffer = asio::buffer(from.data(), from.size());
  if (tls_ == nullptr) {
    const auto [error, count] = co_await asio::async_write(std::get<0>(stream_), buffer, as_values);
    co_return error;
  }
  const auto [error, count] = co_await asio::async_write(std::get<1>(stream_), buffer, as_values);
  co_return error;
}

asio::awaitable<void> PeerStream::drain(std::size_t bytes_max) {
  std::array<std::byte, 4096> scratch;
  for (std::size_t drained = 0; drained < bytes_max;) {
    const auto [error, count] = co_await lower().async_read_some(asio::buffer(scratch), as_values);
    if (error) co_return;
    drained += count;
  }
}

void PeerStream::shutdown_send() {
  error_code ignored;  // the connection may be gone already
  lower().socket().shutdown(tcp::socket::shutdown_send, ignored);
}

void PeerStream::close() {
  error_code ignored;
  lower().socket().close(ignored);
}

std::optional<Error> PeerStream::tls_refusal(const error_code& error, bool outbound) const {
  if (tls_ == nullptr || error.category() != asio::error::get_ssl_category()) return std::nullopt;
  return tls_->explain(error, attempt_, outbound);
}

std::optional<Error> PeerStream::unexpected_peer() const {
  const std::string_view seen(reinterpret_cast<const char*>(tap_.first.data()), tap_.first_filled);
  const bool tls_record =
      !seen.empty() && seen[0] >= 0x14 && seen[0] <= 0x17 && (seen.size() < 2 || seen[1] == 3);
  if (seen.empty() || (tls_record && tls_ != nullptr)) return std::nullopt;
  const bool ours =
      seen == std::string_view("gossipd").substr(0, std::min<std::size_t>(seen.size(), 7)) ||
      seen.starts_with("gossipd");
  if (ours) {
    if (tls_ == nullptr) return std::nullopt;
    return Error{"peer-speaks-plain",
                 "the peer speaks without encryption: it was started without a cluster key, this "
                 "node has one; give it the same --key-file"};
  }
  if (tls_record) {
    return Error{"peer-speaks-tls",
                 "the peer speaks TLS: it has a cluster key, this node was started without one; "
                 "start this node with the cluster's --key-file"};
  }
  return Error{"not-a-peer",
               "the other end does not speak gossipd's peer protocol; is the port right? (peers "
               "use 7610, REST uses 7611)"};
}

}  // namespace gossipd
