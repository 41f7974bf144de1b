// What gossipctl doctor says of a synthetic daemon.
#include <doctest/doctest.h>

#include <algorithm>

#include "tests/unit/daemon_made_up.h"
#include "tools/gossipctl/doctor.h"

using namespace gossipd;

namespace {

bool mentions(const std::string& text, const std::string& what) {
  return text.find(what) != std::string::npos;
}

}  // namespace

TEST_CASE("doctor says how long an exchange takes on a line, and warns where that is too long") {
  MadeUpDaemon daemon;
  const auto check = [&] {
    const Json links = Json::parse(links_json(daemon.links(), daemon.sessions(), daemon.wire()));
    const Json status = Json::parse(status_json(daemon.status()));
    const std::vector<Check> checks =
        check_cluster({.status = status, .members = {}, .links = links, .later = links});
    return *std::ranges::find(checks, "link to box2", &Check::name);
  };
  CHECK(check().verdict == Verdict::warn);
  CHECK(mentions(check().what, "carries 10.0 Mbit/s, an exchange of 312 kB takes 250.0 ms"));
  CHECK(mentions(check().advice, "that is 25 steps, and one is due every 8"));
  daemon.made_up.node.step_seconds = 0.05;
  CHECK(check().verdict == Verdict::ok);
  // In six round trips TCP may not have found the line's limit.
  daemon.made_up_path->round_trip_min = std::chrono::milliseconds(40);
  CHECK(mentions(check().what, "carries at least 10.0 Mbit/s"));
  daemon.made_up_links[0].counters.turn_bytes = 4'000;
  CHECK(mentions(check().what, "an exchange of 4.0 kB takes 3.2 ms, which is too little"));
  CHECK(!mentions(check().what, "carries at"));
  daemon.made_up_path->busy = {};
  CHECK(mentions(check().what, "path MTU 1500"));
  CHECK(!mentions(check().what, "takes"));
  daemon.made_up_path.reset();
  CHECK(!mentions(check().what, "MTU"));
}

TEST_CASE("doctor says what a line carries now, where enough was sent within its own look") {
  MadeUpDaemon daemon;
  const auto links = [&] {
    return Json::parse(links_json(daemon.links(), daemon.sessions(), daemon.wire()));
  };
  const Json before = links(), status = Json::parse(status_json(daemon.status()));
  daemon.made_up_path->bytes_acknowledged += 100'000;
  daemon.made_up_path->busy += std::chrono::milliseconds(800);
  const std::vector<Check> checks =
      check_cluster({.status = status, .members = {}, .links = before, .later = links()});
  const Check line = *std::ranges::find(checks, "link to box2", &Check::name);
  CHECK(mentions(line.what, "carries 1.0 Mbit/s"));
}

TEST_CASE("doctor says nothing of the links of a node that has left") {
  MadeUpDaemon daemon;
  daemon.made_up_links[0].state = "down";
  const auto mentions_link = [&] {
    const Json links = Json::parse(links_json(daemon.links(), daemon.sessions(), daemon.wire()));
    const Json status = Json::parse(status_json(daemon.status()));
    const std::vector<Check> checks =
        check_cluster({.status = status, .members = {}, .links = links, .later = links});
    return std::ranges::find(checks, "link to box2", &Check::name) != checks.end();
  };
  CHECK(mentions_link());
  daemon.made_up.node.phase = Phase::left;
  CHECK_FALSE(mentions_link());
}

