// net/http/client.h - one blocking HTTP or HTTPS request, for gossipctl and tests.
#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <string>

#include "core/base/result.h"
#include "core/base/types.h"
#include "net/http/message.h"
#include "net/http/url.h"

namespace gossipd {

struct HttpCall {
  Endpoint server{"127.0.0.1", rest_port_default};
  std::string unix_path;  // when set, used instead of `server`
  bool tls = false;       // https; never on a Unix socket
  // PEM: the accepted signers of the server's certificate, or that certificate; "" for the system's
  std::string ca_file;
  std::string method = "GET";
  std::string target = "/";                    // path and query, encoded
  std::string body;                            // sent as application/json
  std::map<std::string, std::string> headers;  // for example {"Authorization", "Bearer …"}
  // For everything: look-up, connect, answer. A name server that is silent may hold up the return
  // for as long as the system's resolver takes.
  std::chrono::milliseconds timeout{10'000};
  std::size_t response_bytes_max = 64 * 1024 * 1024;
};

// Any status is a success here. Errors: "no-daemon" (nothing listens there), "resolve", "timeout",
// "bad-response" (not HTTP, or too long), "broke-off" (the connection ended before the answer did),
// "untrusted" (its certificate), "plain" (a token is not sent beyond loopback without TLS),
// "connect" (any other failure to get there).
[[nodiscard]] Result<HttpResponse> http_call(const HttpCall& call);

}  // namespace gossipd
