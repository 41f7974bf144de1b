#include "daemon/rest/serve.h"

#include "core/base/printable.h"
#include "daemon/log/log.h"
#include "daemon/rest/live.h"
#include "net/peer/secret_file.h"

namespace gossipd {

namespace {

constexpr std::size_t token_bytes_min = 16;
constexpr std::size_t metrics_connections_max = 16;

// The operator's to put right, but for what may pass.
Error of_setting(const char* setting, const Error& error) {
  const bool may_pass = error.code == "io-error" || error.code == "no-space";
  return Error{may_pass ? error.code : "bad-config", std::string(setting) + ": " + error.text};
}

Result<std::string> read_token(const std::string& path) {
  const Result<SecretText> file = read_secret_file(path, SharedKeyFile::refuse, token_file);
  if (!file) return of_setting("rest.token_file", file.error());
  const std::size_t end = file->text().find_last_not_of(" \t\r\n");
  std::string token = file->text().substr(0, end == std::string::npos ? 0 : end + 1);
  if (token.size() < token_bytes_min)
    return Error{"bad-config",
                 "rest.token_file: " + path +
                     " holds fewer than 16 characters; make one with: openssl rand -hex 32"};
  return token;
}

// nullopt: REST is plain, on loopback or a Unix socket.
Result<std::optional<CertificateFiles>> certificate_for(const DaemonConfig& config,
                                                        const std::filesystem::path& state_dir,
                                                        const Endpoint& advertised) {
  Endpoint where;
  const bool on_tcp =
      !config.rest.starts_with("unix:") && parse_endpoint(config.rest, rest_port_default, where);
  if (!on_tcp || (config.rest_tls == "auto" && is_loopback(where)))
    return std::optional<CertificateFiles>();
  CertificateFiles files{config.rest_certificate, config.rest_key};
  if (files.certificate.empty()) {
    files = {state_dir / "rest-certificate.pem", state_dir / "rest-key.pem"};
    const Result<std::string> defect = ensure_certificate(
        files, {"localhost", "127.0.0.1", "::1", config.name, where.host, advertised.host});
    if (!defect) return defect.error();
    if (!defect->empty())
      log_warning("rest: the certificate " + files.certificate + ", which gossipd had made, " +
                  *defect + "; it is made anew: clients that hold a copy need the new one");
  }
  const Result<std::string> fingerprint = certificate_fingerprint(files.certificate);
  if (!fingerprint) return fingerprint.error();
  log_line(Level::info, "event=rest-tls certificate=" + log_quoted(files.certificate) +
                            " sha256=" + *fingerprint);
  return std::optional(files);
}

}  // namespace

std::optional<Error> check_token(const DaemonConfig& config) {
  if (config.rest == "none" || config.rest_token_file.empty()) return std::nullopt;
  const Result<std::string> token = read_token(config.rest_token_file);
  if (!token) return token.error();
  return std::nullopt;
}

Result<std::unique_ptr<HttpServer>> serve_rest(EventLoop& loop, DaemonPort& port,
                                               const DaemonConfig& config,
                                               const std::filesystem::path& state_dir,
                                               const Endpoint& advertised) {
  std::unique_ptr<HttpServer> server;
  if (config.rest == "none") return server;
  HttpServerOptions options;
  if (!config.rest_token_file.empty()) {
    const Result<std::string> token = read_token(config.rest_token_file);
    if (!token) return token.error();
    options.bearer_token = *token;
  }
  for (std::string& path : dashboard_paths()) options.open_paths.push_back(std::move(path));
  auto certificate = certificate_for(config, state_dir, advertised);
  if (!certificate) return of_setting("rest.certificate", certificate.error());
  options.tls = *certificate;
  HttpRouter router = make_rest(port);
  add_dashboard(router);
  server = std::make_unique<HttpServer>(loop, std::move(router), options);
  if (config.rest.starts_with("unix:")) {
    if (const auto error = server->listen_unix(config.rest.substr(5)))
      return Error{error->code, "rest.listen: " + error->text};
    return server;
  }
  Endpoint where;
  GOSSIPD_ASSERT(parse_endpoint(config.rest, rest_port_default, where));
  const Result<Endpoint> bound = server->listen(where);
  if (!bound) return Error{bound.error().code, "rest.listen: " + bound.error().text};
  log_line(Level::info,
           "event=rest address=" + std::string(options.tls ? "https://" : "") + to_string(*bound));
  return server;
}

Result<std::unique_ptr<HttpServer>> serve_metrics(EventLoop& loop, DaemonPort& port,
                                                  const DaemonConfig& config) {
  std::unique_ptr<HttpServer> server;
  if (!config.metrics_listen) return server;
  HttpServerOptions options;
  options.read_by_all = true;
  options.connections_max = metrics_connections_max;
  server = std::make_unique<HttpServer>(loop, make_metrics(port), options);
  const Result<Endpoint> bound = server->listen(*config.metrics_listen);
  if (!bound) return Error{bound.error().code, "metrics.listen: " + bound.error().text};
  log_line(Level::info, "event=metrics address=" + to_string(*bound));
  return server;
}

}  // namespace gossipd
