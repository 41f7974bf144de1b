#include <sys/stat.h>

#include <atomic>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/read.hpp>
#include <fstream>
#include <thread>

#include "net/http/client.h"
#include "net/http/guard.h"
#include "net/http/router.h"
#include "net/http/server.h"
#include "net_http_service.h"

using namespace gossipd;
using namespace gossipd::test;
using namespace std::chrono_literals;

namespace {

std::string get(const Service& service, const std::string& extra = {},
                const std::string& version = "1.1") {
  return "GET /hello HTTP/" + version + "\r\nHost: " + to_string(service.where) + "\r\n" + extra +
         "\r\n";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a route answers with its status, type, headers and body") {
  Service service;
  service.start();
  const auto response = service.call("GET", "/hello?name=box%201&x=");
  REQUIRE(response);
  CHECK(response->status == 200);
  CHECK(response->content_type == "text/plain");
  CHECK(response->body == "hello box 1");
  CHECK(std::find(response->headers.begin(), response->headers.end(),
                  std::pair<std::string, std::string>("X-Extra", "1")) != response->headers.end());
  CHECK(service.call("POST", "/echo", "ping")->body == "ping");
  CHECK(service.call("GET", "/later")->body == "\"late\"");
}

TEST_CASE("unknown paths and methods are problem documents with a stable code") {
  Service service;
  service.start();
  const auto missing = service.call("GET", "/nothing");
  REQUIRE(missing);
  CHECK(missing->status == 404);
  CHECK(missing->content_type == "application/problem+json");
  CHECK(contains(missing->body, "\"code\": \"not-found\""));
  const auto wrong = service.call("DELETE", "/hello");
  REQUIRE(wrong);
  CHECK(wrong->status == 405);
  CHECK(std::find(wrong->headers.begin(), wrong->headers.end(),
                  std::pair<std::string, std::string>("Allow", "GET")) != wrong->headers.end());
  CHECK(contains(service.raw("GET hello HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"),
                 "400 Bad Request"));
  CHECK(contains(service.raw("this is not HTTP at all\r\n\r\n"), "400 Bad Request"));
}

TEST_CASE("HEAD answers like GET but without the body") {
  Service service;
  service.start();
  const std::string answer =
      service.raw("HEAD /hello HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  CHECK(contains(answer, "200 OK"));
  CHECK(contains(answer, "Content-Length: 9"));
  CHECK(answer.ends_with("\r\n\r\n"));
  CHECK(service.call("HEAD", "/hello")->status == 200);
}

TEST_CASE("one connection serves many requests until asked to close") {
  Service service;
  service.start();
  const std::string answers =
      service.raw(get(service) + get(service) + get(service, "Connection: close\r\n"));
  std::size_t count = 0;
  for (std::size_t at = answers.find("hello you"); at != std::string::npos;
       at = answers.find("hello you", at + 1))
    ++count;
  CHECK(count == 3);
  CHECK(contains(service.raw(get(service, {}, "1.0")), "hello you"));  // 1.0 closes by itself
}

TEST_CASE("bodies and headers over their limits are refused and not read") {
  Service service({.header_bytes_max = 2048, .body_bytes_max = 1000});
  service.start();
  CHECK(service.call("POST", "/echo", std::string(1000, 'x'))->status == 200);
  const auto large = service.call("POST", "/echo", std::string(1001, 'x'));
  REQUIRE(large);
  CHECK(large->status == 413);
  CHECK(contains(
      service.raw("POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n"),
      "413"));
  CHECK(contains(service.raw("GET /hello HTTP/1.1\r\nHost: localhost\r\nX: " +
                             std::string(4000, 'x') + "\r\n\r\n"),
                 "431"));
}

TEST_CASE("a client that expects 100-continue is told to go on") {
  Service service;
  service.start();
  const std::string answer = service.raw(
      "POST /echo HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nConnection: "
      "close\r\nContent-Length: 2\r\n\r\nhi");
  CHECK(answer.starts_with("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK"));
}

TEST_CASE("a request that trickles in too slowly is cut, and so is an idle connection") {
  Service service({.read_timeout = 100ms});
  service.start();
  CHECK(service.raw("GET /hello HTTP/1.1\r\nHost: local").empty());
  CHECK(service.raw("").empty());
  CHECK(contains(service.raw(get(service)), "hello you"));  // keep-alive, then idle
  service.stop();
  CHECK(service.server->counters().timeouts == 3);
  CHECK(service.server->counters().requests == 1);
}

TEST_CASE("a handler that drops its request or never answers does not leave the client waiting") {
  Service service({.answer_timeout = 100ms});
  service.start();
  CHECK(service.call("GET", "/dropped")->status == 500);
  CHECK(service.call("GET", "/never")->status == 503);
}

TEST_CASE(
    "connections over the maximum are turned away while all have requests under way, and room "
    "comes back") {
  Service service({.connections_max = 2});
  service.start();
  {
    asio::io_context io;
    const tcp::endpoint where(asio::ip::make_address(service.where.host), service.where.port);
    tcp::socket first(io), second(io);
    for (tcp::socket* one : {&first, &second}) {
      one->connect(where);
      asio::write(*one, asio::buffer("GET /never HTTP/1.1\r\nHost: " + to_string(service.where) +
                                     "\r\n\r\n"));
    }
    while (service.kept < 2) std::this_thread::yield();
    const auto refused = service.call("GET", "/hello");
    REQUIRE(!refused);
    CHECK(refused.error().code == "broke-off");
    service.let_go();
  }
  Result<HttpResponse> response = service.call("GET", "/hello");
  // until the two are seen to be gone
  for (int tries = 0; !response && tries < 10'000; ++tries)
    response = service.call("GET", "/hello");
  CHECK(response);
  service.stop();
  CHECK(service.server->counters().refused_full >= 1);
}

TEST_CASE(
    "a flood of requests, good, bad and cut off, from more connections than there is room for, is "
    "answered or turned away, all of it") {
  Service service({.connections_max = 16, .read_timeout = 2s});
  service.start();
  const std::string good = get(service), deep = std::string(60'000, '['),
                    bad = "\r\nNONSENSE\r\n\r\n";
  const std::string post =
      "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + std::to_string(deep.size()) +
      "\r\n\r\n" + deep;
  std::atomic<std::size_t> answered{0}, odd{0};
  std::vector<std::jthread> clients;
  for (int client = 0; client < 8; ++client) {
    clients.emplace_back([&, client] {
      for (int round = 0; round < 40; ++round) {
        asio::io_context io;
        std::vector<tcp::socket> sockets;
        boost::system::error_code error;
        for (int i = 0; i < 4; ++i) {
          tcp::socket& socket = sockets.emplace_back(io);
          socket.connect(
              tcp::endpoint(asio::ip::make_address(service.where.host), service.where.port), error);
          const std::string words = i == 0   ? good + post + good
                                    : i == 1 ? bad
                                    : i == 2 ? good.substr(0, 10 + static_cast<std::size_t>(client))
                                             : get(service, "Connection: close\r\n");
          asio::write(socket, asio::buffer(words), error);
        }
        std::array<char, 4096> buffer;
        const std::size_t got = sockets[3].read_some(asio::buffer(buffer), error);
        if (got == 0) continue;  // turned away
        ++(std::string_view(buffer.data(), got).starts_with("HTTP/1.1 200") ? answered : odd);
      }
    });
  }
  clients.clear();
  CHECK(odd == 0);
  CHECK(answered > 0);
  Result<HttpResponse> response = service.call("GET", "/hello");
  // until those cut off are seen to be gone
  for (int tries = 0; !response && tries < 10'000; ++tries)
    response = service.call("GET", "/hello");
  REQUIRE(response);
  CHECK(response->status == 200);
  service.stop();
  const HttpServerCounters counters = service.server->counters();
  CHECK(counters.refused_full + counters.crowded_out > 0);
  CHECK(counters.connections + counters.refused_full >= 8 * 40);
}

TEST_CASE("connections that say nothing, or nothing that is a request, keep nobody out") {
  Service service({.connections_max = 4});
  service.start();
  asio::io_context io;
  const tcp::endpoint where(asio::ip::make_address(service.where.host), service.where.port);
  std::vector<tcp::socket> idle;
  for (int i = 0; i < 100; ++i) {
    idle.emplace_back(io);
    idle.back().connect(where);
    const std::string begun = "GET /hello HTTP/1.1\r\nHost: localhost\r\nX-Slow: ";
    if (i % 3 != 0)
      asio::write(idle.back(), asio::buffer(i % 3 == 1 ? begun : "no request\r\n\r\n"));
    if (i % 10 == 0) CHECK(service.call("GET", "/hello")->status == 200);
  }
  // Connections are accepted in order, so with this answer all idle ones have been seen.
  CHECK(service.call("GET", "/hello")->status == 200);
  service.stop();
  CHECK(service.server->counters().refused_full == 0);
  CHECK(service.server->counters().crowded_out >= 96);
}

TEST_CASE("a wrong Host is refused on the wire") {
  Service service;
  service.start();
  CHECK(contains(
      service.raw("GET /hello HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n"),
      "421"));
  CHECK(contains(service.raw("GET /hello HTTP/1.1\r\nConnection: close\r\n\r\n"), "421"));
}

TEST_CASE("beyond loopback a token is needed, and then every request must carry it") {
  {
    Service open;
    const auto refused = open.server->listen({"*", 0});
    REQUIRE(!refused);
    CHECK(refused.error().code == "token-needed");
  }
  Service in_plain_text({.bearer_token = "sesame"});
  CHECK(in_plain_text.server->listen({"*", 0}).error().code == "tls-needed");
  Service service({.bearer_token = "sesame"});
  service.start();
  CHECK(service.call("GET", "/hello")->status == 401);
  CHECK(service.call("GET", "/hello", {}, {{"Authorization", "Bearer wrong1"}})->status == 401);
  CHECK(service.call("GET", "/hello", {}, {{"Authorization", "Bearer sesame"}, {"Host", "box1"}})
            ->status == 200);
  CHECK(service.call("GET", "/hello", {}, {{"Authorization", "bearer sesame"}})->status == 200);
  CHECK(service.call("GET", "/livez")->status == 200);
}

TEST_CASE("under TLS a daemon is known by the certificate that it made, and by nothing else") {
  const TemporaryFolder folder;
  const CertificateFiles files{folder.path / "rest-certificate.pem", folder.path / "rest-key.pem"};
  const CertificateFiles others{folder.path / "other.pem", folder.path / "other-key.pem"};
  REQUIRE(ensure_certificate(files, {"localhost", "box1", "127.0.0.1", "no name/"}));
  REQUIRE(ensure_certificate(others, {"localhost", "127.0.0.1"}));
  struct stat status {};
  REQUIRE(::stat(files.key.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0600);
  const auto fingerprint = certificate_fingerprint(files.certificate);
  REQUIRE(fingerprint);
  CHECK(fingerprint->size() == 32 * 3 - 1);
  REQUIRE(ensure_certificate(files, {"localhost"}));
  CHECK(*certificate_fingerprint(files.certificate) == *fingerprint);  // made once

  Service service({.bearer_token = "sesame", .tls = files});
  REQUIRE(service.server->listen({"*", 0}));
  service.start();
  const auto call = [&](const std::string& ca_file, bool tls = true) {
    return http_call({.server = service.where,
                      .tls = tls,
                      .ca_file = ca_file,
                      .target = "/hello",
                      .headers = {{"Authorization", "Bearer sesame"}},
                      .timeout = 30s});
  };
  const auto answer = call(files.certificate);
  REQUIRE(answer);
  CHECK(answer->body == "hello you");
  CHECK(call(others.certificate).error().code == "untrusted");
  CHECK(call({}).error().code == "untrusted");
  CHECK(call(folder.path / "missing.pem").error().code == "untrusted");
  CHECK(call({}, false).error().code == "broke-off");
  CHECK(!contains(service.raw(get(service)), "hello"));
}

TEST_CASE(
    "a certificate that cannot be read, or with another's key, is named before anything is "
    "served") {
  const TemporaryFolder folder;
  const CertificateFiles files{folder.path / "a.pem", folder.path / "a-key.pem"},
      others{folder.path / "b.pem", folder.path / "b-key.pem"};
  REQUIRE(ensure_certificate(files, {"localhost"}));
  REQUIRE(ensure_certificate(others, {"localhost"}));
  for (const CertificateFiles& wrong : {CertificateFiles{folder.path / "missing", files.key},
                                        CertificateFiles{files.certificate, others.key},
                                        CertificateFiles{files.certificate, files.certificate}}) {
    Service service({.tls = wrong});
    const auto refused = service.server->listen({"127.0.0.1", 0});
    REQUIRE(!refused);
    CHECK(refused.error().code == "certificate");
    CHECK(contains(refused.error().text, folder.path));
  }
  CHECK(certificate_fingerprint(files.key).error().code == "certificate");
  CHECK(certificate_fingerprint("/proc/self/mem").error().code == "io-error");
  std::filesystem::permissions(files.key, std::filesystem::perms::group_read,
                               std::filesystem::perm_options::add);
  Service open_to_all({.tls = files});
  const auto refused = open_to_all.server->listen({"127.0.0.1", 0});
  REQUIRE(!refused);
  CHECK(contains(refused.error().text, "run: chmod 600 " + files.key));
  CHECK_FALSE(ensure_certificate(
      {folder.path / "nowhere" / "a.pem", folder.path / "nowhere" / "a-key.pem"}, {"localhost"}));
}

TEST_CASE("a Unix socket serves its owner, replaces a stale file and is removed at the end") {
  const TemporaryFolder folder;
  const std::string path = folder.path / "rest.sock";
  {
    asio::io_context io;
    asio::local::stream_protocol::acceptor stale(io, asio::local::stream_protocol::endpoint(path));
  }
  REQUIRE(std::filesystem::exists(path));
  {
    Service service;
    REQUIRE(!service.server->listen_unix(path));
    struct stat status {};
    REQUIRE(::stat(path.c_str(), &status) == 0);
    CHECK((status.st_mode & 0777) == 0600);
    Service second;
    CHECK(second.server->listen_unix(path)->code == "listen");
    service.unix_path = path;
    service.start();
    CHECK(service.call("GET", "/hello")->body == "hello you");
  }
  CHECK(!std::filesystem::exists(path));
}

TEST_CASE("at a Unix socket's path nothing is removed but a socket that nobody serves") {
  const TemporaryFolder folder;
  const std::string path = folder.path / "rest.sock";
  const auto refusal = [&path](const char* code = "bad-config") {
    Service service;
    const auto error = service.server->listen_unix(path);
    REQUIRE(error);
    CHECK(error->code == code);
    CHECK(contains(error->text, path));
    return error->text;
  };
  std::ofstream(path) << "precious";
  CHECK(contains(refusal(), "no socket"));
  CHECK(std::filesystem::file_size(path) == 8);
  std::filesystem::rename(path, folder.path / "aside");
  std::filesystem::create_symlink(folder.path / "aside", path);
  CHECK(contains(refusal(), "no socket"));
  CHECK(std::filesystem::is_symlink(path));
  std::filesystem::remove(path);
  // A frozen daemon with a full queue of connections: its socket would block us.
  asio::io_context io;
  asio::local::stream_protocol::acceptor frozen(io);
  frozen.open();
  frozen.bind(asio::local::stream_protocol::endpoint(path));
  frozen.listen(0);
  asio::local::stream_protocol::socket first(io);
  first.connect(asio::local::stream_protocol::endpoint(path));
  CHECK(contains(refusal("listen"), "another process serves it"));
  CHECK(std::filesystem::is_socket(path));
}

TEST_CASE("a server that stops leaves alone what has taken its socket's name since") {
  const TemporaryFolder folder;
  const std::string path = folder.path / "rest.sock";
  {
    Service service;
    REQUIRE(!service.server->listen_unix(path));
    service.start();
    std::filesystem::remove(path);
    std::ofstream(path) << "another's";
  }
  CHECK(std::filesystem::exists(path));
}

TEST_CASE("the client tells refused, late, foreign and cut answers apart") {
  asio::io_context io;
  tcp::acceptor acceptor(io, {asio::ip::address_v4::loopback(), 0});
  const Endpoint where{"127.0.0.1", acceptor.local_endpoint().port()};
  CHECK(http_call({.server = where, .timeout = 100ms}).error().code == "timeout");
  std::thread foreign([&] {
    tcp::socket ignored = acceptor.accept();  // of the call that timed out
    tcp::socket socket = acceptor.accept();
    asio::write(socket, asio::buffer(std::string("220 smtp.example ready\r\n")));
    std::array<char, 512> buffer;
    (void)socket.read_some(asio::buffer(buffer));
    socket = acceptor.accept();
    (void)socket.read_some(asio::buffer(buffer));
  });
  CHECK(http_call({.server = where, .timeout = 30s}).error().code == "bad-response");
  CHECK(http_call({.server = where, .timeout = 30s}).error().code == "broke-off");
  foreign.join();
  acceptor.close();
  const auto refused = http_call({.server = where});
  CHECK(refused.error().code == "no-daemon");
  CHECK(contains(refused.error().text, to_string(where)));
  CHECK(http_call({.unix_path = "/nonexistent/rest.sock"}).error().code == "no-daemon");
}
