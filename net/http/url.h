// net/http/url.h - percent-encoding and the parts of a request's target. Pure.
#pragma once

#include <map>
#include <optional>
#include <string>

namespace gossipd {

// Encodes everything but letters, digits and -._~ as %XX.
[[nodiscard]] std::string url_encode(const std::string& text);
// nullopt for a broken %XX. '+' means a space in a query, itself in a path.
enum class UrlPart { path, query };
[[nodiscard]] std::optional<std::string> url_decode(const std::string& text, UrlPart part);

struct UrlTarget {
  std::string path;
  std::map<std::string, std::string> query;
};
// "/v1/members?limit=3"; nullopt if it does not begin with '/' or is badly encoded.
[[nodiscard]] std::optional<UrlTarget> parse_target(const std::string& target);

}  // namespace gossipd
