// The parts of REST without a connection: the guard, problem documents, targets, a socket's path.
#include <doctest/doctest.h>

#include <fstream>

#include "net/http/client.h"
#include "net/http/guard.h"
#include "net/http/server.h"
#include "net/http/url.h"
#include "net_test_support.h"

using namespace gossipd;
using namespace gossipd::test;

namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

HttpRequest from(const std::string& host, const std::string& origin = {}) {
  HttpRequest request{
      .method = "GET", .path = "/", .query = {}, .headers = {{"host", host}}, .body = {}};
  if (!origin.empty()) request.headers["origin"] = origin;
  return request;
}

}  // namespace

TEST_CASE("a Unix socket's path that only the operator can put right is told from one in use") {
  const TemporaryFolder folder;
  EventLoop loop;
  HttpServer server(loop, {});
  const auto refusal = [&server](const std::string& path) {
    const auto error = server.listen_unix(path);
    return error ? *error : Error{};
  };
  std::ofstream(folder.path / "file") << "precious";
  for (const std::filesystem::path& path :
       {folder.path / "nowhere" / "rest.sock", folder.path / "file", folder.path / "file" / "rest",
        folder.path / std::string(200, 'a'), std::filesystem::path("/proc/rest.sock")}) {
    const Error error = refusal(path);
    CHECK_MESSAGE(error.code == "bad-config", error.text);
    CHECK(contains(error.text, "cannot listen on " + path.string()));
    CHECK(contains(error.text, ";"));  // and the way out
  }
  REQUIRE(!server.listen_unix(folder.path / "rest.sock"));
  HttpServer second(loop, {});
  CHECK(second.listen_unix(folder.path / "rest.sock")->code == "listen");
}

TEST_CASE("only requests that name this host pass") {
  const HttpServerOptions options{.allowed_hosts = {"Box1.example"}};
  for (const char* host : {"localhost", "LOCALHOST:7611", "127.0.0.1:7611", "127.9.9.9",
                           "[::1]:7611", "box1.example:80"}) {
    CAPTURE(host);
    CHECK(!refuse_request(from(host), options, HttpVia::tcp));
  }
  for (const char* host : {"evil.example", "evil.example:7611", "127.0.0.1.evil.example",
                           "127.evil.example", "localhost.evil.example", "", "10.0.0.1", "a b"}) {
    CAPTURE(host);
    const auto refused = refuse_request(from(host), options, HttpVia::tcp);
    REQUIRE(refused);
    CHECK(refused->status == 421);
    CHECK(contains(refused->body, "wrong-host"));
    CHECK(!refuse_request(from(host), options, HttpVia::unix_socket));
  }
}

TEST_CASE("a page of another origin is refused even when it names this host") {
  const HttpServerOptions options;
  CHECK(!refuse_request(from("127.0.0.1:7611", "http://127.0.0.1:7611"), options, HttpVia::tcp));
  for (const char* origin :
       {"http://evil.example", "null", "https://127.0.0.1:7611", "http://127.0.0.1:3000"}) {
    CAPTURE(origin);
    const auto refused = refuse_request(from("127.0.0.1:7611", origin), options, HttpVia::tcp);
    REQUIRE(refused);
    CHECK(refused->status == 403);
  }
}

TEST_CASE("problem documents carry the stable members and survive bytes that are not UTF-8") {
  const HttpResponse response = problem(409, "left", "The node has left its cluster",
                                        "odd \xff byte", "run 'gossipctl join'");
  CHECK(response.status == 409);
  CHECK(response.content_type == "application/problem+json");
  for (const char* part : {"\"status\": 409", "\"code\": \"left\"", "\"title\"", "\"detail\"",
                           "\"hint\"", "\"type\": \"about:blank\""}) {
    CAPTURE(part);
    CHECK(contains(response.body, part));
  }
  CHECK(!contains(problem(404, "c", "t").body, "hint"));
}

TEST_CASE("targets split into a decoded path and query") {
  const auto target = parse_target("/a%2Fb?x=1+2&y=%26&flag&=nameless");
  REQUIRE(target);
  CHECK(target->path == "/a/b");
  CHECK(target->query ==
        std::map<std::string, std::string>{{"x", "1 2"}, {"y", "&"}, {"flag", ""}});
  CHECK(!parse_target("no-slash"));
  CHECK(!parse_target("/%zz"));
  CHECK(!parse_target("/%4"));
  CHECK(url_decode(url_encode("a b&c=\xc3\xa4/"), UrlPart::query) == "a b&c=\xc3\xa4/");
}

TEST_CASE("a token is not sent beyond loopback in plain text") {
  HttpCall call;
  call.server = {"192.0.2.1", 7611};  // nobody has it
  call.headers = {{"Authorization", "Bearer secret"}};
  const auto refused = http_call(call);
  REQUIRE(!refused);
  CHECK(refused.error().code == "plain");
  CHECK_FALSE(contains(refused.error().text, "secret"));
}
