#include "net/http/server.h"

#include <sys/stat.h>
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
#include "net/http/guard.h"
#include "net/http/stream.h"
#include "net/http/url.h"
#include "net/task_group.h"

namespace gossipd {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;
using local = asio::local::stream_protocol;
using Socket = HttpStream::Socket;
using Parser = http::request_parser<http::string_body>;

namespace {

constexpr auto as_values = asio::as_tuple(asio::use_awaitable);
constexpr std::chrono::milliseconds accept_retry_delay{100};
constexpr std::size_t drain_bytes_max = 256 * 1024;

// Shared by the waiting connection and the handler's HttpRespond, whichever lives longer.
struct Answer {
  explicit Answer(asio::io_context& io) : ready(io, asio::steady_timer::time_point::max()) {}
  std::optional<HttpResponse> response;
  asio::steady_timer ready;

  void set(HttpResponse given) {
    if (response) return;
    response = std::move(given);
    ready.cancel();
  }
};

// Held by an HttpRespond; when its last copy ends without an answer, that is answered with 500.
struct Responder {
  explicit Responder(std::shared_ptr<Answer> answer_in) : answer(std::move(answer_in)) {}
  ~Responder() { answer->set(problem(500, "internal", "The request was not answered")); }
  Responder(const Responder&) = delete;
  Responder& operator=(const Responder&) = delete;
  std::shared_ptr<Answer> answer;
};

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
  std::shared_ptr<Answer> answer;  // being waited for

