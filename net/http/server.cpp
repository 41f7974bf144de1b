#include "net/http/server.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <list>
#include <optional>
#include <utility>

#include "net/addresses.h"
#include "net/http/beast_message.h"
#include "net/http/body_stream.h"
#include "net/http/guard.h"
#include "net/http/pending_answer.h"
#include "net/http/stream.h"
#include "net/http/unix_path.h"
#include "net/http/url.h"
#include "net/task_group.h"

namespace gossipd {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;
using local = asio::local::stream_protocol;
using Socket = HttpStream::Socket;

namespace {

constexpr auto as_values = asio::as_tuple(asio::use_awaitable);
constexpr std::chrono::milliseconds accept_retry_delay{100};
constexpr std::size_t drain_bytes_max = 256 * 1024;

struct Connection {
  Connection(asio::io_context& io, asio::ssl::context* tls, HttpVia via_in,
             std::size_t buffer_bytes_max)
      : stream(io, tls), via(via_in), buffer(buffer_bytes_max), deadline(io, [this] { cut(); }) {}

  HttpStream stream;
  HttpVia via;
  boost::beast::flat_buffer buffer;
  Timer deadline;
  bool busy = false;  // has a whole request and has not sent all of its response
  bool timed_out = false;
  std::shared_ptr<Answer> answer;        // being waited for
  std::shared_ptr<HttpBodyStream> body;  // being sent

  [[nodiscard]] bool is_open() { return stream.socket().is_open(); }
  void close() {
    error_code ignored;
    stream.socket().close(ignored);
    if (answer) answer->ready.cancel();
    if (body) body->break_off();
  }
  void cut() {
    timed_out = true;
    close();
  }
};

template <typename Acceptor>
struct Listener {
  explicit Listener(Acceptor acceptor_in)
      : acceptor(std::move(acceptor_in)), retry(acceptor.get_executor()) {}
  Acceptor acceptor;
  asio::steady_timer retry;

  void close() {
    error_code ignored;
    acceptor.close(ignored);
    retry.cancel();
  }
};

}  // namespace

class HttpServer::Impl : public std::enable_shared_from_this<HttpServer::Impl> {
 public:
  Impl(asio::io_context& io, HttpHandler handler, HttpServerOptions options)
      : io_(io), handler_(std::move(handler)), options_(std::move(options)), tasks_(io) {}

  Result<Endpoint> listen(const Endpoint& where);
  std::optional<Error> listen_unix(const std::string& path);
  void stop(std::function<void()> done);
  void abandon();
  [[nodiscard]] const HttpServerCounters& counters() const { return counters_; }

 private:
  using Self = std::shared_ptr<Impl>;  // first parameter of every coroutine: keeps the server

  template <typename Acceptor>
  asio::awaitable<void> accept_loop(Self self, std::shared_ptr<Listener<Acceptor>> listener,
                                    HttpVia via);
  void admit(std::shared_ptr<Connection> connection);
  bool make_room();
  asio::awaitable<void> serve(Self self, std::shared_ptr<Connection> connection);
  asio::awaitable<bool> secure(Connection& connection);
  asio::awaitable<bool> serve_one(const std::shared_ptr<Connection>& shared);
  asio::awaitable<error_code> read_request(Connection& connection, HttpParser& parser);
  asio::awaitable<HttpResponse> respond_to(Connection& connection,
                                           const HttpParser::value_type& message);
  asio::awaitable<HttpResponse> ask_handler(Connection& connection, const HttpRequest& request);
  asio::awaitable<bool> write_response(Connection& connection, HttpResponse response, bool head,
                                       bool keep_alive);
  void arm_writing(Connection& connection);
  void wrote_some(Connection& connection);
  void admit_stream(HttpResponse& response);
  asio::awaitable<void> send_stream(std::shared_ptr<Connection> connection);
  asio::awaitable<error_code> send_piece(Connection& connection, HttpBodyStream::Piece piece);
  asio::awaitable<void> watch_client(Self self, std::shared_ptr<Connection> connection);
  asio::awaitable<void> linger(Connection& connection);

