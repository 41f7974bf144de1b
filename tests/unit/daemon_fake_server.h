// tests/unit/daemon_fake_server.h - gossipctl against a real HTTP server on loopback that serves a
// made-up daemon.
#pragma once

#include <doctest/doctest.h>

#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "daemon/rest/rest.h"
#include "net/http/server.h"
#include "tools/gossipctl/gossipctl.h"

namespace gossipd {

// Serves until it goes out of scope. The daemon may be changed before the first request only.
class FakeServer {
 public:
  explicit FakeServer(HttpHandler handler, HttpServerOptions options = {})
      : server_(loop_, std::move(handler), std::move(options)) {
    const auto bound = server_.listen({"127.0.0.1", 0});
    REQUIRE_MESSAGE(bound, (bound ? std::string() : bound.error().text));
    address_ = to_string(*bound);
    thread_ = std::thread([this] { loop_.run(); });
  }
  ~FakeServer() {
    loop_.post([this] { loop_.stop(); });  // not before it runs
    thread_.join();
  }
  [[nodiscard]] const std::string& address() const { return address_; }

 private:
  EventLoop loop_;
  HttpServer server_;
  std::string address_;
  std::thread thread_;
};

inline HttpHandler handler_of(DaemonPort& port) {
  return [router = make_rest(port)](const HttpRequest& request, HttpRespond respond) {
    router(request, std::move(respond));
  };
}

struct Ran {
  ExitCode code;
  std::string out;
  std::string err;
};

inline Ran gossipctl(std::vector<std::string> arguments,
                     std::map<std::string, std::string> environment = {}) {
  std::ostringstream out, err;
  const ExitCode code = run_gossipctl(arguments, environment, out, err);
  return {code, out.str(), err.str()};
}

}  // namespace gossipd
