#include "net/http/beast_message.h"

#include <algorithm>
#include <cctype>
#include <string>

#include "net/peer/secret_file.h"

namespace gossipd {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

namespace {

constexpr SecretKind private_key{"private key", "can pose as this node's REST",
                                 "it belongs to the certificate, in PEM and not encrypted"};

}  // namespace

HttpRequest to_request(const HttpParser::value_type& message, const UrlTarget& target) {
  HttpRequest request;
  request.method =
      message.method() == http::verb::head ? "GET" : std::string(message.method_string());
  request.path = target.path;
  request.query = target.query;
  request.body = message.body();
  for (const auto& field : message) {
    std::string name(field.name_string());
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    request.headers[name] = std::string(field.value());
  }
  return request;
}

std::optional<HttpResponse> refuse_unreadable(const error_code& error,
                                              const HttpServerOptions& options) {
  if (error == http::error::header_limit || error == http::error::buffer_overflow) {
    return problem(431, "header-too-large", "The request's header is too large",
                   "at most " + std::to_string(options.header_bytes_max) + " bytes are read");
  }
  if (error == http::error::body_limit) {
    return problem(413, "body-too-large", "The request's body is too large",
                   "at most " + std::to_string(options.body_bytes_max) + " bytes are read");
  }
  if (error == http::error::end_of_stream || error == http::error::partial_message)
    return std::nullopt;
  if (error.category() == make_error_code(http::error::bad_method).category()) {
    return problem(400, "bad-request", "This is not an HTTP request", error.message());
  }
  return std::nullopt;
}

HttpMessage to_message(HttpResponse response, bool head, bool keep_alive) {
  HttpMessage message(static_cast<http::status>(response.status), 11);
  message.set(http::field::server, "gossipd");
  message.set(http::field::content_type, response.content_type);
  message.set(http::field::cache_control, "no-store");
  message.set("X-Content-Type-Options", "nosniff");
  for (const auto& [name, value] : response.headers) message.set(name, value);
  message.keep_alive(keep_alive && !response.stream);
  if (response.stream) return message;
  message.content_length(response.body.size());  // for HEAD, of the omitted body
  if (!head) message.body() = std::move(response.body);
  return message;
}

Result<std::shared_ptr<asio::ssl::context>> read_tls(const CertificateFiles& files) {
  auto context = std::make_shared<asio::ssl::context>(asio::ssl::context::tls_server);
  error_code error;
  (void)context->set_options(asio::ssl::context::no_tlsv1 | asio::ssl::context::no_tlsv1_1 |
                                 asio::ssl::context::single_dh_use,
                             error);
  if (!error) (void)context->use_certificate_chain_file(files.certificate, error);
  if (error)
    return Error{"certificate",
                 files.certificate + ": no certificate can be read from it: " + error.message()};
  const Result<SecretText> key = read_secret_file(files.key, SharedKeyFile::refuse, private_key);
  if (!key)
    return Error{key.error().code == "io-error" ? "io-error" : "certificate", key.error().text};
  // Never asks on the terminal for a passphrase: an encrypted key is refused.
  context->set_password_callback([](std::size_t, auto) { return std::string(); }, error);
  if (!error)
    (void)context->use_private_key(asio::buffer(key->text()), asio::ssl::context::pem, error);
  if (error)
    return Error{"certificate", files.key + ": it holds no key of the certificate in " +
                                    files.certificate + ": " + error.message()};
  return context;
}

}  // namespace gossipd
