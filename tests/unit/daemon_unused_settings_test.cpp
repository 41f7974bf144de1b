// Settings that have no effect beside others: the node says so.
#include <doctest/doctest.h>

#include "daemon/config/check_whole.h"

using namespace gossipd;

namespace {

using Words = std::vector<std::string>;

Result<CommandLine> read(const Words& settings) {
  Words arguments{"--state-dir", "/nowhere/state"};
  for (const std::string& setting : settings) arguments.insert(arguments.end(), {"--set", setting});
  return read_command_line(arguments, {});
}

bool mentions(const std::string& text, const std::string& what) {
  return text.find(what) != std::string::npos;
}

}  // namespace

TEST_CASE("a certificate of REST that is not used is told, and one that is is not") {
  const auto warnings = [](const std::string& listen, const std::string& tls) {
    const auto line =
        read({"rest.listen=" + listen, "rest.tls=" + tls, "rest.certificate=/etc/box1.pem",
              "rest.key=/etc/box1.key", "rest.token_file=/etc/token"});
    REQUIRE(line);
    return line->warnings;
  };
  for (const char* const loopback : {"127.0.0.1:7611", "localhost", "[::1]:7611"}) {
    REQUIRE(warnings(loopback, "auto").size() == 1);
    CHECK(mentions(warnings(loopback, "auto").front(), "plain HTTP; set rest.tls to on"));
    CHECK(warnings(loopback, "on").empty());
  }
  REQUIRE(warnings("unix:/run/rest.sock", "auto").size() == 1);
  CHECK(mentions(warnings("unix:/run/rest.sock", "auto").front(), "no TLS at a Unix socket"));
  CHECK(warnings("0.0.0.0:7611", "auto").empty());
  CHECK(warnings("none", "auto").empty());
}

TEST_CASE("TLS for a Unix socket is refused") {
  const auto line = read({"rest.listen=unix:/run/rest.sock", "rest.tls=on"});
  REQUIRE_FALSE(line);
  CHECK(line.error().code == "bad-config");
  CHECK(mentions(line.error().text, "rest.tls: there is no TLS at a Unix socket"));
}

TEST_CASE("what was set for training within the daemon is known by name") {
  const auto keys = [](const Words& settings) {
    const auto line = read(settings);
    REQUIRE(line);
    return settings_of_own_training(line->config);
  };
  CHECK(keys({"trainer.socket=/run/trainer.sock", "exchange.codec=int8"}).empty());
  CHECK(keys({"trainer.device=cpu", "trainer.threads=2", "trainer.min_step_ms=5",
              "trainer.loader_threads=3", "balance.enabled=true"}) ==
        Words{"trainer.device", "trainer.threads", "trainer.min_step_ms", "trainer.loader_threads",
              "balance.enabled"});
}
