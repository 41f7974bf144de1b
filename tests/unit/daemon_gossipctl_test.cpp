// gossipctl against a real HTTP server on loopback that serves a synthetic daemon.
#include <doctest/doctest.h>

#include <future>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "core/base/printable.h"
#include "net/http/server.h"
#include "net/peer/cluster_key.h"
#include "tests/unit/daemon_fake_server.h"
#include "tests/unit/daemon_made_up.h"
#include "tests/unit/daemon_support.h"
#include "tools/gossipctl/gossipctl.h"
#include "tools/gossipctl/table.h"

using namespace gossipd;

namespace {

bool mentions(const std::string& text, const std::string& what) {
  return text.find(what) != std::string::npos;
}

}  // namespace

TEST_CASE("members is an aligned table, this node marked, numbers as people read them") {
  MadeUpDaemon daemon;
  daemon.made_up_members[1].record.state = MemberState::alive;
  const FakeServer server(handler_of(daemon));
  const Ran ran = gossipctl({"members", "--rest", server.address()});
  CHECK(ran.code == ExitCode::ok);
  CHECK(ran.err.empty());
  CHECK(
      ran.out ==
      "NAME   ADDRESS         STATE  REACHABLE  RTT     STEP    SAMPLES/S  BATCH  LOSS   ACCURACY  "
      "AGE    DEVICE  VERSION  ID\n"
      "box1*  10.0.0.11:7610  alive  unknown    -       18 240  300        64     0.231  -         "
      "-      -       -        00000000000000aa\n"
      "box2   10.0.0.12:7610  alive  unknown    0.4 ms  18 240  200        64     0.231  -         "
      "0.2 s  -       -        00000000000000bb\n");
}

TEST_CASE("-o json hands the daemon's answer through") {
  MadeUpDaemon daemon;
  const FakeServer server(handler_of(daemon));
  const Ran ran = gossipctl({"-o", "json", "members"}, {{"GOSSIPCTL_REST", server.address()}});
  CHECK(ran.code == ExitCode::ok);
  CHECK(nlohmann::json::parse(ran.out)["members"].size() == 2);
}

TEST_CASE("status says what part of a shared set this node trains on, and how far it is") {
  MadeUpDaemon daemon;
  daemon.made_up.trainer.division = DivisionStatus{3, 16384, 5461, 60000, 20001};
  daemon.made_up.trainer.data_position = 2 * 60000 + 15000;
  const FakeServer server(handler_of(daemon));
  const Ran status = gossipctl({"status", "--rest", server.address()});
  CHECK(mentions(status.out, "20 001 of 60 000 samples, divided among 3; pass 3, 25.0 % through"));
}

TEST_CASE("status, links and job print on standard output") {
  MadeUpDaemon daemon;
  const FakeServer server(handler_of(daemon));
  const Ran status = gossipctl({"status", "--rest", server.address()});
  CHECK(status.code == ExitCode::ok);
  CHECK(mentions(status.out, "50.0 % of 10 000 samples"));
  CHECK(mentions(status.out, "accuracy"));
  CHECK(mentions(status.out, "0.2500, of the best model 0.2400"));
  CHECK(mentions(status.out, "job-mismatch") == false);
  CHECK(mentions(status.out, "we refused 10.0.0.9:40000: another job"));
  const Ran links = gossipctl({"links", "--rest", server.address()});
  CHECK(mentions(links.out, "box2"));
  CHECK(mentions(links.out, "CHANGE/THRESHOLD"));
  CHECK(mentions(links.out, "PROTOCOL"));
  const Ran cells = gossipctl({"links", "-o", "tsv", "--rest", server.address()});
  CHECK(mentions(cells.out, "\tchange\tthreshold\t"));
  CHECK_FALSE(mentions(cells.out, "/"));
  CHECK(mentions(links.out, "0.4321"));  // the gain
  const Ran job = gossipctl({"job", "--rest", server.address()});
  CHECK(mentions(job.out, "name = \"tiny\""));
}

TEST_CASE("no daemon is exit code 3, and the words say what to do") {
  const Ran ran = gossipctl({"status", "--rest", "127.0.0.1:1"});
  CHECK(ran.code == ExitCode::no_daemon);
  CHECK(ran.out.empty());
  CHECK(mentions(ran.err, "no daemon answers at 127.0.0.1:1"));
  CHECK(mentions(ran.err, "probably:"));
  CHECK(mentions(ran.err, "try:"));
}

