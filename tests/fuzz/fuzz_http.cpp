// Our part of a request after Beast has parsed it: the target, the guard (token, Host, Origin) and
// the router. The input's lines are the target, the method, and headers as `name: value`.
#include <strings.h>

#include <cstdint>
#include <sstream>

#include "core/base/result.h"
#include "net/http/guard.h"
#include "net/http/router.h"
#include "net/http/url.h"

using namespace gossipd;

namespace {

HttpRequest read_request(std::istringstream& lines, const UrlTarget& target) {
  HttpRequest request{.path = target.path, .query = target.query};
  std::getline(lines, request.method);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t colon = line.find(": ");
    if (colon != std::string::npos) request.headers[line.substr(0, colon)] = line.substr(colon + 2);
  }
  return request;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::istringstream lines(std::string(reinterpret_cast<const char*>(data), size));
  std::string text;
  std::getline(lines, text);
  for (const UrlPart part : {UrlPart::path, UrlPart::query})
    GOSSIPD_ASSERT(url_decode(url_encode(text), part) == text);
  const auto target = parse_target(text);
  if (!target) return 0;
  GOSSIPD_ASSERT(!target->path.empty() && target->path.front() == '/');

  const HttpRequest request = read_request(lines, *target);
  HttpServerOptions with_token;
  with_token.bearer_token = "0123456789abcdef";
  const auto authorization = request.headers.find("authorization");
  // RFC 9110, 11.1: the scheme's case does not matter, the token's does.
  const std::string scheme = "bearer ", &token = with_token.bearer_token;
  const bool knows_it =
      authorization != request.headers.end() &&
      ::strncasecmp(authorization->second.c_str(), scheme.c_str(), scheme.size()) == 0 &&
      authorization->second.compare(scheme.size(), std::string::npos, token) == 0;
  with_token.open_paths = {"/livez"};
  GOSSIPD_ASSERT(refuse_request(request, with_token, HttpVia::tcp).has_value() ==
                 !(knows_it || request.path == "/livez"));
  if (const auto refused = refuse_request(request, {}, HttpVia::tcp))
    GOSSIPD_ASSERT(refused->status >= 400 && !refused->body.empty());

  HttpRouter router;
  bool handled = false;
  router.add("GET", "/v1/status", [&](const HttpRequest&) {
    handled = true;
    return HttpResponse{};
  });
  int answers = 0;
  router(request, [&](const HttpResponse& response) {
    ++answers;
    GOSSIPD_ASSERT(handled == (response.status == 200));
  });
  GOSSIPD_ASSERT(answers == 1 &&
                 handled == (request.path == "/v1/status" && request.method == "GET"));
  return 0;
}