  [[nodiscard]] bool is_open() { return stream.socket().is_open(); }
  void close() {
    error_code ignored;
    stream.socket().close(ignored);
    if (answer) answer->ready.cancel();
  }
  void cut() {
    timed_out = true;
    close();
  }
};

HttpRequest to_request(const Parser::value_type& message, const UrlTarget& target) {
  HttpRequest request;
  request.method =
      message.method() == http::verb::head ? "GET" : std::string(message.method_string());
  request.path = target.path;
  request.query = target.query;
  request.body = message.body();
  for (const auto& field : message) {
    std::string name(field.name_string());
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    request.headers[name] = std::string(field.value());
  }
  return request;
}

// nullopt: the connection has ended.
std::optional<HttpResponse> refuse_unreadable(const error_code& error,
                                              const HttpServerOptions& options) {
  if (error == http::error::header_limit || error == http::error::buffer_overflow) {
    return problem(431, "header-too-large", "The request's header is too large",
                   "at most " + std::to_string(options.header_bytes_max) + " bytes are read");
  }
  if (error == http::error::body_limit) {
    return problem(413, "body-too-large", "The request's body is too large",
                   "at most " + std::to_string(options.body_bytes_max) + " bytes are read");
  }
  if (error == http::error::end_of_stream || error == http::error::partial_message)
    return std::nullopt;
  if (error.category() == make_error_code(http::error::bad_method).category()) {
    return problem(400, "bad-request", "This is not an HTTP request", error.message());
  }
  return std::nullopt;
}

http::response<http::string_body> to_message(HttpResponse response, bool head, bool keep_alive) {
  http::response<http::string_body> message(static_cast<http::status>(response.status), 11);
  message.set(http::field::server, "gossipd");
  message.set(http::field::content_type, response.content_type);
  message.set(http::field::cache_control, "no-store");
  message.set("X-Content-Type-Options", "nosniff");
  for (const auto& [name, value] : response.headers) message.set(name, value);
  message.keep_alive(keep_alive);
  message.content_length(response.body.size());  // for HEAD, of the omitted body
  if (!head) message.body() = std::move(response.body);
  return message;
}

Result<std::shared_ptr<asio::ssl::context>> read_tls(const CertificateFiles& files) {
  auto context = std::make_shared<asio::ssl::context>(asio::ssl::context::tls_server);
  error_code error;
  (void)context->set_options(asio::ssl::context::no_tlsv1 | asio::ssl::context::no_tlsv1_1 |
                                 asio::ssl::context::single_dh_use,
                             error);
  if (!error) (void)context->use_certificate_chain_file(files.certificate, error);
  if (error)
    return Error{"certificate",
                 files.certificate + ": no certificate can be read from it: " + error.message()};
  (void)context->use_private_key_file(files.key, asio::ssl::context::pem, error);
  if (error)
    return Error{"certificate", files.key + ": it holds no key of the certificate in " +
                                    files.certificate + ": " + error.message()};
  return context;
}

using FileIdentity = std::pair<dev_t, ino_t>;  // {0, 0}: no file
FileIdentity file_at(const std::string& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0 ? FileIdentity(status.st_dev, status.st_ino)
                                             : FileIdentity();
}

// Removes a socket that a crash left behind; anything else of that name stays and is an error.
std::optional<std::string> clear_socket_path(asio::io_context& io, const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return std::nullopt;  // bind() reports the rest
  if (!S_ISSOCK(status.st_mode))
    return "a file that is no socket lies there, and stays; move it away, or name another path";
  error_code error;
  local::socket probe(io);
  probe.open(local(), error);
  // a frozen daemon with a full queue would block us
  if (!error) probe.non_blocking(true, error);
  if (!error) probe.connect(local::endpoint(path), error);
  if (!error || error == asio::error::would_block || error == asio::error::in_progress)
    return "another process serves it; stop it, or name another path";
  if (error != asio::error::connection_refused) return error.message();
  ::unlink(path.c_str());
  return std::nullopt;
}

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
  asio::awaitable<bool> serve_one(Connection& connection);
  asio::awaitable<error_code> read_request(Connection& connection, Parser& parser);
  asio::awaitable<HttpResponse> respond_to(Connection& connection,
                                           const Parser::value_type& message);
  asio::awaitable<HttpResponse> ask_handler(Connection& connection, const HttpRequest& request);
  asio::awaitable<bool> write_response(Connection& connection, HttpResponse response, bool head,
                                       bool keep_alive);
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
  const auto fail = [&path](const std::string& why) {
    return Error{"listen", "cannot listen on " + path + ": " + why};
  };
  if (path.empty() || path.size() >= sizeof(sockaddr_un::sun_path))
    return fail("the path is empty or too long for a socket");
  if (const auto taken = clear_socket_path(io_, path)) return fail(*taken);
  error_code error;
  local::acceptor acceptor(io_);
  acceptor.open(local(), error);
  const mode_t mask = ::umask(0177);
  if (!error) acceptor.bind(local::endpoint(path), error);
  ::umask(mask);
  if (!error) acceptor.listen(static_cast<int>(options_.connections_max), error);
  if (error) return fail(error.message());
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
  while (again && !stopping_) again = co_await serve_one(*connection);
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
asio::awaitable<bool> HttpServer::Impl::serve_one(Connection& connection) {
  Parser parser;
  connection.deadline.arm_after(options_.read_timeout);
  const error_code error = co_await read_request(connection, parser);
  connection.deadline.cancel();
  if (!connection.is_open()) co_return false;
  connection.busy = true;
  if (error) {
    auto refusal = refuse_unreadable(error, options_);
    if (refusal) (void)co_await write_response(connection, std::move(*refusal), false, false);
    co_return false;
  }
  const bool head = parser.get().method() == http::verb::head;
  HttpResponse response = co_await respond_to(connection, parser.get());
  const bool keep_alive = parser.get().keep_alive() && !stopping_;
  const bool written = co_await write_response(connection, std::move(response), head, keep_alive);
  connection.busy = false;
  co_return written&& keep_alive;
}

asio::awaitable<error_code> HttpServer::Impl::read_request(Connection& connection, Parser& parser) {
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
                                                           const Parser::value_type& message) {
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
  connection.deadline.arm_after(options_.write_timeout);
  error_code error;
  std::size_t count = 0;
  if (head) {
    std::tie(error, count) =
        co_await http::async_write_header(connection.stream, serializer, as_values);
  } else {
    std::tie(error, count) = co_await http::async_write(connection.stream, serializer, as_values);
  }
  connection.deadline.cancel();
  co_return !error;
}

// Closing while unread bytes wait would reset the connection, and the client might lose the answer.
asio::awaitable<void> HttpServer::Impl::linger(Connection& connection) {
  error_code failed;
  connection.deadline.arm_after(std::min(options_.read_timeout, options_.write_timeout));
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
  for (const auto& listener : tcp_listeners_) listener->close();
  for (const auto& listener : unix_listeners_) listener->close();
  for (const auto& [path, file] : std::exchange(unix_files_, {}))
    if (file_at(path) == file) ::unlink(path.c_str());  // unless it is another daemon's by now
  for (const auto& connection : connections_) {
    if (connection->busy) {
      connection->deadline.arm_after(options_.write_timeout);
    } else {
      connection->close();
    }
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