TEST_CASE("usage mistakes are exit code 2") {
  CHECK(gossipctl({}).code == ExitCode::usage);
  CHECK(gossipctl({"memberz"}).code == ExitCode::usage);
  CHECK(gossipctl({"members", "-o", "xml"}).code == ExitCode::usage);
  CHECK(gossipctl({"wait", "--for", "members"}).code == ExitCode::usage);
  CHECK(gossipctl({"wait", "--for", "step=many"}).code == ExitCode::usage);
  CHECK(gossipctl({"members", "--rest", "a b"}).code == ExitCode::usage);
  const Ran twice = gossipctl({"--rest", "127.0.0.1:1", "--rest", "127.0.0.1:2", "status"});
  CHECK(twice.code == ExitCode::usage);
  CHECK(mentions(twice.err, "--rest may be given once only"));
}

TEST_CASE(
    "a command, option or condition that is mistyped is named, with what was probably meant") {
  const auto said = [](const std::vector<std::string>& words) {
    const Ran ran = gossipctl(words);
    CHECK(ran.code == ExitCode::usage);
    return ran.err;
  };
  CHECK(mentions(said({"stauts"}), "unknown command 'stauts'; did you mean 'status'?"));
  CHECK(mentions(said({"stauts"}), "try: gossipctl --help lists"));
  CHECK(mentions(said({"frobnicate"}), "unknown command 'frobnicate'\n"));
  CHECK(mentions(said({"key", "lits"}), "unknown command 'lits'; did you mean 'list'?"));
  CHECK(mentions(said({"job", "extned", "5"}), "unknown command 'extned'; did you mean 'extend'?"));
  CHECK(mentions(said({"job", "stop"}),
                 "unknown command 'stop'; 'gossipctl job' has extend, start\n"));
  CHECK(mentions(said({"key"}), "'gossipctl key' needs a command: generate, list"));
  CHECK(mentions(said({}), "'gossipctl' needs a command: "));
  CHECK(mentions(said({"status", "--timeuot", "5"}),
                 "unknown option '--timeuot'; did you mean '--timeout'?"));
  CHECK(mentions(said({"status", "now"}), "'gossipctl status' takes no argument 'now'"));
  CHECK(mentions(said({"job", "show"}), "try: gossipctl job, which shows the job"));
  CHECK(mentions(said({"wait", "finished"}), "try: gossipctl wait --for finished\n"));
  CHECK(mentions(said({"wait", "members"}), "try: gossipctl wait --help lists"));
  CHECK(mentions(said({"wait", "--for", "redy"}), "did you mean 'ready'?"));
  CHECK(mentions(said({"join", "foo:bar:3"}), "needs brackets"));
}

TEST_CASE("a timeout or a number of samples out of range is refused with the range") {
  for (const char* timeout : {"1e300", "nan", "inf", "-1", "0", "abc", "1e400"}) {
    CAPTURE(std::string(timeout));
    const Ran ran = gossipctl({"status", "--timeout", timeout});
    CHECK(ran.code == ExitCode::usage);
    CHECK(mentions(ran.err, "'" + std::string(timeout) + "'"));
    CHECK(mentions(ran.err, "from 0.001 to 31622400"));
  }
  for (const char* samples : {"0", "-5", "abc", "1e400", "1.5", "99999999999999999999"}) {
    CAPTURE(std::string(samples));
    const Ran ran = gossipctl({"job", "extend", samples});
    CHECK(ran.code == ExitCode::usage);
    CHECK(mentions(ran.err, "'" + std::string(samples) + "'"));
    CHECK(mentions(ran.err, "a whole number from 1 to 1152921504606846976"));
  }
  const Ran started = gossipctl({"job", "start", ""});
  CHECK(started.code == ExitCode::usage);
  CHECK(mentions(started.err, "the name is empty; give the job file"));
  for (const std::vector<std::string>& words : {std::vector<std::string>{"key", "install"},
                                                {"key", "use"},
                                                {"key", "generate"},
                                                {"forget"},
                                                {"checkpoint", "show"}}) {
    std::vector<std::string> line = words;
    line.emplace_back();
    const Ran ran = gossipctl(line);
    CHECK(ran.code == ExitCode::usage);
    CHECK(mentions(ran.err, "the name is empty; give "));
  }
}

TEST_CASE("the help names the commands within job, key and checkpoint") {
  const std::string help = gossipctl({"--help"}).out;
  for (const char* command : {"job start", "job extend", "key generate", "checkpoint export"})
    CHECK(mentions(help, command));
}

