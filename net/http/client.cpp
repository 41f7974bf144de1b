#include "net/http/client.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <memory>
#include <optional>
#include <utility>

#include "net/addresses.h"
#include "net/http/stream.h"

namespace gossipd {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;
using Socket = HttpStream::Socket;

namespace {

constexpr auto as_values = asio::as_tuple(asio::use_awaitable);

std::string place(const HttpCall& call) {
  return call.unix_path.empty() ? to_string(call.server) : call.unix_path;
}

Error connect_error(const HttpCall& call, const error_code& error) {
  if (error == asio::error::connection_refused ||
      error == boost::system::errc::no_such_file_or_directory) {
    return Error{"no-daemon",
                 "no gossipd answers at " + place(call) + ": start it, or name its REST address"};
  }
  return Error{"connect", "cannot connect to " + place(call) + ": " + error.message()};
}

asio::awaitable<std::optional<Error>> connect(asio::io_context& io, const HttpCall& call,
                                              Socket& socket) {
  if (!call.unix_path.empty()) {
    if (call.unix_path.size() >= sizeof(sockaddr_un::sun_path))
      co_return Error{"connect", call.unix_path + " is too long for a socket's path"};
    const auto [error] = co_await socket.async_connect(
        asio::local::stream_protocol::endpoint(call.unix_path), as_values);
    if (error) co_return connect_error(call, error);
    co_return std::nullopt;
  }
  asio::steady_timer waiting(io);
  LookUps look_ups(io);
  const auto addresses = co_await look_ups.resolve(call.server, call.timeout, waiting);
  if (!addresses) co_return addresses.error();
  error_code failed;
  // So that one that swallows packets leaves the others their time.
  const std::chrono::milliseconds share = call.timeout / static_cast<int>(addresses->size() + 1);
  for (const tcp::endpoint& address : *addresses) {
    if (!call.tls && !is_loopback(address.address()) && call.headers.contains("Authorization"))
      co_return Error{"plain", "the token would travel to " + place(call) + " in plain text"};
    socket = Socket(io);
    const bool last = &address == &addresses->back();
    const auto connecting = std::make_shared<bool>(true);
    waiting.expires_after(last ? call.timeout : share);
    waiting.async_wait([&socket, connecting](const error_code&) {
      error_code ignored;
      if (*connecting) (void)socket.close(ignored);
    });
    const auto [error] = co_await socket.async_connect(address, as_values);
    *connecting = false;
    waiting.cancel();
    if (!error && socket.is_open()) co_return std::nullopt;
    failed = error ? error : error_code(asio::error::timed_out);
  }
  co_return connect_error(call, failed);
}

http::request<http::string_body> to_message(const HttpCall& call) {
  http::request<http::string_body> message;
  message.version(11);
  message.method_string(call.method);
  message.target(call.target);
  message.set(http::field::host, call.unix_path.empty() ? to_string(call.server) : "localhost");
  message.set(http::field::user_agent, "gossipctl");
  message.set(http::field::accept, "application/json");
  for (const auto& [name, value] : call.headers) message.set(name, value);
  message.keep_alive(false);
  if (!call.body.empty()) message.set(http::field::content_type, "application/json");
  message.body() = call.body;
  message.prepare_payload();
  return message;
}

HttpResponse to_response(http::response<http::string_body> message) {
  HttpResponse response;
  response.status = static_cast<int>(message.result_int());
  response.content_type = std::string(message[http::field::content_type]);
  for (const auto& field : message)
    response.headers.emplace_back(std::string(field.name_string()), std::string(field.value()));
  response.body = std::move(message.body());
  return response;
}

// Error "untrusted" if `call.ca_file` cannot be read.
std::optional<Error> trust(const HttpCall& call, asio::ssl::context& context) {
  error_code error;
  (void)context.set_options(asio::ssl::context::no_tlsv1 | asio::ssl::context::no_tlsv1_1, error);
  if (call.ca_file.empty())
    (void)context.set_default_verify_paths(error);
  else
    (void)context.load_verify_file(call.ca_file, error);
  if (error)
    return Error{"untrusted",
                 call.ca_file + ": no certificate can be read from it: " + error.message()};
  // The server's own certificate will do, whoever has signed it.
  X509_STORE_set_flags(SSL_CTX_get_cert_store(context.native_handle()), X509_V_FLAG_PARTIAL_CHAIN);
  return std::nullopt;
}

// A self-signed certificate that is in the trusted file identifies itself, whatever its name.
bool is_known_or_named(bool verified, asio::ssl::verify_context& context, const std::string& host) {
  X509_STORE_CTX* store = context.native_handle();
  if (!verified) return false;
  X509* leaf = X509_STORE_CTX_get_current_cert(store);
  if (X509_STORE_CTX_get_error_depth(store) > 0 || X509_check_issued(leaf, leaf) == X509_V_OK)
    return true;
  if (asio::ssl::host_name_verification(host)(verified, context)) return true;
  X509_STORE_CTX_set_error(store, X509_V_ERR_HOSTNAME_MISMATCH);
  return false;
}

asio::awaitable<std::optional<Error>> secure(const HttpCall& call, HttpStream& stream) {
  HttpStream::TlsStream* tls = stream.tls();
  if (tls == nullptr) co_return std::nullopt;
  tls->set_verify_mode(asio::ssl::verify_peer);
  tls->set_verify_callback(
      [host = call.server.host](bool verified, asio::ssl::verify_context& context) {
        return is_known_or_named(verified, context, host);
      });
  (void)SSL_set_tlsext_host_name(tls->native_handle(), call.server.host.c_str());
  const auto [error] = co_await tls->async_handshake(asio::ssl::stream_base::client, as_values);
  if (!error) co_return std::nullopt;
  const long reason = SSL_get_verify_result(tls->native_handle());
  if (reason != X509_V_OK)
    co_return Error{"untrusted", place(call) + " shows a certificate that is not trusted: " +
                                     X509_verify_cert_error_string(reason) +
                                     (reason == X509_V_ERR_HOSTNAME_MISMATCH
                                          ? "; name the host as the certificate does"
                                          : "; name the daemon's certificate (rest.certificate, or "
                                            "rest-certificate.pem in its state directory) as the "
                                            "CA file")};
  co_return Error{"bad-response", "what answers at " + place(call) + " does not speak TLS: " +
                                      error.message() + "; is it http://?"};
}

std::string speaks_https(const HttpCall& call) {
  return call.tls || !call.unix_path.empty() ? "" : "; beyond loopback gossipd speaks https://";
}

// Why reading the answer failed.
Error answer_error(const HttpCall& call, const error_code& error) {
  for (const error_code& end :
       {error_code(http::error::end_of_stream), error_code(http::error::partial_message),
        error_code(asio::error::eof), error_code(asio::error::connection_reset),
        error_code(asio::error::broken_pipe), error_code(asio::ssl::error::stream_truncated)})
    if (error == end)
      return Error{"broke-off", place(call) + " closed the connection before it had answered: " +
                                    error.message() + speaks_https(call)};
  return Error{"bad-response", "what answers at " + place(call) + " is not gossipd's REST: " +
                                   error.message() + speaks_https(call)};
}

asio::awaitable<Result<HttpResponse>> perform(asio::io_context& io, const HttpCall& call) {
  asio::ssl::context context(asio::ssl::context::tls_client);
  const bool tls = call.tls && call.unix_path.empty();
  if (tls)
    if (const auto error = trust(call, context)) co_return *error;
  HttpStream stream(io, tls ? &context : nullptr);
  if (const auto error = co_await connect(io, call, stream.socket())) co_return *error;
  if (const auto error = co_await secure(call, stream)) co_return *error;
  const http::request<http::string_body> request = to_message(call);
  // A server may refuse before it has read everything; its answer counts, not our broken write.
  (void)co_await http::async_write(stream, request, as_values);
  boost::beast::flat_buffer buffer;
  http::response_parser<http::string_body> parser;
  parser.body_limit(call.response_bytes_max);
  if (call.method == "HEAD") parser.skip(true);
  const auto [error, count] = co_await http::async_read(stream, buffer, parser, as_values);
  if (error) co_return answer_error(call, error);
  co_return to_response(parser.release());
}

asio::awaitable<void> perform_into(asio::io_context& io, const HttpCall& call,
                                   std::optional<Result<HttpResponse>>& result) {
  result.emplace(co_await perform(io, call));
}

}  // namespace

Result<HttpResponse> http_call(const HttpCall& call) {
  std::optional<Result<HttpResponse>> result;
  asio::io_context io{1};  // destroyed before what its coroutine refers to
  asio::co_spawn(io, perform_into(io, call, result), [](const std::exception_ptr& error) {
    if (error) std::rethrow_exception(error);
  });
  io.run_for(call.timeout);
  if (result) return std::move(*result);
  return Error{"timeout",
               "no answer from " + place(call) + " within " + std::to_string(call.timeout.count()) +
                   " ms: gossipd is frozen or overloaded, or something else answers there"};
}

}  // namespace gossipd
