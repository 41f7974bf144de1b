// Answers without an end, over real sockets: the test is a client that reads as it likes.
#include <atomic>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/write.hpp>
#include <future>
#include <thread>

#include "net/http/body_stream.h"
#include "net/http/certificate.h"
#include "net/http/server.h"
#include "net_test_support.h"

using namespace gossipd;
using namespace gossipd::test;
using namespace std::chrono_literals;

namespace {

HttpBodyStream::Piece piece(std::string text) {
  return std::make_shared<const std::string>(std::move(text));
}

// A server whose every path answers with a stream; the test writes to all of them.
class StreamService {
  EventLoop loop_;  // first, so that it outlives the server

 public:
  explicit StreamService(HttpServerOptions options = {}, std::size_t bytes_max = 1u << 20) {
    server.emplace(loop_,
                   HttpHandler([this, bytes_max](const HttpRequest&, const HttpRespond& respond) {
                     HttpResponse response;
                     response.content_type = "text/event-stream";
                     response.stream = std::make_shared<HttpBodyStream>(": alive\n\n", bytes_max);
                     streams_.push_back(response.stream);
                     respond(std::move(response));
                   }),
                   std::move(options));
  }
  ~StreamService() { stop(); }
  void start(const std::string& unix_path = {}) {
    if (!unix_path.empty()) {
      const auto error = server->listen_unix(unix_path);
      REQUIRE_MESSAGE(!error, (error ? error->text : ""));
    } else {
      const auto bound = server->listen({"127.0.0.1", 0});
      REQUIRE(bound);
      where = *bound;
    }
    thread_ = std::thread([this] { loop_.run(); });
  }
  void stop() {
    if (!thread_.joinable()) return;
    loop_.post([this] { server->stop([this] { loop_.stop(); }); });
    thread_.join();
  }
  // Runs on the loop, and waits for it.
  template <typename F>
  auto on_loop(F what) {
    std::promise<decltype(what())> result;
    loop_.post([&] {
      if constexpr (std::is_void_v<decltype(what())>) {
        what();
        result.set_value();
      } else {
        result.set_value(what());
      }
    });
    return result.get_future().get();
  }
  std::size_t open() {
    return on_loop([this] {
      return static_cast<std::size_t>(
          std::ranges::count_if(streams_, [](const auto& one) { return one->is_open(); }));
    });
  }
  void write(const std::string& text) {
    on_loop([&] {
      for (const auto& stream : streams_) (void)stream->write(piece(text));
    });
  }
  HttpServerCounters counters() {
    return on_loop([this] { return server->counters(); });
  }
  template <typename F>
  void wait_until(F holds) {
    const auto end = std::chrono::steady_clock::now() + patience;
    while (!holds()) {
      REQUIRE(std::chrono::steady_clock::now() < end);
      std::this_thread::yield();
    }
  }

  Endpoint where;
  std::optional<HttpServer> server;

 private:
  std::vector<std::shared_ptr<HttpBodyStream>> streams_;
  std::thread thread_;
};

// One connection that has sent its request.
template <typename Socket = tcp::socket>
class Reader {
 public:
  explicit Reader(StreamService& service, const std::string& extra = {}) : socket_(io_) {
    socket_.connect(tcp::endpoint(asio::ip::make_address(service.where.host), service.where.port));
    request("GET /any HTTP/1.1\r\nHost: " + to_string(service.where) + "\r\n" + extra + "\r\n");
  }
  explicit Reader(const std::string& unix_path) : socket_(io_) {
    socket_.connect(asio::local::stream_protocol::endpoint(unix_path));
    request("GET /any HTTP/1.1\r\nHost: localhost\r\n\r\n");
  }
  void request(const std::string& words) { asio::write(socket_, asio::buffer(words)); }
  // Everything up to and with `mark`; without it what came before the end.
  std::string until(const std::string& mark) {
    std::array<char, 4096> buffer;
    boost::system::error_code error;
    while (seen_.find(mark) == std::string::npos && !error)
      seen_.append(buffer.data(), socket_.read_some(asio::buffer(buffer), error));
    const std::size_t at = seen_.find(mark);
    const std::string taken = seen_.substr(0, at == std::string::npos ? at : at + mark.size());
    seen_.erase(0, taken.size());
    return taken;
  }
  std::string to_the_end() { return until(std::string("\0never", 6)); }
  void close() { socket_.close(); }
  Socket& socket() { return socket_; }

 private:
  asio::io_context io_;
  Socket socket_;
  std::string seen_;
};

}  // namespace