TEST_CASE("who extends the job hears when its disk has not taken that") {
  MadeUpDaemon daemon;
  const FakeServer server(handler_of(daemon));
  const auto extend = [&] {
    return gossipctl({"job", "extend", "5", "--rest", server.address()}).err;
  };
  CHECK_FALSE(mentions(extend(), "disk"));
  daemon.disk_answers = false;
  CHECK(mentions(extend(), "its disk has not taken that yet"));
}

TEST_CASE("a link whose neighbour has no known name shows its id") {
  MadeUpDaemon daemon;
  daemon.made_up_links[0].name.clear();
  daemon.made_up_links[0].peer = NodeId{0xabc};
  const FakeServer server(handler_of(daemon));
  CHECK(mentions(gossipctl({"links", "--rest", server.address()}).out, "0000000000000abc"));
}

TEST_CASE("the daemon's refusals become exit codes") {
  MadeUpDaemon daemon;
  daemon.refusal = Error{"already-left", "this node has left already"};
  daemon.made_up_job.reset();
  const FakeServer server(handler_of(daemon));
  const Ran leave = gossipctl({"leave", "--rest", server.address()});
  CHECK(leave.code == ExitCode::refused_by_state);
  CHECK(mentions(leave.err, "this node has left already"));
  CHECK(gossipctl({"pause", "--rest", server.address()}).code == ExitCode::refused_by_state);
  CHECK(gossipctl({"job", "--rest", server.address()}).code == ExitCode::not_found);
}

