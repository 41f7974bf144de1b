#include "net/http/router.h"

#include <utility>

#include "core/base/result.h"

namespace gossipd {

void HttpRouter::add(const std::string& method, const std::string& path, HttpHandler handler) {
  GOSSIPD_ASSERT(path.starts_with('/') && handler);
  const bool added = routes_[path].emplace(method, std::move(handler)).second;
  GOSSIPD_ASSERT(added);
}

void HttpRouter::add(const std::string& method, const std::string& path,
                     std::function<HttpResponse(const HttpRequest&)> handler) {
  add(method, path,
      HttpHandler(
          [handler = std::move(handler)](const HttpRequest& request, const HttpRespond& respond) {
            respond(handler(request));
          }));
}

void HttpRouter::operator()(const HttpRequest& request, HttpRespond respond) const {
  const auto route = routes_.find(request.path);
  if (route == routes_.end()) {
    return respond(problem(404, "not-found", "There is no such path",
                           "'" + request.path + "' is not served here",
                           "see the REST section of the documentation for the paths"));
  }
  const auto handler = route->second.find(request.method);
  if (handler != route->second.end()) return handler->second(request, std::move(respond));
  std::string allowed;
  for (const auto& [method, unused] : route->second)
    allowed += (allowed.empty() ? "" : ", ") + method;
  HttpResponse response = problem(405, "method-not-allowed", "The path does not take this method",
                                  request.path + " takes " + allowed + ", not " + request.method);
  response.headers.emplace_back("Allow", allowed);
  respond(std::move(response));
}

std::vector<std::string> HttpRouter::paths() const {
  std::vector<std::string> paths;
  for (const auto& [path, methods] : routes_) paths.push_back(path);
  return paths;
}

std::vector<std::pair<std::string, std::string>> HttpRouter::routes() const {
  std::vector<std::pair<std::string, std::string>> routes;
  for (const auto& [path, methods] : routes_)
    for (const auto& [method, handler] : methods) routes.emplace_back(method, path);
  return routes;
}

}  // namespace gossipd
