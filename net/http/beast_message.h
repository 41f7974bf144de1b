// net/http/beast_message.h - between Beast's messages and ours, and the certificate of the server.
//
// Includes Asio and Beast: for server.cpp only.
#pragma once

#include <boost/asio/ssl/context.hpp>
#include <boost/beast/http.hpp>
#include <memory>
#include <optional>

#include "core/base/result.h"
#include "net/http/message.h"
#include "net/http/server.h"
#include "net/http/url.h"

namespace gossipd {

using HttpParser = boost::beast::http::request_parser<boost::beast::http::string_body>;
using HttpMessage = boost::beast::http::response<boost::beast::http::string_body>;

[[nodiscard]] HttpRequest to_request(const HttpParser::value_type& message,
                                     const UrlTarget& target);
// nullopt: the connection has ended.
[[nodiscard]] std::optional<HttpResponse> refuse_unreadable(const boost::system::error_code& error,
                                                            const HttpServerOptions& options);
// Without a body for `head`. A response with a stream has no length and closes the connection.
[[nodiscard]] HttpMessage to_message(HttpResponse response, bool head, bool keep_alive);
// Code "certificate".
[[nodiscard]] Result<std::shared_ptr<boost::asio::ssl::context>> read_tls(
    const CertificateFiles& files);

}  // namespace gossipd
