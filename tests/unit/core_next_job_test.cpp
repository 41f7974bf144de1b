// Which job of a cluster is in force, and a node's way to it.
#include "core/node/next_job.h"

#include <doctest/doctest.h>

#include "core/model/job_hash.h"
#include "core/wire/control.h"
#include "tests/lone_node.h"

using namespace gossipd;
using namespace std::chrono_literals;

namespace {

constexpr ClusterId ours{0xc1};
constexpr NodeId self{1};

// A member whose peers the test plays.
struct Member {
  explicit Member(const NodeState& state = LoneNode::state_of(self, ours),
                  const std::string& job = "first")
      : node(LoneNode::config_of(1), state) {
    auto schema = Schema::build({Segment{"s", {10}, 0, 10, SegmentKind::parameter}});
    REQUIRE(schema);
    node.prepare(*schema, job, job_hash_of(job), 0, true);
  }
  SessionId meet(const std::string& job, std::uint64_t number, NodeId id = NodeId{2}) {
    const SessionId session = node.open(false, {"peer", 2});
    Hello hello;
    hello.protocol = protocol_oldest;
    hello.newest = protocol_version;
    hello.cluster = JobGeneration{number, job_hash_of(job)}.meeting_in(ours);
    hello.id = id;
    hello.incarnation = 1;
    hello.name = "peer";
    hello.address = {"peer", 2};
    hello.instance = raw(id);
    hello.job = job_hash_of(job);
    hello.founded = ours;
    hello.generation = number;
    node.hear(session, hello);
    return session;
  }
  void tell(SessionId session, const std::string& job, std::uint64_t number) {
    node.hear(session, Succession{ours, number, job_hash_of(job), job});
  }
  // The disk answers.
  void keep(bool kept) {
    REQUIRE(node.next_job);
    const NodeState state = std::exchange(node.next_job, std::nullopt)->state;
    node.node().on_next_job_kept(state, kept, node.now());
    node.settle();
  }
  [[nodiscard]] std::string last_refusal() {
    const auto refusals = node.node().summary(node.now()).refusals;
    return refusals.empty() ? "" : refusals.back().reason.code;
  }
  // To these sessions, since the last call.
  [[nodiscard]] std::vector<SessionId> told() {
    std::vector<SessionId> sessions;
    for (const LoneNode::Sent& sent : node.take_sent()) {
      if (sent.lane != Lane::control) continue;
      const auto control = decode_control(*sent.message);
      REQUIRE(control);
      if (std::holds_alternative<Succession>(*control)) sessions.push_back(sent.session);
    }
    return sessions;
  }

  LoneNode node;
};

}  // namespace

TEST_CASE("the higher number is in force, of two alike the higher hash, and each meets by itself") {
  const JobGeneration first{1, JobHash{7}}, a{2, JobHash{1}}, b{2, JobHash{9}}, c{3, JobHash{1}};
  CHECK(first < a);
  CHECK(a < b);
  CHECK(b < c);
  CHECK(first.meeting_in(ours) == ours);
  CHECK(a.meeting_in(ours) != b.meeting_in(ours));
  CHECK(a.meeting_in(ours) != c.meeting_in(ours));
  CHECK(a.meeting_in(ours) != a.meeting_in(ClusterId{0xc2}));
  // Other releases must make the same of it.
  CHECK(raw(a.meeting_in(ours)) == 11548704566952893147u);
}

TEST_CASE("a number far beyond the own is not believed, and none lies beyond the range") {
  const JobGeneration job{3, JobHash{7}};
  CHECK(job.believes(3 + JobGeneration::jump_max));
  CHECK_FALSE(job.believes(4 + JobGeneration::jump_max));
  CHECK(job.believes(1));
  CHECK_FALSE(JobGeneration{counter_max - 1, JobHash{7}}.followed_by(JobHash{8}));
}