  asio::io_context& io_;
  HttpHandler handler_;
  HttpServerOptions options_;
  std::shared_ptr<asio::ssl::context> tls_;  // of TCP connections; null: plain
  TaskGroup tasks_;
  HttpServerCounters counters_;
  std::list<std::shared_ptr<Listener<tcp::acceptor>>> tcp_listeners_;
  std::list<std::shared_ptr<Listener<local::acceptor>>> unix_listeners_;
  std::vector<std::pair<std::string, FileIdentity>> unix_files_;
  std::list<std::shared_ptr<Connection>> connections_;  // oldest first
  bool stopping_ = false;
  Instant stop_by_{};  // then nobody that reads slowly gets more time
};

Result<Endpoint> HttpServer::Impl::listen(const Endpoint& where) {
  const auto address = listen_address(io_, where);
  if (!address) return address.error();
  const bool guarded = !options_.read_by_all && !is_loopback(address->address());
  if (options_.bearer_token.empty() && guarded) {
    return Error{"token-needed", "refused to serve REST on " + to_string(to_endpoint(*address)) +
                                     " to everybody: beyond loopback it needs a token; configure "
                                     "one, or listen on 127.0.0.1"};
  }
  if (!options_.tls && guarded) {
    return Error{"tls-needed", "refused to serve REST on " + to_string(to_endpoint(*address)) +
                                   " in plain text: the token could be read on the way; configure "
                                   "TLS, or listen on 127.0.0.1"};
  }
  if (options_.tls && !tls_) {
    auto context = read_tls(*options_.tls);
    if (!context) return context.error();
    tls_ = std::move(*context);
  }
  auto acceptor = open_acceptor(io_, *address);
  if (!acceptor) return acceptor.error();
  const auto listener = std::make_shared<Listener<tcp::acceptor>>(std::move(*acceptor));
  tcp_listeners_.push_back(listener);
  tasks_.spawn(accept_loop(shared_from_this(), listener, HttpVia::tcp));
  return to_endpoint(listener->acceptor.local_endpoint());
}

std::optional<Error> HttpServer::Impl::listen_unix(const std::string& path) {
  if (path.empty() || path.size() >= sizeof(sockaddr_un::sun_path))
    return unix_listen_error(path, path.empty() ? ENOENT : ENAMETOOLONG);
  if (auto taken = clear_socket_path(io_, path)) return taken;
  error_code error;
  local::acceptor acceptor(io_);
  acceptor.open(local(), error);
  const mode_t mask = ::umask(0177);
  if (!error) acceptor.bind(local::endpoint(path), error);
  ::umask(mask);
  if (!error) acceptor.listen(static_cast<int>(options_.connections_max), error);
  if (error) return unix_listen_error(path, error.value());
  unix_files_.emplace_back(path, file_at(path));
  const auto listener = std::make_shared<Listener<local::acceptor>>(std::move(acceptor));
  unix_listeners_.push_back(listener);
  tasks_.spawn(accept_loop(shared_from_this(), listener, HttpVia::unix_socket));
  return std::nullopt;
}

template <typename Acceptor>
asio::awaitable<void> HttpServer::Impl::accept_loop([[maybe_unused]] Self self,
                                                    std::shared_ptr<Listener<Acceptor>> listener,
                                                    HttpVia via) {
  while (listener->acceptor.is_open()) {
    auto connection =
        std::make_shared<Connection>(io_, via == HttpVia::tcp ? tls_.get() : nullptr, via,
                                     options_.header_bytes_max + options_.body_bytes_max);
    const auto [error] =
        co_await listener->acceptor.async_accept(connection->stream.socket(), as_values);
    if (!listener->acceptor.is_open()) break;
    if (!error) {
      admit(std::move(connection));
    } else if (error != asio::error::connection_aborted) {
      listener->retry.expires_after(accept_retry_delay);
      (void)co_await listener->retry.async_wait(as_values);
    }
  }
}

void HttpServer::Impl::admit(std::shared_ptr<Connection> connection) {
  if (connections_.size() >= options_.connections_max && !make_room()) {
    ++counters_.refused_full;
    return connection->close();
  }
  ++counters_.connections;
  connections_.push_back(connection);
  tasks_.spawn(serve(shared_from_this(), std::move(connection)));
}

// Connections that are silent or send a byte at a time must not keep others out: the oldest of them
// is closed.
bool HttpServer::Impl::make_room() {
  const auto idle = std::ranges::find_if(connections_, [](const auto& one) { return !one->busy; });
  if (idle == connections_.end()) return false;
  ++counters_.crowded_out;
  (*idle)->close();
  connections_.erase(idle);
  return true;
}

asio::awaitable<void> HttpServer::Impl::serve([[maybe_unused]] Self self,
                                              std::shared_ptr<Connection> connection) {
  // a variable, since GCC 12 -O3 miscompiles `while (… && co_await …)`
  bool again = co_await secure(*connection);
  while (again && !stopping_) again = co_await serve_one(connection);
  if (connection->timed_out) ++counters_.timeouts;
  if (connection->is_open()) co_await linger(*connection);
  connection->close();
  connections_.remove(connection);
}

asio::awaitable<bool> HttpServer::Impl::secure(Connection& connection) {
  HttpStream::TlsStream* tls = connection.stream.tls();
  if (tls == nullptr) co_return true;
  connection.deadline.arm_after(options_.read_timeout);
  const auto [error] = co_await tls->async_handshake(asio::ssl::stream_base::server, as_values);
  connection.deadline.cancel();
  co_return !error && connection.is_open();
}

// True if the connection can take another request.
asio::awaitable<bool> HttpServer::Impl::serve_one(const std::shared_ptr<Connection>& shared) {
  Connection& connection = *shared;
  HttpParser parser;
  connection.deadline.arm_after(options_.read_timeout);
  const error_code error = co_await read_request(connection, parser);
  connection.deadline.cancel();
  if (!connection.is_open()) co_return false;
  if (error) {  // not busy: it must not keep others out while the client takes its time
    auto refusal = refuse_unreadable(error, options_);
    if (refusal) (void)co_await write_response(connection, std::move(*refusal), false, false);
    co_return false;
  }
  connection.busy = true;
  const bool head = parser.get().method() == http::verb::head;
  HttpResponse response = co_await respond_to(connection, parser.get());
  if (response.stream) admit_stream(response);
  connection.body = response.stream;
  const std::shared_ptr<HttpBodyStream> body = connection.body;
  const bool keep_alive = parser.get().keep_alive() && !stopping_ && !body;
  const bool written = co_await write_response(connection, std::move(response), head, keep_alive);
  if (body) {
    if (!written || head) body->break_off();
    co_await send_stream(shared);
  }
  connection.busy = false;
  co_return written&& keep_alive;
}

asio::awaitable<error_code> HttpServer::Impl::read_request(Connection& connection,
                                                           HttpParser& parser) {
  parser.header_limit(static_cast<std::uint32_t>(options_.header_bytes_max));
  parser.body_limit(options_.body_bytes_max);
  auto [error, count] =
      co_await http::async_read_header(connection.stream, connection.buffer, parser, as_values);
  if (!error && parser.get()[http::field::expect] == "100-continue") {
    static constexpr std::string_view go_on = "HTTP/1.1 100 Continue\r\n\r\n";
    std::tie(error, count) =
        co_await asio::async_write(connection.stream, asio::buffer(go_on), as_values);
  }
  if (!error)
    std::tie(error, count) =
        co_await http::async_read(connection.stream, connection.buffer, parser, as_values);
  co_return error;
}

asio::awaitable<HttpResponse> HttpServer::Impl::respond_to(Connection& connection,
                                                           const HttpParser::value_type& message) {
  const auto target = parse_target(std::string(message.target()));
  if (!target)
    co_return problem(400, "bad-target", "The request's path is malformed",
                      "it must begin with '/' and be percent-encoded");
  const HttpRequest request = to_request(message, *target);
  if (auto refusal = refuse_request(request, options_, connection.via))
    co_return std::move(*refusal);
  co_return co_await ask_handler(connection, request);
}

asio::awaitable<HttpResponse> HttpServer::Impl::ask_handler(Connection& connection,
                                                            const HttpRequest& request) {
  const auto answer = std::make_shared<Answer>(io_);
  connection.answer = answer;
  {
    const auto responder = std::make_shared<Responder>(answer);
    handler_(request,
             [responder](HttpResponse response) { responder->answer->set(std::move(response)); });
  }
  if (!answer->response) {
    answer->ready.expires_after(options_.answer_timeout);
    (void)co_await answer->ready.async_wait(as_values);
  }
  connection.answer.reset();
  if (answer->response) co_return std::move(*answer->response);
  co_return problem(503, "no-answer", "The node did not answer in time", {},
                    "it is busy or stopping; try again");
}

asio::awaitable<bool> HttpServer::Impl::write_response(Connection& connection,
                                                       HttpResponse response, bool head,
                                                       bool keep_alive) {
  http::response<http::string_body> message = to_message(std::move(response), head, keep_alive);
  http::response_serializer<http::string_body> serializer(message);
  ++counters_.requests;
  arm_writing(connection);
  error_code error;
  std::size_t count = 0;
  if (head || message.count(http::field::content_length) == 0) {
    std::tie(error, count) =
        co_await http::async_write_header(connection.stream, serializer, as_values);
  } else {
    while (!error && !serializer.is_done()) {
      std::tie(error, count) =
          co_await http::async_write_some(connection.stream, serializer, as_values);
      wrote_some(connection);
    }
  }
  connection.deadline.cancel();
  co_return !error;
}

void HttpServer::Impl::arm_writing(Connection& connection) {
  if (!stopping_) return connection.deadline.arm_after(options_.write_timeout);
  connection.deadline.arm_at(std::min(EventLoop::now() + options_.stall_timeout, stop_by_));
}

void HttpServer::Impl::wrote_some(Connection& connection) {
  if (stopping_) arm_writing(connection);
}

// Room is kept for requests, which are short.
void HttpServer::Impl::admit_stream(HttpResponse& response) {
  const auto open =
      std::ranges::count_if(connections_, [](const auto& one) { return one->body != nullptr; });
  if (static_cast<std::size_t>(open) < options_.streams_max) {
    ++counters_.streams;
    return;
  }
  ++counters_.streams_refused;
  response.stream->break_off();
  response = problem(503, "streams-full", "Too many clients listen",
                     std::to_string(options_.streams_max) + " streams are open, the most there are",
                     "close a dashboard or another client of /v1/events");
}

// Until the handler closes the body, or the client is gone or too slow.
asio::awaitable<void> HttpServer::Impl::send_stream(std::shared_ptr<Connection> connection) {
  HttpBodyStream& body = *connection->body;
  asio::steady_timer changed(io_);
  body.on_change([&] {
    changed.cancel();
    if (body.overflowed()) connection->close();
  });
  if (stopping_) body.close();  // stop() has not seen it
  tasks_.spawn(watch_client(shared_from_this(), connection));
  error_code error;
  while (!error) {
    HttpBodyStream::Piece piece = body.front();
    if (!piece && !body.is_open()) break;
    if (!piece) {
      changed.expires_after(options_.keep_alive);
      const auto [woken] = co_await changed.async_wait(as_values);
      if (!woken) error = co_await send_piece(*connection, body.keep_alive());
      continue;
    }
    error = co_await send_piece(*connection, std::move(piece));
    body.pop();
  }
  body.on_change(nullptr);
  body.break_off();
  if (body.overflowed()) ++counters_.streams_dropped;
  connection->body.reset();
  error_code ignored;
  connection->stream.socket().cancel(ignored);  // ends watch_client()
}

asio::awaitable<error_code> HttpServer::Impl::send_piece(Connection& connection,
                                                         HttpBodyStream::Piece piece) {
  arm_writing(connection);
  const auto until_all = [&](const error_code& failed, std::size_t so_far) {
    if (!failed && so_far > 0) wrote_some(connection);
    return asio::transfer_all()(failed, so_far);
  };
  const auto [error, count] =
      co_await asio::async_write(connection.stream, asio::buffer(*piece), until_all, as_values);
  connection.deadline.cancel();
  co_return error;
}

// A client that listens has nothing to say: reading finds out that it has gone.
asio::awaitable<void> HttpServer::Impl::watch_client([[maybe_unused]] Self self,
                                                     std::shared_ptr<Connection> connection) {
  error_code failed;
  std::array<char, 4096> scratch;
  for (std::size_t drained = 0; !failed && drained < drain_bytes_max && connection->body;) {
    const auto [error, count] =
        co_await connection->stream.async_read_some(asio::buffer(scratch), as_values);
    failed = error;
    drained += count;
  }
  if (connection->body) connection->close();
}

// Closing while unread bytes wait would reset the connection, and the client might lose the answer.
asio::awaitable<void> HttpServer::Impl::linger(Connection& connection) {
  error_code failed;
  const auto longest = stopping_ ? options_.stall_timeout : options_.write_timeout;
  connection.deadline.arm_after(std::min(options_.read_timeout, longest));
  if (HttpStream::TlsStream* tls = connection.stream.tls())
    (void)co_await tls->async_shutdown(as_values);
  connection.stream.socket().shutdown(Socket::shutdown_send, failed);
  std::array<char, 4096> scratch;
  for (std::size_t drained = 0; !failed && drained < drain_bytes_max;) {
    const auto [error, count] =
        co_await connection.stream.socket().async_read_some(asio::buffer(scratch), as_values);
    failed = error;
    drained += count;
  }
  connection.deadline.cancel();
}

void HttpServer::Impl::stop(std::function<void()> done) {
  stopping_ = true;
  stop_by_ = EventLoop::now() + options_.write_timeout;
  for (const auto& listener : tcp_listeners_) listener->close();
  for (const auto& listener : unix_listeners_) listener->close();
  for (const auto& [path, file] : std::exchange(unix_files_, {}))
    if (file_at(path) == file) ::unlink(path.c_str());  // unless it is another daemon's by now
  for (const auto& connection : connections_) {
    if (!connection->busy) {
      connection->close();
      continue;
    }
    if (connection->answer)
      connection->deadline.arm_after(options_.write_timeout);
    else
      arm_writing(*connection);
    if (connection->body) connection->body->close();
  }
  tasks_.when_empty(std::move(done));
}

void HttpServer::Impl::abandon() {
  stop([] {});
  for (const auto& connection : std::exchange(connections_, {})) connection->close();
  handler_ = [](const HttpRequest&, const HttpRespond& respond) {
    respond(problem(503, "stopping", "The node is stopping"));
  };
}

HttpServer::HttpServer(EventLoop& loop, HttpHandler handler, HttpServerOptions options)
    : impl_(std::make_shared<Impl>(loop.io(), std::move(handler), std::move(options))) {}
HttpServer::~HttpServer() { impl_->abandon(); }

Result<Endpoint> HttpServer::listen(const Endpoint& where) { return impl_->listen(where); }
std::optional<Error> HttpServer::listen_unix(const std::string& path) {
  return impl_->listen_unix(path);
}
void HttpServer::stop(std::function<void()> done) { impl_->stop(std::move(done)); }
const HttpServerCounters& HttpServer::counters() const { return impl_->counters(); }

}  // namespace gossipd
