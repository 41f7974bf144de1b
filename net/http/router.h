// net/http/router.h - from method and path to a handler; answers 404 and 405 itself.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "net/http/message.h"

namespace gossipd {

class HttpRouter {
 public:
  // Paths match exactly; a path may be added once per method. HEAD is served by GET.
  void add(const std::string& method, const std::string& path, HttpHandler handler);
  // A handler that answers at once.
  void add(const std::string& method, const std::string& path,
           std::function<HttpResponse(const HttpRequest&)> handler);

  void operator()(const HttpRequest& request, HttpRespond respond) const;
  [[nodiscard]] std::vector<std::string> paths() const;
  // Method and path of each handler.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> routes() const;

 private:
  std::map<std::string, std::map<std::string, HttpHandler>> routes_;  // path → method → handler
};

}  // namespace gossipd
