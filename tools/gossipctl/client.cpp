#include "tools/gossipctl/client.h"

#include <nlohmann/json.hpp>

#include "core/base/nesting.h"
#include "core/base/printable.h"
#include "net/peer/invite.h"
#include "tools/gossipctl/table.h"

namespace gossipd {

namespace {

using Json = nlohmann::json;

Failure transport_failure(const Error& error, const std::string& address,
                          std::chrono::milliseconds timeout) {
  if (error.code == "no-daemon" || error.code == "resolve" || error.code == "connect")
    return {ExitCode::no_daemon,
            "no daemon answers at " + address +
                (error.code == "no-daemon" ? std::string() : " (" + error.text + ")"),
            "gossipd is not running there, or has another REST address",
            "start gossipd, or name its address with --rest HOST:PORT or GOSSIPCTL_REST"};
  if (error.code == "timeout")
    return {ExitCode::timeout,
            "no answer from " + address + " within " +
                human_milliseconds(static_cast<double>(timeout.count())),
            "the daemon is very busy, stopped (SIGSTOP) or behind a network that drops packets",
            "try again with a longer --timeout; what you asked for may still be done when it "
            "answers again (gossipctl status)"};
  if (error.code == "plain")
    return {ExitCode::usage, error.text, "beyond loopback gossipd's REST speaks https://",
            "write --rest https://HOST:PORT"};
  if (error.code == "untrusted")
    return {ExitCode::unauthorised,
            "the daemon at " + address + " is not trusted (" + error.text + ")",
            "its certificate is unknown here, or it is another machine",
            "copy rest-certificate.pem from the daemon's state directory and name it with "
            "--ca-file FILE or GOSSIPCTL_CA_FILE"};
  if (error.code == "broke-off")
    return {ExitCode::failed, error.text,
            "the daemon ended before it answered, or takes only https://, or no more connections",
            "see its log, and look whether the command took effect (gossipctl status)"};
  return {ExitCode::failed, "the answer from " + address + " makes no sense (" + error.text + ")",
          "something other than gossipd listens there", "check --rest"};
}

// `code` of the problem document; a 503 without one is not of gossipd, but of a proxy before it.
ExitCode exit_code_of(int status, const std::string& code) {
  switch (status) {
    case 400: return ExitCode::usage;
    case 401:
    case 403: return ExitCode::unauthorised;
    case 404: return ExitCode::not_found;
    case 409: return ExitCode::refused_by_state;
    case 503:
      return code == "no-answer" ? ExitCode::timeout
             : code.empty()      ? ExitCode::failed
                                 : ExitCode::refused_by_state;
    case 504: return ExitCode::timeout;
    default: return ExitCode::failed;
  }
}

// From an RFC 9457 problem document, or else from the bare status.
Failure status_failure(const HttpResponse& response, const std::string& target) {
  Failure failure;
  const Json json =
      json_nests_deeper(response.body) ? Json() : Json::parse(response.body, nullptr, false);
  const auto word = [&json](const char* key) {
    return json.is_object() && json.contains(key) && json[key].is_string()
               ? json[key].get<std::string>()
               : std::string();
  };
  const std::string title = word("title"), detail = word("detail"), code = word("code");
  failure.code = exit_code_of(response.status, code);
  failure.what =
      title.empty() ? target + " answered with status " + std::to_string(response.status) : title;
  if (!code.empty()) failure.what += " (" + code + ")";
  if (!detail.empty()) failure.what += ": " + detail;
  failure.hint = word("hint");
  // The daemon's hint names headers, for authors of clients.
  if (failure.code == ExitCode::unauthorised)
    failure.hint = "give the daemon's token with --token-file FILE or GOSSIPCTL_TOKEN_FILE";
  return failure;
}

}  // namespace

void print_failure(std::ostream& err, const Failure& failure) {
  err << "gossipctl: " << printable(without_secrets(failure.what), Lines::many) << '\n';
  if (!failure.probably.empty()) err << "  probably: " << printable(failure.probably) << '\n';
  if (!failure.hint.empty()) err << "  try: " << printable(failure.hint) << '\n';
}

DaemonClient::Answer DaemonClient::call(const std::string& method, const std::string& target,
                                        const std::string& body) const {
  HttpCall call;
  std::string_view place = address_;
  call.tls = place.starts_with("https://");
  if (call.tls) place.remove_prefix(8);
  if (place.starts_with("http://")) place.remove_prefix(7);
  if (place.starts_with("unix:"))
    call.unix_path = place.substr(5);
  else if (!parse_endpoint(std::string(place), rest_port_default, call.server))
    return {false,
            {},
            {ExitCode::usage, "'" + address_ + "' is no REST address", "",
             "write HOST:PORT, [::1]:PORT, https://HOST:PORT or unix:PATH"}};
  call.ca_file = ca_file_;
  call.method = method;
  call.target = target;
  call.body = body;
  call.timeout = timeout_;
  if (token_ != nullptr) {
    const TokenFile::Read& read = token_->read();
    if (read.failure) return {false, {}, *read.failure};
    if (!read.token.empty()) call.headers["Authorization"] = "Bearer " + read.token;
  }
  const Result<HttpResponse> response = http_call(call);
  if (!response) return {false, {}, transport_failure(response.error(), address_, timeout_)};
  if (response->status < 200 || response->status > 299)
    return {false, {}, status_failure(*response, target)};
  return {true, response->body, {}};
}

}  // namespace gossipd
