// net/http/guard.h - admits or refuses a request by its token, Host and Origin. Pure.
//
// A web page anywhere can make its reader's browser send requests to 127.0.0.1. Two headers reveal
// it: Host, which after DNS rebinding still names the attacker's site, and Origin, which a browser
// adds to every request that could change something.
#pragma once

#include <optional>

#include "net/http/message.h"
#include "net/http/server.h"

namespace gossipd {

enum class HttpVia { tcp, unix_socket };

// nullopt admits the request. Codes: "unauthorised", "wrong-host", "cross-origin".
[[nodiscard]] std::optional<HttpResponse> refuse_request(const HttpRequest& request,
                                                         const HttpServerOptions& options,
                                                         HttpVia via);

}  // namespace gossipd
