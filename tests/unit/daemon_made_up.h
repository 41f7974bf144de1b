// tests/unit/daemon_made_up.h - a daemon that consists only of its view, for everything that
// renders one.
#pragma once

#include "daemon/rest/events.h"
#include "daemon/rest/member_history.h"
#include "daemon/rest/rest.h"

namespace gossipd {

class MadeUpDaemon final : public DaemonPort {
 public:
  MadeUpDaemon() {
    NodeSummary& n = made_up.node;
    n.id = NodeId{0xaa};
    n.name = "box1";
    n.cluster = ClusterId{0xc1};
    n.job = JobHash{0x10b};
    n.phase = Phase::training;
    n.own_samples = 2500;
    n.cluster_samples = n.cluster_samples_estimate = 5000;
    n.budget_samples = 10000;
    n.step = 18240;
    n.loss = 0.2314;
    n.linked_steps = 7;
    n.members_by_state = {1, 1, 0, 0};
    n.cluster_samples_per_second = 300;
    n.links_open = 1;
    n.step_seconds = 0.01;
    made_up.exchange_period_steps = 8;
    made_up_members = {member(0xaa, "box1", true), member(0xbb, "box2", false)};
    made_up_members[1].record.samples_per_second = 200;
    made_up_members[0].record.samples_per_second = 300;
    made_up_members[1].record.state = MemberState::suspect;
    made_up_links.resize(1);
    LinkView& link = made_up_links[0];
    link.peer = NodeId{0xbb};
    link.session = SessionId{7};
    link.name = "box2";
    link.address = {"10.0.0.12", 7610};
    link.state = "open";
    link.rtt_ms = 0.4;
    link.quarantine_s = 20;
    link.protocol = 3;
    link.age_steps = 4;
    link.counters.gain = 0.4321;
    link.counters.deltas_sent = 12;
    link.counters.turn_bytes = 312'500;
    link.counters.turns_suppressed = 3;
    link.counters.refused[static_cast<std::size_t>(Reject::not_finite)] = 2;
    link.counters.change = 0.02;
    n.refusals.push_back({Instant(std::chrono::seconds(10)),
                          true,
                          "10.0.0.9:40000",
                          {"job-mismatch", "another job"}});
    made_up.refusals_now_s = 15;
    made_up.version = "test";
    made_up.address = {"10.0.0.11", 7610};
    made_up.model_floats = 100;
    made_up.wire.bytes_sent = 1000;
    made_up.wire.bytes_received = 900;
    made_up.wire.sessions = 1;
    made_up.wire.dials_failed["connect-refused"] = 2;
    made_up.job_name = "tiny";
    made_up_job = JobView{JobHash{0x10b}, "tiny", "name = \"tiny\"\n", 100};
    made_up.evaluation = EvaluationView{
        {.loss = 0.25, .accuracy = 0.91, .top5_accuracy = 0.99, .perplexity = {}}, 18000, 4900, 3};
    made_up.best = Figures{.loss = 0.24, .accuracy = 0.92, .top5_accuracy = {}, .perplexity = {}};
    made_up.checkpoints["current"] = {
        "/state/current.safetensors", 100, 18000, 2400, 4096, std::nullopt, std::nullopt};
  }

  static MemberView member(std::uint64_t id, const std::string& name, bool self) {
    MemberView m;
    m.record.id = NodeId{id};
    m.record.name = name;
    m.record.address = {self ? "10.0.0.11" : "10.0.0.12", 7610};
    m.record.phase = Phase::training;
    m.record.step = 18240;
    m.record.batch = 64;
    m.record.loss = 0.2314;
    m.self = self;
    m.linked = !self;
    m.rtt_ms = self ? 0 : 0.4;
    m.age_s = 0.21;
    return m;
  }

  [[nodiscard]] NodeSummary node() const override { return made_up.node; }
  [[nodiscard]] StatusView status() const override { return made_up; }
  [[nodiscard]] std::vector<MemberView> members() const override {
    ++members_asked_for;
    return made_up_members;
  }
  [[nodiscard]] std::vector<LinkView> links() const override { return made_up_links; }
  [[nodiscard]] std::vector<SessionView> sessions() const override {
    return {{.id = SessionId{3}, .address = {"10.0.0.13", 7610}},
            {.id = SessionId{7},
             .address = {"10.0.0.12", 7610},
             .outbound = true,
             .age_s = 60,
             .bytes_sent = 600,
             .bytes_received = 500,
             .path = made_up_path}};
  }
  [[nodiscard]] WireView wire() const override { return made_up.wire; }
  [[nodiscard]] std::optional<JobView> job() const override { return made_up_job; }
  [[nodiscard]] bool stopping() const override { return made_up.stopping; }
  [[nodiscard]] const History& history() const override { return past; }
  [[nodiscard]] const MemberHistory& member_history() const override { return members_past; }
  [[nodiscard]] Events& events() override { return live; }
  [[nodiscard]] std::optional<Error> join(std::vector<Endpoint> seeds) override {
    joined = std::move(seeds);
    return refusal;
  }
  [[nodiscard]] std::optional<Error> leave() override {
    if (!refusal) made_up.node.phase = Phase::left;
    return refusal;
  }
  [[nodiscard]] std::optional<Error> pause() override { return refusal; }
  [[nodiscard]] std::optional<Error> resume() override { return refusal; }
  void start_job(const std::string& file, JobStarted done) override {
    started = file;
    if (refusal) return done(*refusal);
    done(StartedJob{"second", JobHash{7}, 2});
  }
  [[nodiscard]] std::optional<Error> forget(NodeId member) override {
    forgot = member;
    return refusal;
  }
  [[nodiscard]] std::optional<Error> extend_budget(Samples more) override {
    extended_by = more;
    return refusal;
  }
  void write_checkpoint(std::function<void(Result<CheckpointView>)> done) override {
    if (refusal) return done(*refusal);
    CheckpointView written;
    written.path = "/state/now.safetensors";
    done(written);
  }
  void when_on_disk(std::function<void(bool)> done) override { done(disk_answers); }
  [[nodiscard]] Result<KeysView> keys() const override { return made_up_keys; }
  void install_key(const std::string& file, KeysChanged done) override {
    installed = file;
    done(refusal);
  }
  void use_key(std::uint64_t id, KeysChanged done) override {
    used = id;
    done(refusal);
  }
  void retire_key(std::uint64_t id, KeysChanged done) override {
    retired = id;
    done(refusal);
  }

  StatusView made_up;
  std::vector<MemberView> made_up_members;
  std::vector<LinkView> made_up_links;
  std::optional<TcpPath> made_up_path = TcpPath{.mtu = 1500,
                                                .round_trip_min = std::chrono::microseconds(300),
                                                .bytes_acknowledged = 5'000'000,
                                                .busy = std::chrono::seconds(4)};
  std::optional<JobView> made_up_job;
  mutable int members_asked_for = 0;
  History past;
  MemberHistory members_past;
  Events live{7};
  std::vector<Endpoint> joined;
  bool disk_answers = true;
  Samples extended_by = 0;
  std::string started;  // job file
  NodeId forgot{};
  Result<KeysView> made_up_keys = KeysView{{{0xa1, true, 2}, {0xa2, false, 0}}, {0xa0}};
  std::string installed;
  std::uint64_t used = 0, retired = 0;
  std::optional<Error> refusal;  // the answer to every command
};

}  // namespace gossipd