TEST_CASE("a later job is told once the disk has it, and the node goes when all know of it") {
  Member member;
  const SessionId teller = member.meet("first", 1, NodeId{2});
  const SessionId other = member.meet("first", 1, NodeId{3});
  (void)member.told();
  member.tell(teller, "second", 2);
  REQUIRE(member.node.next_job);
  const NodeState state = member.node.next_job->state;
  CHECK(state.job == job_hash_of("second"));
  CHECK(state.generation == 2);
  CHECK(state.cluster == ours);
  CHECK(state.id == self);
  CHECK(state.own_samples == 0);
  CHECK(state.former_job == job_hash_of("first"));
  CHECK(state.members.size() == 2);
  CHECK(member.told().empty());
  member.keep(true);
  CHECK(member.told() == std::vector{other});
  CHECK_FALSE(member.node.is_open(teller));  // it knows
  CHECK_FALSE(member.node.restart_asked);
  member.node.cut(other);
  CHECK(member.node.restart_asked);
}

TEST_CASE("who does not answer holds nobody up for long") {
  Member member;
  member.tell(member.meet("first", 1, NodeId{2}), "second", 2);
  member.meet("first", 1, NodeId{3});
  member.keep(true);
  member.node.pass(NextJob::telling / 2);
  CHECK_FALSE(member.node.restart_asked);
  member.node.pass(NextJob::telling);
  CHECK(member.node.restart_asked);
}

TEST_CASE("a job that the disk does not take is forgotten until it is heard of again") {
  Member member;
  const SessionId session = member.meet("first", 1);
  member.tell(session, "second", 2);
  member.keep(false);
  CHECK_FALSE(member.node.restart_asked);
  CHECK(member.node.node().summary(member.node.now()).generation == 1);
  member.tell(session, "second", 2);
  member.keep(true);
  CHECK(member.node.restart_asked);
}

TEST_CASE("of a job heard while another is written the later one counts") {
  Member member;
  const SessionId session = member.meet("first", 1);
  member.tell(session, "third", 3);
  const NodeState third = member.node.next_job->state;
  member.node.next_job.reset();
  member.tell(session, "second", 2);
  CHECK_FALSE(member.node.next_job);
  member.tell(session, "fourth", 4);
  REQUIRE(member.node.next_job);
  member.node.node().on_next_job_kept(third, true, member.node.now());
  member.node.settle();
  CHECK_FALSE(member.node.restart_asked);
  member.keep(true);
  CHECK(member.node.restart_asked);
}

TEST_CASE("members of two jobs exchange nothing but the later job's text") {
  Member member;
  const SessionId before = member.meet("first", 1);
  member.tell(before, "second", 2);
  const NodeState state = member.node.next_job->state;
  Member later(state, "second");
  const SessionId session = later.meet("first", 1);
  CHECK(later.told() == std::vector{session});
  CHECK_FALSE(later.node.is_open(session));
  // The other end waits for that, and believes no record meanwhile.
  Member earlier;
  const SessionId newer = earlier.meet("second", 2);
  REQUIRE(earlier.node.is_open(newer));
  MemberRecord record;
  record.id = NodeId{9};
  record.samples = 1'000'000;
  earlier.node.hear(newer, Members{{record}});
  CHECK(earlier.node.node().members(earlier.node.now()).size() == 1);
  earlier.tell(newer, "second", 2);
  CHECK(earlier.node.next_job);
}

TEST_CASE("a next job is refused whose text has another hash, or that cannot follow") {
  Member member;
  SessionId session = member.meet("first", 1);
  member.node.hear(session, Succession{ours, 2, job_hash_of("second"), "another"});
  CHECK(member.last_refusal() == "job-corrupt");
  session = member.meet("first", 1);
  member.tell(session, "second", 2 + JobGeneration::jump_max);
  CHECK(member.last_refusal() == "implausible");
  session = member.meet("first", 1);
  member.node.hear(session, Succession{ClusterId{0xc2}, 2, job_hash_of("second"), "second"});
  CHECK(member.last_refusal() == "implausible");
  member.tell(member.meet("first", 1), "first", 1);
  member.meet("second", 2 + JobGeneration::jump_max);
  CHECK(member.last_refusal() == "implausible");
  CHECK_FALSE(member.node.next_job);
}
