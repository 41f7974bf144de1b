// daemon/rest/serve.h - REST where and how the configuration wants it: address, token, certificate.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "daemon/config/config.h"
#include "daemon/rest/rest.h"
#include "net/http/server.h"

namespace gossipd {

// What is wrong with the token file, before a node makes anything; nothing: it is right, or there
// is none.
[[nodiscard]] std::optional<Error> check_token(const DaemonConfig& config);

// Null: the configuration wants none. `advertised` is one of the names that a certificate of the
// node's own is for; it lies in `state_dir`. `loop` and `port` must outlive the server.
// Codes "bad-config", "listen" and those of HttpServer::listen().
[[nodiscard]] Result<std::unique_ptr<HttpServer>> serve_rest(EventLoop& loop, DaemonPort& port,
                                                             const DaemonConfig& config,
                                                             const std::filesystem::path& state_dir,
                                                             const Endpoint& advertised);

// Null: the configuration wants none. Serves /metrics, /livez and /readyz to everybody, in plain
// text. Codes of HttpServer::listen().
[[nodiscard]] Result<std::unique_ptr<HttpServer>> serve_metrics(EventLoop& loop, DaemonPort& port,
                                                                const DaemonConfig& config);

}  // namespace gossipd
