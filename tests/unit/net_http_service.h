// tests/unit/net_http_service.h - an HTTP server with a few routes, for tests that are its clients.
#pragma once

#include <atomic>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "net/http/client.h"
#include "net/http/router.h"
#include "net/http/server.h"
#include "net_test_support.h"

namespace gossipd::test {

// A server on its own thread; the test is the client. The destructor stops it in order.
class Service {
  EventLoop loop_;  // first, so that it outlives the server and the kept answers

 public:
  explicit Service(HttpServerOptions options = {}) {
    router_.add("GET", "/hello", [](const HttpRequest& request) {
      const auto name = request.query.find("name");
      return HttpResponse{.content_type = "text/plain",
                          .body = "hello " + (name == request.query.end() ? "you" : name->second),
                          .headers = {{"X-Extra", "1"}}};
    });
    router_.add("POST", "/echo", [](const HttpRequest& request) {
      return HttpResponse{.content_type = "text/plain", .body = request.body, .headers = {}};
    });
    router_.add("GET", "/later", HttpHandler([this](const HttpRequest&, HttpRespond respond) {
                  loop_.post([respond = std::move(respond)] {
                    respond(HttpResponse{.body = "\"late\"", .headers = {}});
                  });
                }));
    router_.add("GET", "/dropped", HttpHandler([](const HttpRequest&, const HttpRespond&) {}));
    router_.add("GET", "/never", HttpHandler([this](const HttpRequest&, HttpRespond respond) {
                  kept_.push_back(std::move(respond));
                  ++kept;
                }));
    router_.add("GET", "/livez", [](const HttpRequest&) { return HttpResponse{.headers = {}}; });
    server.emplace(loop_, HttpHandler([this](const HttpRequest& request, HttpRespond respond) {
                     router_(request, std::move(respond));
                   }),
                   std::move(options));
  }
  ~Service() { stop(); }
  void stop() {
    if (!thread_.joinable()) return;
    loop_.post([this] { server->stop([this] { loop_.stop(); }); });
    thread_.join();
  }
  void start() {
    const auto bound = server->listen({"127.0.0.1", 0});
    REQUIRE(bound);
    where = *bound;
    thread_ = std::thread([this] { loop_.run(); });
  }
  Result<HttpResponse> call(const std::string& method, const std::string& target,
                            const std::string& body = {},
                            std::map<std::string, std::string> headers = {}) const {
    return http_call({.server = where,
                      .unix_path = unix_path,
                      .method = method,
                      .target = target,
                      .body = body,
                      .headers = std::move(headers),
                      .timeout = std::chrono::seconds(30)});
  }
  // Sends bytes as they are, and returns everything until the server closes.
  std::string raw(const std::string& words) const {
    asio::io_context io;
    tcp::socket socket(io);
    socket.connect(tcp::endpoint(asio::ip::make_address(where.host), where.port));
    asio::write(socket, asio::buffer(words));
    std::string answer;
    std::array<char, 4096> buffer;
    boost::system::error_code error;
    while (!error) answer.append(buffer.data(), socket.read_some(asio::buffer(buffer), error));
    return answer;
  }

  Endpoint where;
  // Dropping what /never keeps answers it.
  void let_go() {
    loop_.post([this] { kept_.clear(); });
  }

  std::string unix_path;
  std::atomic<int> kept = 0;         // requests of /never so far
  std::optional<HttpServer> server;  // touched before start() and after stop() only

 private:
  HttpRouter router_;
  std::vector<HttpRespond> kept_;
  std::thread thread_;
};

}  // namespace gossipd::test
