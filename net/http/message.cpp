#include "net/http/message.h"

#include <nlohmann/json.hpp>

namespace gossipd {

HttpResponse problem(int status, const std::string& code, const std::string& title,
                     const std::string& detail, const std::string& hint) {
  nlohmann::ordered_json document = {
      {"type", "about:blank"}, {"title", title}, {"status", status}, {"code", code}};
  if (!detail.empty()) document["detail"] = detail;
  if (!hint.empty()) document["hint"] = hint;
  // A detail may quote a client's bytes, which must not throw if they are not UTF-8.
  std::string body = document.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  return HttpResponse{.status = status,
                      .content_type = "application/problem+json",
                      .body = std::move(body) + "\n",
                      .headers = {}};
}

}  // namespace gossipd
