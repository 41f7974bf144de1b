// Which job of a cluster is in force: the rule, and a node that hears of another one.
#include "core/node/job_generation.h"

#include <doctest/doctest.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/wire/control.h"
#include "tests/lone_node.h"

using namespace gossipd;

namespace {

constexpr ClusterId ours{0xc1};

JobHash hash_of(const std::string& document) {
  return JobHash{XXH3_64bits(document.data(), document.size())};
}

// A member of job "first", whose peers the test plays.
struct Member {
  explicit Member(const NodeState& state = LoneNode::state_of(NodeId{1}, ours),
                  const std::string& job = "first")
      : node(LoneNode::config_of(1), state) {
    auto schema = Schema::build({Segment{"s", {10}, 0, 10, SegmentKind::parameter}});
    REQUIRE(schema);
    node.prepare(*schema, job, hash_of(job), 0, true);
  }
  SessionId meet(const std::string& job, std::uint64_t generation) {
    const SessionId session = node.open(false, {"peer", 2});
    Hello hello;
    hello.protocol = protocol_oldest;
    hello.newest = protocol_version;
    hello.cluster = ours;
    hello.id = NodeId{2};
    hello.incarnation = 1;
    hello.name = "peer";
    hello.address = {"peer", 2};
    hello.instance = 2;
    hello.job = hash_of(job);
    hello.generation = generation;
    node.hear(session, hello);
    return session;
  }
  void offer(SessionId session, const std::string& job, std::uint64_t generation) {
    node.hear(session, JobOffer{hash_of(job), 0, job, generation});
  }
  [[nodiscard]] std::string last_refusal() {
    const auto refusals = node.node().summary(node.now()).refusals;
    return refusals.empty() ? "" : refusals.back().reason.code;
  }
  // Of the job that was offered; empty: none.
  [[nodiscard]] std::string offered() {
    for (const LoneNode::Sent& sent : node.take_sent()) {
      if (sent.lane != Lane::control) continue;
      const auto control = decode_control(*sent.message);
      REQUIRE(control);
      if (const auto* offer = std::get_if<JobOffer>(&*control)) return offer->document;
    }
    return "";
  }

  LoneNode node;
};

}  // namespace

TEST_CASE("the higher generation is in force, of two alike that with the higher hash") {
  const JobGeneration a{2, JobHash{1}}, b{2, JobHash{9}}, c{3, JobHash{0x5}};
  CHECK(a < b);
  CHECK(b < c);
  CHECK(JobGeneration{} < a);
}

TEST_CASE("a peer that says no generation has the job of the founder, or none") {
  CHECK(JobGeneration::said(0, JobHash{7}) == JobGeneration{1, JobHash{7}});
  CHECK(JobGeneration::said(5, JobHash{}) == JobGeneration{});
}

TEST_CASE("a job follows any but itself, and never beyond the range") {
  const JobGeneration job{1, JobHash{7}};
  CHECK(job.followed_by(JobHash{8}) == JobGeneration{2, JobHash{8}});
  CHECK_FALSE(job.followed_by(JobHash{7}));
  CHECK_FALSE(JobGeneration{counter_max - 1, JobHash{7}}.followed_by(JobHash{8}));
}

TEST_CASE("a generation far beyond the own is not believed") {
  const JobGeneration job{3, JobHash{7}};
  CHECK(job.believes({3 + JobGeneration::jump_max, JobHash{1}}));
  CHECK_FALSE(job.believes({4 + JobGeneration::jump_max, JobHash{1}}));
  CHECK(job.believes({1, JobHash{1}}));
  CHECK(JobGeneration{}.believes({std::uint64_t{1} << 40, JobHash{1}}));
  CHECK_FALSE(JobGeneration{}.believes({counter_max, JobHash{1}}));
}

TEST_CASE("a member that is offered a later job goes on to it with nothing of the one before") {
  Member member;
  const SessionId session = member.meet("second", 2);
  CHECK_FALSE(member.node.restart_asked);
  member.offer(session, "second", 2);
  REQUIRE(member.node.restart_asked);
  CHECK(member.node.next_job == "second");
  REQUIRE(member.node.persisted);
  CHECK(member.node.persisted->job == hash_of("second"));
  CHECK(member.node.persisted->generation == 2);
  CHECK(member.node.persisted->cluster == ours);
  CHECK(member.node.persisted->own_samples == 0);
  CHECK_FALSE(member.node.persisted->founder);
}

TEST_CASE("a member of the later job offers it to one of an earlier job, and refuses the session") {
  Member member;
  REQUIRE_FALSE(member.node.node().start_job("second", hash_of("second"), true, member.node.now()));
  member.node.settle();
  REQUIRE(member.node.persisted);
  Member later(*member.node.persisted, "second");
  later.meet("first", 1);
  CHECK(later.offered() == "second");
  CHECK(later.last_refusal() == "older-job");
}

TEST_CASE("a job is refused whose text has another hash, or that does not follow the own") {
  Member member;
  SessionId session = member.meet("second", 2);
  member.node.hear(session, JobOffer{hash_of("second"), 0, "another", 2});
  CHECK(member.last_refusal() == "job-corrupt");
  session = member.meet("second", 2);
  member.offer(session, "second", 3 + JobGeneration::jump_max);
  CHECK(member.last_refusal() == "implausible");
  member.meet("second", 3 + JobGeneration::jump_max);
  CHECK(member.last_refusal() == "implausible");
  CHECK_FALSE(member.node.restart_asked);
}

TEST_CASE("a job that runs is only replaced where the operator says so, and never by itself") {
  Member member;
  Node& node = member.node.node();
  const Instant now = member.node.now();
  const auto running = node.start_job("second", hash_of("second"), false, now);
  REQUIRE(running);
  CHECK(running->code == "job-running");
  CHECK(running->text.find("--replace") != std::string::npos);
  const auto same = node.start_job("first", hash_of("first"), true, now);
  REQUIRE(same);
  CHECK(same->code == "same-job");
  CHECK_FALSE(node.start_job("second", hash_of("second"), true, now));
}
