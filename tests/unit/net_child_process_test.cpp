#include "net/child_process.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include "net_test_support.h"

using namespace gossipd;
using namespace std::chrono_literals;
using Keep = Command::Keep;

namespace {

Command shell(const std::string& line, Keep keep) {
  return {.program = "sh", .arguments = {"-c", line}, .keep = keep};
}

}  // namespace

TEST_CASE("of a child's streams the one asked for is kept, and its exit code") {
  const ChildEnd errors = ChildProcess().run(shell("echo out; echo err >&2; exit 3", Keep::errors));
  CHECK(errors.kept == "err\n");
  CHECK(WEXITSTATUS(errors.status) == 3);
  CHECK(!errors.succeeded());
  CHECK(ChildProcess().run(shell("echo out", Keep::output)).kept == "out\n");
  CHECK(ChildProcess().run(shell("exit 0", Keep::nothing)).succeeded());
}

TEST_CASE("a child reads nothing of ours, has the environment given and only that") {
  Command command = shell("cat; echo \"$ONE-$HOME\"", Keep::output);
  command.environment = {"ONE=1"};
  CHECK(ChildProcess().run(command).kept == "1-\n");
}

TEST_CASE("a child has none of our files and sockets") {
  int ends[2] = {-1, -1};
  REQUIRE(::pipe(ends) == 0);  // without O_CLOEXEC, as Asio's sockets are
  const std::string open = "for i in " + std::to_string(ends[0]) + " " + std::to_string(ends[1]) +
                           "; do [ ! -e /proc/self/fd/$i ] || echo $i; done";
  CHECK(ChildProcess().run(shell(open, Keep::output)).kept.empty());
  CHECK(ChildProcess().run(shell("[ -e /proc/self/fd/1 ] && echo 1", Keep::output)).kept == "1\n");
  ::close(ends[0]), ::close(ends[1]);
}

TEST_CASE("what a child writes beyond the bytes kept is dropped, and it ends by itself") {
  Command command = shell("head -c 1000000 /dev/zero; exit 4", Keep::output);
  command.kept_max = 5000;
  const ChildEnd end = ChildProcess().run(command);
  CHECK(end.kept.size() == 5000);
  CHECK(WEXITSTATUS(end.status) == 4);
}

TEST_CASE("a child that is still there at the limit is killed") {
  Command command = shell("echo begun; exec sleep 1000", Keep::output);
  command.limit = 200ms;
  const ChildEnd end = ChildProcess().run(command);
  CHECK(end.overdue);
  CHECK(!end.succeeded());
  CHECK(WTERMSIG(end.status) == SIGKILL);
}

TEST_CASE("a program that does not exist is refused by its errno") {
  const ChildEnd end = ChildProcess().run({.program = "gossipd-no-such-program", .arguments = {}});
  CHECK(end.refused == ENOENT);
  CHECK(!end.succeeded());
}

TEST_CASE("kill() from another thread ends what runs, and nothing starts after it") {
  ChildProcess child;
  Command command = shell("exec sleep 1000", Keep::output);
  ChildEnd end;
  std::thread runner([&] { end = child.run(command); });
  child.kill();  // before its start or after it
  runner.join();
  CHECK((end.refused == ECANCELED || WTERMSIG(end.status) == SIGKILL));
  CHECK(child.run(command).refused == ECANCELED);
}