TEST_CASE("a daemon that asks for a token is exit code 5 without it") {
  MadeUpDaemon daemon;
  HttpServerOptions options;
  options.bearer_token = "0123456789abcdef";
  const FakeServer server(handler_of(daemon), options);
  CHECK(gossipctl({"status", "--rest", server.address()}).code == ExitCode::unauthorised);
  const TemporaryDirectory directory;
  const std::string file = directory.write("token", "0123456789abcdef\n");
  const Ran open_to_others =
      gossipctl({"status", "--rest", server.address(), "--token-file", file});
  CHECK(open_to_others.code == ExitCode::usage);
  CHECK(mentions(open_to_others.err, "chmod 600 " + file));
  std::filesystem::permissions(
      file, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  CHECK(gossipctl({"status", "--rest", server.address(), "--token-file", file}).code ==
        ExitCode::ok);
}

TEST_CASE("bytes that are no UTF-8 are a mistake of the command line, and no crash") {
  MadeUpDaemon daemon;
  const FakeServer server(handler_of(daemon));
  const std::vector<std::vector<std::string>> commands = {
      {"join", "caf\xe9"},       {"join", "box1", "\xff\xfe"},
      {"forget", "\xff"},        {"key", "install", "/tmp/\xc3.key"},
      {"key", "use", "\xff"},    {"key", "retire", "\xff"},
      {"wait", "--for", "\xff"}, {"job", "start", "caf\xe9.toml"}};
  for (std::vector<std::string> words : commands) {
    CAPTURE(words[0]);
    words.insert(words.end(), {"--rest", server.address()});
    const Ran ran = gossipctl(words);
    CHECK(ran.code == ExitCode::usage);
    CHECK(mentions(ran.err, "UTF-8"));
    CHECK(is_utf8(ran.err));
  }
  CHECK(daemon.joined.empty());
  for (const char* word : {"\xff", "--\xff", "status\x1b[31m"})
    CHECK(gossipctl({word}).code == ExitCode::usage);
}

TEST_CASE("no escape sequence of a peer or a user reaches the terminal") {
  const std::string evil =
      "box\x1b[2J\x1b]0;x\x07\xc2\x9b"
      "31m\xe2\x80\xae\nforged";
  MadeUpDaemon daemon;
  NodeSummary& node = daemon.made_up.node;
  node.name = daemon.made_up_members[1].record.name = daemon.made_up_links[0].name = evil;
  daemon.made_up_members[1].record.address.host = evil;
  node.waiting_for = evil;
  node.refusals[0].peer = node.refusals[0].reason.text = evil;
  node.refusals[0].count = 7;
  daemon.made_up_links[0].large_packets_lost = true;
  daemon.made_up.warnings.push_back({1, evil});
  daemon.made_up_job->name = daemon.made_up_job->document = evil;
  const FakeServer server(handler_of(daemon));
  for (const char* command : {"members", "links", "status", "job"})
    for (const char* output : {"table", "json"}) {
      CAPTURE(command);
      const Ran ran = gossipctl({command, "-o", output, "--rest", server.address()});
      CHECK(ran.code == ExitCode::ok);
      CHECK(printable(ran.out, Lines::many) == ran.out);
      if (std::string(command) != "job") CHECK(!mentions(ran.out, "\nforged"));
    }
  CHECK(mentions(gossipctl({"status", "--rest", server.address()}).out, "7 times"));
  CHECK(mentions(gossipctl({"links", "--rest", server.address()}).out, "open/large packets lost"));
  daemon.refusal = Error{"still-alive", evil};
  const Ran refused = gossipctl({"leave", "--rest", server.address()});
  CHECK(mentions(refused.err, "[2J"));
  CHECK(printable(refused.err, Lines::many) == refused.err);
}

TEST_CASE("a node that is to join itself is told so") {
  MadeUpDaemon daemon;
  daemon.refusal = Error{"self", "10.0.0.11:7610 is this node itself"};
  const FakeServer server(handler_of(daemon));
  const Ran join = gossipctl({"join", "10.0.0.11", "--rest", server.address()});
  CHECK(join.code == ExitCode::refused_by_state);
  CHECK(mentions(join.err, "10.0.0.11:7610 is this node itself"));
  CHECK(mentions(join.err, "another member"));
}

TEST_CASE("join, leave and checkpoint do what they say") {
  MadeUpDaemon daemon;
  const FakeServer server(handler_of(daemon));
  const Ran join = gossipctl({"join", "box7", "box8:1", "--rest", server.address()});
  CHECK(join.code == ExitCode::ok);
  CHECK(daemon.joined == std::vector<Endpoint>{{"box7", peer_port_default}, {"box8", 1}});
  const Ran leave = gossipctl({"leave", "--rest", server.address()});
  CHECK(leave.code == ExitCode::ok);
  CHECK(leave.out.empty());
  CHECK(mentions(leave.err, "left the cluster"));
  const Ran checkpoint = gossipctl({"checkpoint", "--rest", server.address()});
  CHECK(checkpoint.out == "/state/now.safetensors\n");
}

TEST_CASE("who starts a job hears that no daemon answers for a while, and what waits for it") {
  MadeUpDaemon daemon;
  const FakeServer server(handler_of(daemon));
  const Ran ran = gossipctl({"job", "start", "next.toml", "--rest", server.address()});
  CHECK(ran.code == ExitCode::ok);
  CHECK(mentions(ran.err, "starts again with it, and answers nothing for some seconds"));
  CHECK(mentions(ran.err, "gossipctl wait --for ready"));
}

TEST_CASE("wait ends when its condition holds") {
  MadeUpDaemon daemon;
  const FakeServer server(handler_of(daemon));
  for (const char* condition : {"ready", "members=1", "step=18240", "samples=5000"}) {
    CAPTURE(condition);
    CHECK(gossipctl({"wait", "--for", condition, "--rest", server.address(), "--timeout", "5"})
              .code == ExitCode::ok);
  }
}

TEST_CASE("wait for the end says whose model is missing at it") {
  MadeUpDaemon daemon;
  daemon.made_up.node.phase = Phase::finished;
  const FakeServer server(handler_of(daemon));
  const std::vector<std::string> wait = {"wait",           "--for",     "finished", "--rest",
                                         server.address(), "--timeout", "5"};
  CHECK(gossipctl(wait).err.empty());
  daemon.made_up.node.waiting_for = "one model everywhere; box3 is preparing";
  const Ran apart = gossipctl(wait);
  CHECK(apart.code == ExitCode::ok);
  CHECK(mentions(apart.err, "box3 is preparing"));
}

TEST_CASE("wait gives up with exit code 7 and says what it last saw; without any daemon it is 3") {
  MadeUpDaemon daemon;
  const FakeServer server(handler_of(daemon));
  const Ran waiting =
      gossipctl({"wait", "--for", "finished", "--rest", server.address(), "--timeout", "0.3"});
  CHECK(waiting.code == ExitCode::timeout);
  CHECK(mentions(waiting.err, "the node is training; 1 member alive, step"));
  CHECK(gossipctl({"wait", "--rest", "127.0.0.1:1", "--timeout", "0.1"}).code ==
        ExitCode::no_daemon);
}

TEST_CASE("a broken node makes status exit with 8, however it is shown") {
  MadeUpDaemon daemon;
  daemon.made_up.node.phase = Phase::broken;
  const FakeServer server(handler_of(daemon));
  for (const char* output : {"table", "tsv", "json"}) {
    CAPTURE(std::string(output));
    const Ran ran = gossipctl({"status", "-o", output, "--rest", server.address()});
    CHECK(ran.code == ExitCode::unhealthy);
    CHECK(mentions(ran.out, "broken"));
    CHECK(mentions(ran.err, "this node's training is broken"));
  }
}

TEST_CASE("key generate writes a key once and never over another") {
  const TemporaryDirectory directory;
  const std::string file = (directory.path() / "cluster.key").string();
  const Ran first = gossipctl({"key", "generate", file});
  CHECK(first.code == ExitCode::ok);
  CHECK(first.out == file + "\n");
  CHECK(read_cluster_key(file));
  CHECK(gossipctl({"key", "generate", file}).code == ExitCode::failed);
  CHECK(parse_cluster_key(gossipctl({"key", "generate", "-"}).out));
}

TEST_CASE("key list shows ids, and install, use and retire say what comes next") {
  MadeUpDaemon daemon;
  const FakeServer server(handler_of(daemon));
  const auto key = [&](std::vector<std::string> words) {
    words.insert(words.begin(), "key");
    words.insert(words.end(), {"--rest", server.address()});
    return gossipctl(words);
  };
  const Ran listed = key({"list"});
  CHECK(listed.code == ExitCode::ok);
  CHECK(mentions(listed.out, "00000000000000a1  in use"));
  CHECK(mentions(listed.out, "00000000000000a0  retired"));
  CHECK(mentions(key({"install", "relative.key"}).err, "gossipctl key use ID"));
  CHECK(daemon.installed == std::filesystem::absolute("relative.key").string());
  CHECK(mentions(key({"use", "00000000000000a2"}).err, "retire OLD-ID"));
  CHECK(daemon.used == 0xa2);
  daemon.refusal = Error{"key-in-use", "the key is in use"};
  const Ran refused = key({"retire", "00000000000000a1"});
  CHECK(refused.code == ExitCode::refused_by_state);
  CHECK(mentions(refused.err, "the key is in use"));
  CHECK(key({"use"}).code == ExitCode::usage);
}

TEST_CASE("version and completion need no daemon") {
  CHECK(gossipctl({"version"}).out == "gossipctl " GOSSIPD_VERSION "\n");
  CHECK(mentions(gossipctl({"completion", "bash"}).out, "complete -F _gossipctl gossipctl"));
  CHECK(gossipctl({"--help"}).code == ExitCode::ok);
}

TEST_CASE("help and version are found where people look for them") {
  CHECK(gossipctl({"--version"}).out == "gossipctl " GOSSIPD_VERSION "\n");
  CHECK(gossipctl({"-V"}).out == gossipctl({"version"}).out);
  CHECK(gossipctl({"help"}).out == gossipctl({"--help"}).out);
  CHECK(gossipctl({"help", "job", "extend"}).out == gossipctl({"job", "extend", "--help"}).out);
  const Ran mistyped = gossipctl({"help", "memebrs"});
  CHECK(mistyped.code == ExitCode::usage);
  CHECK(mentions(mistyped.err, "did you mean 'members'?"));
}

TEST_CASE("numbers are written for people") {
  CHECK(grouped(0) == "0");
  CHECK(grouped(999) == "999");
  CHECK(grouped(1000) == "1 000");
  CHECK(grouped(1234567) == "1 234 567");
  CHECK(human_seconds(0.21) == "0.2 s");
  CHECK(human_seconds(59.97) == "1 min 00 s");
  CHECK(human_seconds(185) == "3 min 05 s");
  CHECK(human_seconds(7800) == "2 h 10 min");
  CHECK(human_milliseconds(0.44) == "0.4 ms");
  CHECK(human_milliseconds(1200) == "1.2 s");
  CHECK(human_bytes(999) == "999 B");
  CHECK(human_bytes(1'200'000) == "1.2 MB");
  CHECK(human_bytes(123'000'000) == "123 MB");
}

TEST_CASE(
    "a table stays aligned with letters of several bytes, and no control character reaches the "
    "terminal") {
  std::ostringstream out;
  print_labelled(out, {{"NAME", "X"}, {"k\xc3\xb6ln", "1"}, {"a\x1b[2J", "2"}});
  CHECK(out.str() == "NAME   X\nk\xc3\xb6ln   1\na?[2J  2\n");
}