TEST_CASE("a stream has no length, and sends each piece when it is written") {
  StreamService service;
  service.start();
  Reader reader(service);
  const std::string head = reader.until("\r\n\r\n");
  CHECK(head.starts_with("HTTP/1.1 200"));
  CHECK(head.find("text/event-stream") != std::string::npos);
  CHECK(head.find("Content-Length") == std::string::npos);
  CHECK(head.find("Connection: close") != std::string::npos);
  service.write("data: one\n\n");
  CHECK(reader.until("\n\n") == "data: one\n\n");
  service.write("data: two\n\n");
  CHECK(reader.until("\n\n") == "data: two\n\n");
}

TEST_CASE("a stream that has nothing to say sends its keep-alive") {
  StreamService service({.keep_alive = 20ms});
  service.start();
  Reader reader(service);
  (void)reader.until("\r\n\r\n");
  CHECK(reader.until("\n\n") == ": alive\n\n");
  CHECK(reader.until("\n\n") == ": alive\n\n");
}

TEST_CASE("a client that goes is noticed without a word being written") {
  StreamService service;
  service.start();
  Reader reader(service);
  (void)reader.until("\r\n\r\n");
  CHECK(service.open() == 1);
  reader.close();
  service.wait_until([&] { return service.open() == 0; });
}

TEST_CASE("a client that talks while it listens is cut off in the end") {
  StreamService service;
  service.start();
  Reader reader(service);
  (void)reader.until("\r\n\r\n");
  boost::system::error_code error;
  const std::string noise(64 * 1024, 'x');
  while (!error) asio::write(reader.socket(), asio::buffer(noise), error);
  service.wait_until([&] { return service.open() == 0; });
}

TEST_CASE("a slow reader is dropped when its queue is full, and the others are not") {
  StreamService service({}, 256 * 1024);
  service.start();
  Reader slow(service);
  (void)slow.until("\r\n\r\n");
  Reader quick(service);
  (void)quick.until("\r\n\r\n");
  std::size_t read = 0;
  const std::string text = std::string(64 * 1024, 'x') + "\n\n";
  while (service.counters().streams_dropped == 0) {
    service.write(text);
    read += quick.until("\n\n").size();
  }
  CHECK(service.open() == 1);
  CHECK(read % text.size() == 0);
  service.write("data: still here\n\n");
  CHECK(quick.until("\n\n") == "data: still here\n\n");
}

TEST_CASE("a reader that stops is cut off at the write timeout, its queue not yet full") {
  StreamService service({.write_timeout = 50ms}, 64u << 20);
  service.start();
  Reader reader(service);
  (void)reader.until("\r\n\r\n");
  service.write(std::string(16u << 20, 'x'));  // more than the sockets' buffers hold
  service.wait_until([&] { return service.open() == 0; });
  CHECK(service.counters().timeouts == 1);
}

TEST_CASE("streams beyond the maximum are refused, and requests still have room") {
  StreamService service({.connections_max = 4, .streams_max = 2});
  service.start();
  Reader first(service);
  (void)first.until("\r\n\r\n");
  {
    Reader second(service);
    (void)second.until("\r\n\r\n");
    Reader third(service);
    const std::string refusal = third.until("}");
    CHECK(refusal.starts_with("HTTP/1.1 503"));
    CHECK(refusal.find("streams-full") != std::string::npos);
    CHECK(service.counters().streams_refused == 1);
    third.close();
  }
  // The second has gone, so there is room again.
  service.wait_until([&] { return service.open() == 1; });
  service.wait_until([&] {
    Reader again(service);
    return again.until("\r\n\r\n").starts_with("HTTP/1.1 200");
  });
}

TEST_CASE("a flood of connections never crowds out a client that listens") {
  StreamService service({.connections_max = 4});
  service.start();
  Reader reader(service);
  (void)reader.until("\r\n\r\n");
  asio::io_context io;
  std::vector<tcp::socket> flood;
  for (int n = 0; n < 40; ++n) {
    flood.emplace_back(io).connect(
        tcp::endpoint(asio::ip::make_address(service.where.host), service.where.port));
  }
  service.wait_until([&] { return service.counters().crowded_out >= 30; });
  service.write("data: heard\n\n");
  CHECK(reader.until("\n\n") == "data: heard\n\n");
}

TEST_CASE("a server that stops sends what waits and ends its streams") {
  StreamService service;
  service.start();
  Reader reader(service);
  (void)reader.until("\r\n\r\n");
  service.write("data: last words\n\n");
  service.stop();
  CHECK(reader.to_the_end() == "data: last words\n\n");
}

TEST_CASE("a server that stops does not wait for ever for a client that does not read") {
  StreamService service({.write_timeout = 50ms}, 64u << 20);
  service.start();
  Reader reader(service);
  (void)reader.until("\r\n\r\n");
  for (int n = 0; n < 16; ++n) service.write(std::string(1u << 20, 'x'));
  service.stop();  // returns
  CHECK(service.server->counters().streams == 1);
}

