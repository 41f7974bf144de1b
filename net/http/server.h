// net/http/server.h - a small HTTP/1.1 server on the event loop, for REST.
//
// Closed by default: TCP beyond loopback needs a bearer token, and TLS to keep it secret. Without a
// token, requests must name this host as a loopback or allowed name (a web page that rebinds its
// DNS name to 127.0.0.1 is refused), and a browser's Origin must be one of those names. Unix
// sockets are guarded by their file mode. Loop thread only.
//
// An answer may be a stream (net/http/message.h). It keeps its connection until it closes, its
// client goes or it reads too slowly; a connection that streams is never crowded out.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/base/types.h"
#include "net/event_loop.h"
#include "net/http/certificate.h"
#include "net/http/message.h"

namespace gossipd {

struct HttpServerOptions {
  std::size_t header_bytes_max = 16 * 1024;
  std::size_t body_bytes_max = 64 * 1024;
  std::size_t connections_max = 64;
  std::chrono::milliseconds read_timeout{10'000};   // for one whole request, or an idle connection
  std::chrono::milliseconds write_timeout{10'000};  // one whole response
  // A server that stops cuts a client that takes nothing of what it still is to get for so long.
  std::chrono::milliseconds stall_timeout{1'000};
  std::chrono::milliseconds answer_timeout{60'000};  // the handler's answer; then 503
  std::size_t streams_max = 16;                      // answers without an end; then 503
  std::chrono::milliseconds keep_alive{15'000};      // of such an answer that has nothing to say
  std::vector<std::string> allowed_hosts;            // besides localhost, 127.0.0.0/8 and [::1]
  // if set, every TCP request must carry it ...
  std::string bearer_token;
  std::vector<std::string> open_paths = {"/livez", "/readyz"};  // ... except for these
  // Answers hold no secret and change nothing: everybody may read them, in plain text and by any
  // name of this host. Pages of other sites are refused all the same.
  bool read_by_all = false;
  std::optional<CertificateFiles> tls;  // if set, every TCP connection is TLS (at least 1.2)
};

struct HttpServerCounters {
  std::uint64_t connections = 0;  // accepted
  std::uint64_t requests = 0;     // answered, by whatever status
  // connections refused because connections_max others had requests being answered
  std::uint64_t refused_full = 0;
  std::uint64_t crowded_out = 0;      // idle connections closed for a newcomer
  std::uint64_t timeouts = 0;         // connections cut for being too slow
  std::uint64_t streams = 0;          // begun
  std::uint64_t streams_refused = 0;  // because streams_max others were open
  std::uint64_t streams_dropped = 0;  // their clients read slower than they were written
};

class HttpServer {
 public:
  // `loop` must outlive the server. `handler` is called on the loop.
  HttpServer(EventLoop& loop, HttpHandler handler, HttpServerOptions options = {});
  ~HttpServer();  // drops what is still open
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // As PeerTransport::listen. Errors: "listen", "token-needed", "tls-needed", "certificate"
  // (unreadable, or not of that key).
  [[nodiscard]] Result<Endpoint> listen(const Endpoint& where);
  // Creates the socket file with mode 0600 and replaces only a socket that nobody listens on.
  // stop() removes it. Errors: "listen", or "bad-config" where it stays so until somebody changes
  // the path or its rights.
  [[nodiscard]] std::optional<Error> listen_unix(const std::string& path);

  // Lets pending answers finish and sends what waits in streams (at most write_timeout, and to a
  // client that reads nothing for stall_timeout no more), then calls `done` once from the loop.
  void stop(std::function<void()> done);
  [[nodiscard]] const HttpServerCounters& counters() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;  // shared with the running coroutines
};

}  // namespace gossipd