TEST_CASE("doctor tells a node that is shut out for its key or certificate, and forgets nobody") {
  MadeUpDaemon daemon;
  daemon.made_up_members[1].record.state = MemberState::failed;
  const auto look = [&] {
    const Json members = Json::parse(members_json(ClusterId{1}, daemon.members()));
    const Json status = Json::parse(status_json(daemon.status()));
    return check_cluster({.status = status, .members = members, .links = {}, .later = {}});
  };
  const auto check = [&](const char* name) {
    const std::vector<Check> checks = look();
    const auto found = std::ranges::find(checks, name, &Check::name);
    return found != checks.end() ? *found : Check{};
  };
  NodeSummary& node = daemon.made_up.node;
  node.isolated = true;
  CHECK(check("isolated").verdict == Verdict::warn);
  CHECK(mentions(check("member box2").advice, "gossipctl forget box2"));
  node.refusals = {{Instant(std::chrono::seconds(10)),
                    true,
                    "10.0.0.12",
                    {"wrong-key", "TLS: the peer's cluster key differs from ours"}}};
  CHECK(check("cluster key").verdict == Verdict::fail);
  CHECK(mentions(check("cluster key").what, "shut out: no session with 10.0.0.12: TLS"));
  CHECK(mentions(check("cluster key").advice, "gossipctl key install FILE"));
  CHECK(check("isolated").name.empty());
  CHECK(!mentions(check("member box2").advice, "gossipctl forget"));
  node.refusals[0].reason = {"dial-failed", "TLS: the peer does not accept our certificate"};
  CHECK(check("certificates").verdict == Verdict::fail);
  CHECK(mentions(check("certificates").advice, "the clock"));
  // The others see it turned away and go on.
  node.isolated = false;
  node.refusals[0].reason.code = "wrong-certificate";
  CHECK(check("certificates").verdict == Verdict::warn);
  daemon.made_up_members[1].no_answer = "TLS: the peer's cluster key differs from ours";
  CHECK(mentions(check("member box2").what, "it runs, but no session opens: TLS"));
  daemon.made_up_members[1].no_answer = "";
  daemon.made_up.refusals_now_s = 1000;  // and long ago
  CHECK(check("certificates").name.empty());
  CHECK(mentions(check("member box2").advice, "gossipctl forget box2"));
  daemon.made_up_members[1].record.name = "$(reboot)";  // nothing to paste
  CHECK(mentions(check("member $(reboot)").advice, "gossipctl forget 0"));
}

TEST_CASE("doctor names failed members of one name by their ids, in one line") {
  MadeUpDaemon daemon;
  const auto add = [&](std::uint64_t id, MemberState state) {
    daemon.made_up_members.push_back(MadeUpDaemon::member(id, "vm", false));
    daemon.made_up_members.back().record.state = state;
  };
  const auto checks = [&] {
    const Json members = Json::parse(members_json(ClusterId{1}, daemon.members()));
    const Json status = Json::parse(status_json(daemon.status()));
    std::vector<Check> found =
        check_cluster({.status = status, .members = members, .links = {}, .later = {}});
    std::erase_if(found, [](const Check& check) {
      return check.name != "member vm" || check.verdict == Verdict::ok;
    });
    return found;
  };
  add(0xc0, MemberState::alive);
  add(0xc1, MemberState::failed);
  REQUIRE(checks().size() == 1);
  CHECK(mentions(checks()[0].advice, "gossipctl forget 00000000000000c1 if it is gone for good"));
  add(0xc2, MemberState::failed);
  REQUIRE(checks().size() == 1);
  CHECK(checks()[0].what == "2 members of this name are failed");
  CHECK(mentions(checks()[0].advice,
                 "for id in 00000000000000c1 00000000000000c2; do gossipctl forget $id; done"));
  for (std::uint64_t id = 0xd0; id < 0xe0; ++id) add(id, MemberState::failed);
  REQUIRE(checks().size() == 1);
  CHECK(mentions(checks()[0].advice, "done; then gossipctl doctor, which names the next 2"));
  daemon.made_up.node.refusals = {{Instant(std::chrono::seconds(10)),
                                   true,
                                   "10.0.0.12",
                                   {"wrong-key", "TLS: the peer's cluster key differs from ours"}}};
  REQUIRE(checks().size() == 1);
  CHECK(mentions(checks()[0].advice, "do not forget members that may be running"));
}