TEST_CASE("a server that stops cuts a client that stands still, however long it may write") {
  StreamService service({.read_timeout = 1h, .write_timeout = 1h, .stall_timeout = 50ms},
                        64u << 20);
  service.start();
  Reader idle(service), full(service);
  for (Reader<>* reader : {&idle, &full}) (void)reader->until("\r\n\r\n");
  SUBCASE("with all that it is to get in the buffers of its socket") {}
  SUBCASE("with more than they hold") { service.write(std::string(16u << 20, 'x')); }
  service.stop();  // returns, though neither ends its connection
}

TEST_CASE("a server that stops waits for a slow client as long as it reads") {
  StreamService service({.write_timeout = 1h, .stall_timeout = 3s}, 64u << 20);
  service.start();
  Reader reader(service);
  (void)reader.until("\r\n\r\n");
  const std::size_t bytes = 24u << 20;
  service.write(std::string(bytes, 'x'));
  std::jthread stops([&] { service.stop(); });
  std::size_t read = 0;
  boost::system::error_code error;
  std::vector<char> buffer(1u << 20);
  while (!error) {  // well beyond the stall timeout in all
    read += asio::read(reader.socket(), asio::buffer(buffer), error);
    std::this_thread::sleep_for(200ms);
  }
  CHECK(error == asio::error::eof);
  CHECK(read == bytes);
}

TEST_CASE("HEAD of a stream answers without one") {
  StreamService service;
  service.start();
  asio::io_context io;
  tcp::socket socket(io);
  socket.connect(tcp::endpoint(asio::ip::make_address(service.where.host), service.where.port));
  asio::write(socket,
              asio::buffer("HEAD /any HTTP/1.1\r\nHost: " + to_string(service.where) + "\r\n\r\n"));
  std::string all;
  std::array<char, 4096> buffer;
  boost::system::error_code error;
  while (!error) all.append(buffer.data(), socket.read_some(asio::buffer(buffer), error));
  CHECK(all.starts_with("HTTP/1.1 200"));
  CHECK(all.ends_with("\r\n\r\n"));
  service.wait_until([&] { return service.open() == 0; });
}

TEST_CASE("a stream is guarded like any answer: token, Host and Origin") {
  SUBCASE("another site's page") {
    StreamService service;
    service.start();
    Reader reader(service, "Origin: http://evil.example\r\n");
    CHECK(reader.until("\r\n\r\n").starts_with("HTTP/1.1 403"));
  }
  SUBCASE("no token, then the token") {
    StreamService service({.bearer_token = "0123456789abcdef"});
    service.start();
    Reader without(service);
    CHECK(without.until("\r\n\r\n").starts_with("HTTP/1.1 401"));
    Reader with(service, "Authorization: Bearer 0123456789abcdef\r\n");
    CHECK(with.until("\r\n\r\n").starts_with("HTTP/1.1 200"));
  }
}

TEST_CASE("a stream runs over a Unix socket") {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("gossipd-stream-" + std::to_string(::getpid())))
          .string();
  StreamService service;
  service.start(path);
  Reader<asio::local::stream_protocol::socket> reader(path);
  (void)reader.until("\r\n\r\n");
  service.write("data: local\n\n");
  CHECK(reader.until("\n\n") == "data: local\n\n");
}

TEST_CASE("a stream runs over TLS, to its end") {
  const auto directory =
      std::filesystem::temp_directory_path() / ("gossipd-tls-" + std::to_string(::getpid()));
  std::filesystem::create_directories(directory);
  const CertificateFiles files{(directory / "c.pem").string(), (directory / "k.pem").string()};
  REQUIRE(ensure_certificate(files, {"localhost", "127.0.0.1"}));
  StreamService service({.tls = files});
  service.start();
  asio::io_context io;
  asio::ssl::context context(asio::ssl::context::tls_client);
  asio::ssl::stream<tcp::socket> stream(io, context);
  stream.next_layer().connect(
      tcp::endpoint(asio::ip::make_address(service.where.host), service.where.port));
  stream.handshake(asio::ssl::stream_base::client);
  asio::write(stream,
              asio::buffer("GET /any HTTP/1.1\r\nHost: " + to_string(service.where) + "\r\n\r\n"));
  std::string seen;
  std::array<char, 4096> buffer;
  boost::system::error_code error;
  while (seen.find("\r\n\r\n") == std::string::npos)
    seen.append(buffer.data(), stream.read_some(asio::buffer(buffer)));
  service.write("data: secret\n\n");
  service.stop();
  while (!error) seen.append(buffer.data(), stream.read_some(asio::buffer(buffer), error));
  CHECK(seen.ends_with("data: secret\n\n"));
  CHECK(error == asio::error::eof);  // TLS's own end, so nothing was cut off
  std::filesystem::remove_all(directory);
}
