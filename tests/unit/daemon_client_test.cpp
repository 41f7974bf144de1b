// What gossipctl says where no answer comes, or none of a daemon's.
#include <doctest/doctest.h>

#include <boost/asio/ip/tcp.hpp>
#include <filesystem>
#include <thread>

#include "tests/unit/daemon_fake_server.h"
#include "tests/unit/daemon_made_up.h"
#include "tests/unit/daemon_support.h"
#include "tools/gossipctl/commands.h"
#include "tools/gossipctl/doctor.h"

using namespace gossipd;
using boost::asio::ip::tcp;

namespace {

bool mentions(const std::string& text, const std::string& what) {
  return text.find(what) != std::string::npos;
}

}  // namespace

TEST_CASE("an answer that no daemon gives is named, and neither top nor wait goes on with it") {
  const FakeServer server([](const HttpRequest&, const HttpRespond& respond) {
    HttpResponse response;
    response.body = "{}";
    respond(response);
  });
  for (const char* const command : {"status", "top", "wait"}) {
    const Ran ran = gossipctl({"--rest", server.address(), "--timeout", "0.3", command});
    CHECK(ran.code == ExitCode::failed);
    CHECK(ran.out.empty());
    CHECK(mentions(ran.err, "the answer to /v1/status names no phase"));
    CHECK(mentions(ran.err, "something other than gossipd listens"));
  }
}

TEST_CASE("a daemon that ends during a command is no stranger, and the command may have worked") {
  boost::asio::io_context io;
  tcp::acceptor acceptor(io, {boost::asio::ip::address_v4::loopback(), 0});
  std::thread daemon([&acceptor] {
    tcp::socket socket = acceptor.accept();
    char request[512];
    (void)socket.read_some(boost::asio::buffer(request));
  });
  const std::string port = std::to_string(acceptor.local_endpoint().port());
  const Ran ran = gossipctl({"--rest", "127.0.0.1:" + port, "--timeout", "30", "pause"});
  daemon.join();
  CHECK(ran.code == ExitCode::failed);
  CHECK(mentions(ran.err, "closed the connection before it had answered"));
  CHECK(mentions(ran.err, "the daemon ended before it answered"));
  CHECK(mentions(ran.err, "whether the command took effect (gossipctl status)"));
  CHECK_FALSE(mentions(ran.err, "something other than gossipd"));
}

TEST_CASE("a daemon that does not answer in time or cannot just now is not broken training") {
  const auto code_of = [](const HttpResponse& said) {
    const FakeServer server(
        [&said](const HttpRequest&, const HttpRespond& respond) { respond(said); });
    return gossipctl({"status", "--rest", server.address()}).code;
  };
  CHECK(code_of(problem(503, "no-answer", "No answer in time")) == ExitCode::timeout);
  for (const char* code : {"streams-full", "stopping"})
    CHECK(code_of(problem(503, code, "Not now")) == ExitCode::refused_by_state);
  HttpResponse of_a_proxy;
  of_a_proxy.status = 503;
  of_a_proxy.body = "Service Unavailable";
  CHECK(code_of(of_a_proxy) == ExitCode::failed);
}

TEST_CASE(
    "wait ends with 6 or 8 where a node has left or is broken for as long as it has patience") {
  MadeUpDaemon daemon;
  const FakeServer server(handler_of(daemon));
  const DaemonClient client(server.address(), nullptr, std::chrono::hours(1));
  std::ostringstream out, err;
  Console console{out, err};
  const auto code_of = [&](const char* condition) {
    return wait_for(client, console, condition, std::chrono::milliseconds(0));
  };
  daemon.made_up.node.phase = Phase::left;
  for (const char* condition : {"ready", "finished", "members=3", "samples=1000000"})
    CHECK(code_of(condition) == ExitCode::refused_by_state);
  CHECK(code_of("left") == ExitCode::ok);
  daemon.made_up.node.phase = Phase::training;
  daemon.made_up.trainer.failure = "out of memory";
  for (const char* condition : {"finished", "step=1000000"})
    CHECK(code_of(condition) == ExitCode::unhealthy);
  CHECK(mentions(err.str(), "this node's training is broken: out of memory"));
  CHECK(code_of("members=1") == ExitCode::ok);
}

TEST_CASE("wait ends with 6 where the job has ended below its figure, and says where") {
  MadeUpDaemon daemon;
  const FakeServer server(handler_of(daemon));
  const DaemonClient client(server.address(), nullptr, std::chrono::hours(1));
  std::ostringstream out, err;
  Console console{out, err};
  daemon.made_up.node.phase = Phase::finished;
  daemon.made_up.node.cluster_samples = 119'872;
  daemon.made_up.node.step = 77;
  const std::chrono::milliseconds none{0};
  CHECK(wait_for(client, console, "samples=119872", none) == ExitCode::ok);
  CHECK(wait_for(client, console, "samples=120000", none) == ExitCode::refused_by_state);
  CHECK(mentions(err.str(), "the job has ended with 119 872 samples, below samples=120000"));
  CHECK(wait_for(client, console, "step=78", none) == ExitCode::refused_by_state);
  CHECK(mentions(err.str(), "the job has ended at step 77, below step=78"));
}

TEST_CASE("doctor looks at the state of gossipd-core where there is no other") {
  const TemporaryDirectory directory;
  const std::string folder = directory.path().string();
  CHECK(state_dir_of_root(folder) == folder + "/gossipd");
  std::filesystem::create_directory(folder + "/gossipd-core");
  CHECK(state_dir_of_root(folder) == folder + "/gossipd-core");
  std::filesystem::create_directory(folder + "/gossipd");
  CHECK(state_dir_of_root(folder) == folder + "/gossipd");
}
