#include "net/http/guard.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <cctype>

namespace gossipd {
namespace {

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

std::string header(const HttpRequest& request, const std::string& name) {
  const auto found = request.headers.find(name);
  return found == request.headers.end() ? std::string() : found->second;
}

// "127.<number>.<number>.<number>", nothing looser, since "127.evil.example" is a name.
bool is_loopback_v4(const std::string& host) {
  if (!host.starts_with("127.")) return false;
  const bool digits = std::all_of(host.begin(), host.end(),
                                  [](char c) { return c == '.' || (c >= '0' && c <= '9'); });
  return digits && std::count(host.begin(), host.end(), '.') == 3;
}

bool host_allowed(const std::string& authority, const HttpServerOptions& options) {
  Endpoint named;
  if (!parse_endpoint(authority, rest_port_default, named)) return false;
  const std::string host = lower(named.host);
  if (host == "localhost" || host == "::1" || is_loopback_v4(host)) return true;
  return std::any_of(options.allowed_hosts.begin(), options.allowed_hosts.end(),
                     [&host](const std::string& allowed) { return lower(allowed) == host; });
}

bool token_matches(const HttpRequest& request, const std::string& token) {
  const std::string given = header(request, "authorization"), scheme = "bearer ";
  return given.size() == scheme.size() + token.size() &&
         lower(given.substr(0, scheme.size())) == scheme &&
         CRYPTO_memcmp(given.data() + scheme.size(), token.data(), token.size()) == 0;
}

}  // namespace

std::optional<HttpResponse> refuse_request(const HttpRequest& request,
                                           const HttpServerOptions& options, HttpVia via) {
  if (via == HttpVia::unix_socket) return std::nullopt;
  if (!options.bearer_token.empty()) {
    // A page that rebinds its name does not know the token, so Host may be anything.
    const auto& open = options.open_paths;
    if (std::find(open.begin(), open.end(), request.path) != open.end()) return std::nullopt;
    if (token_matches(request, options.bearer_token)) return std::nullopt;
    HttpResponse response = problem(
        401, "unauthorised", "A token is needed", "the request carries no token, or another one",
        "send the header 'Authorization: Bearer TOKEN' with the token of this node");
    response.headers.emplace_back("WWW-Authenticate", "Bearer realm=\"gossipd\"");
    return response;
  }
  const std::string host = header(request, "host");
  if (!options.read_by_all && !host_allowed(host, options)) {
    return problem(421, "wrong-host", "The request names another host", "Host is '" + host + "'",
                   "use 127.0.0.1 or localhost; under any other name once rest.token_file is set");
  }
  const std::string origin = header(request, "origin");
  if (!origin.empty() && lower(origin) != "http://" + lower(host)) {
    return problem(403, "cross-origin", "The request comes from another site's page",
                   "Origin is '" + origin + "'");
  }
  return std::nullopt;
}

}  // namespace gossipd
