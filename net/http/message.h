// net/http/message.h - a request and a response as plain values, shared by server and client.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace gossipd {

class HttpBodyStream;

struct HttpRequest {
  std::string method;                        // "GET", "POST", ...; HEAD arrives as "GET"
  std::string path;                          // decoded, without the query: "/v1/members"
  std::map<std::string, std::string> query;  // decoded; the last value of a repeated name
  // names in lower case; the last value of a repeated name
  std::map<std::string, std::string> headers;
  std::string body;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;  // besides content type and length
  // If set, the second kind of answer: in place of `body`, whatever is written to it until it
  // closes (net/http/body_stream.h).
  std::shared_ptr<HttpBodyStream> stream = nullptr;
};

// Answers once, now or later, on the loop thread. Dropping it unanswered answers 500; later calls
// do nothing.
using HttpRespond = std::function<void(HttpResponse)>;
using HttpHandler = std::function<void(const HttpRequest&, HttpRespond)>;

// An RFC 9457 problem document: `code` is stable, `title` is the same for every case of the code,
// `detail` describes this case, `hint` says what to do (left out when empty).
[[nodiscard]] HttpResponse problem(int status, const std::string& code, const std::string& title,
                                   const std::string& detail = {}, const std::string& hint = {});

}  // namespace gossipd
