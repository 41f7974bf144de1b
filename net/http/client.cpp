#include "net/http/client.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <optional>
#include <utility>

#include "net/addresses.h"

namespace gossipd {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;
using Socket = asio::generic::stream_protocol::socket;

namespace {

constexpr auto as_values = asio::as_tuple(asio::use_awaitable);

std::string place(const HttpCall& call) { return call.unix_path.empty() ? to_string(call.server) : call.unix_path; }

Error connect_error(const HttpCall& call, const error_code& error) {
  if (error == asio::error::connection_refused || error == boost::system::errc::no_such_file_or_directory) {
    return Error{"no-daemon", "no gossipd answers at " + place(call) + ": start it, or name its REST address"};
  }
  return Error{"connect", "cannot connect to " + place(call) + ": " + error.message()};
}

asio::awaitable<std::optional<Error>> connect(asio::io_context& io, const HttpCall& call, Socket& socket) {
  if (!call.unix_path.empty()) {
    if (call.unix_path.size() >= sizeof(sockaddr_un::sun_path)) co_return Error{"connect", call.unix_path + " is too long for a socket's path"};
    const auto [error] = co_await socket.async_connect(asio::local::stream_protocol::endpoint(call.unix_path), as_values);
    if (error) co_return connect_error(call, error);
    co_return std::nullopt;
  }
  asio::steady_timer waiting(io);
  const auto addresses = co_await resolve(call.server, call.timeout, waiting);
  if (!addresses) co_return addresses.error();
  error_code failed;
  for (const tcp::endpoint& address : *addresses) {
    socket = Socket(io);
    const auto [error] = co_await socket.async_connect(address, as_values);
    if (!error) co_return std::nullopt;
    failed = error;
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
  for (const auto& field : message) response.headers.emplace_back(std::string(field.name_string()), std::string(field.value()));
  response.body = std::move(message.body());
  return response;
}

asio::awaitable<Result<HttpResponse>> perform(asio::io_context& io, const HttpCall& call) {
  Socket socket(io);
  if (const auto error = co_await connect(io, call, socket)) co_return *error;
  const http::request<http::string_body> request = to_message(call);
  // A server may refuse before it has read everything; its answer counts, not our broken write.
  (void)co_await http::async_write(socket, request, as_values);
  boost::beast::flat_buffer buffer;
  http::response_parser<http::string_body> parser;
  parser.body_limit(call.response_bytes_max);
  if (call.method == "HEAD") parser.skip(true);
  const auto [error, count] = co_await http::async_read(socket, buffer, parser, as_values);
  if (error) {
    co_return Error{"bad-response", "what answers at " + place(call) + " is not gossipd's REST, or broke off: " + error.message()};
  }
  co_return to_response(parser.release());
}

asio::awaitable<void> perform_into(asio::io_context& io, const HttpCall& call, std::optional<Result<HttpResponse>>& result) {
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
  return Error{"timeout", "no answer from " + place(call) + " within " + std::to_string(call.timeout.count()) +
                              " ms: gossipd is frozen or overloaded, or something else answers there"};
}

}  // namespace gossipd
