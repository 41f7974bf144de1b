#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "core/base/printable.h"
#include "daemon/rest/metrics.h"
#include "daemon/rest/rest.h"
#include "tests/unit/daemon_made_up.h"

using namespace gossipd;
using Json = nlohmann::json;

namespace {

HttpResponse ask(DaemonPort& port, const std::string& method, const std::string& path,
                 const std::string& body = {}) {
  const HttpRouter router = make_rest(port);
  HttpRequest request;
  request.method = method;
  request.path = path;
  request.body = body;
  HttpResponse answer;
  answer.status = 0;
  router(request, [&answer](HttpResponse response) { answer = std::move(response); });
  return answer;
}

Json json_of(const HttpResponse& response) {
  const Json json = Json::parse(response.body, nullptr, false);
  REQUIRE(json.is_object());
  return json;
}

bool mentions(const std::string& text, const std::string& what) {
  return text.find(what) != std::string::npos;
}

}  // namespace

TEST_CASE("/v1/status says what the node does, in named units and hex ids") {
  MadeUpDaemon daemon;
  const Json json = json_of(ask(daemon, "GET", "/v1/status"));
  CHECK(json["id"] == "00000000000000aa");
  CHECK(json["phase"] == "training");
  CHECK(json["ready"] == true);
  CHECK(json["cluster_samples"] == 5000);
  CHECK(json["progress"] == 0.5);
  CHECK(json["accuracy"] == 0.91);
  CHECK(json["bytes_sent_total"] == 1000);
  CHECK(json["dense_baseline_bytes"] == 7ull * 8 * 100);
  CHECK(json["checkpoints"]["current"]["path"] == "/state/current.safetensors");
  CHECK(json["checkpoints"]["current"]["written_at"] == "1970-01-01T00:01:40Z");
  CHECK(json["refusals"][0]["code"] == "job-mismatch");
  CHECK(json["refusals"][0]["by"] == "us");
  CHECK(json["refusals"][0]["age_s"] == doctest::Approx(5.0));
}

TEST_CASE(
    "a part of a shared set is shown with its place, and null where nodes have data of their own") {
  MadeUpDaemon daemon;
  CHECK(json_of(ask(daemon, "GET", "/v1/status"))["trainer"]["division"].is_null());
  daemon.made_up.trainer.division = DivisionStatus{3, 16384, 5461, 60000, 20001};
  daemon.made_up.trainer.data_position = 2 * 60000 + 15000;
  CHECK(json_of(ask(daemon, "GET", "/v1/status"))["trainer"]["division"] ==
        Json{{"mode", "shared"},
             {"members", 3},
             {"buckets", 16384},
             {"buckets_owned", 5461},
             {"samples", 60000},
             {"samples_owned", 20001},
             {"pass", 2},
             {"place", 15000}});
}

TEST_CASE("the time left follows the speed of the members that train") {
  MadeUpDaemon daemon;
  CHECK(json_of(ask(daemon, "GET", "/v1/status"))["time_left_s"] ==
        doctest::Approx(5000.0 / 300.0));
  daemon.made_up.node.cluster_samples_per_second = 0;  // nobody trains
  CHECK(json_of(ask(daemon, "GET", "/v1/status"))["time_left_s"].is_null());
}

TEST_CASE("how long the protocol thread was kept is shown, the longest and how often it was long") {
  MadeUpDaemon daemon;
  for (const int ms : {3, 250, 40, 100, 101})
    daemon.made_up.stalls.note(std::chrono::milliseconds(ms));
  const Json json = json_of(ask(daemon, "GET", "/v1/status"));
  CHECK(json["stall_max_ms"] == 250.0);
  CHECK(json["stalls_beyond_100_ms"] == 2);
  const std::string metrics = ask(daemon, "GET", "/metrics").body;
  CHECK(mentions(metrics, "gossipd_stall_seconds_max 0.25"));
  CHECK(mentions(metrics, "gossipd_stalls_total 2"));
}

TEST_CASE("the list of members is made for a request that shows it, and for no other") {
  MadeUpDaemon daemon;
  for (const char* path : {"/livez", "/readyz", "/metrics", "/v1/status", "/v1/links", "/v1/job",
                           "/v1/history", "/v1/keys"})
    CHECK(ask(daemon, "GET", path).status == 200);
  CHECK(ask(daemon, "POST", "/v1/training/pause").status == 202);
  CHECK(daemon.members_asked_for == 0);
  CHECK(ask(daemon, "GET", "/v1/members").status == 200);
  CHECK(daemon.members_asked_for == 1);
}

TEST_CASE("/v1/members lists everybody, this node marked") {
  MadeUpDaemon daemon;
  const Json json = json_of(ask(daemon, "GET", "/v1/members"));
  REQUIRE(json["members"].size() == 2);
  CHECK(json["members"][0]["self"] == true);
  CHECK(json["members"][0]["rtt_ms"].is_null());
  CHECK(json["members"][1]["name"] == "box2");
  CHECK(json["members"][1]["rtt_ms"] == 0.4);
  CHECK(json["members"][1]["state"] == "suspect");
}

TEST_CASE("/v1/links shows each neighbour's counters and each session's bytes on the wire") {
  MadeUpDaemon daemon;
  const Json json = json_of(ask(daemon, "GET", "/v1/links"));
  REQUIRE(json["links"].size() == 1);
  const Json& link = json["links"][0];
  CHECK(link["deltas_sent"] == 12);
  CHECK(link["turns_suppressed"] == 3);
  CHECK(link["deltas_refused"] == 2);
  CHECK(link["refused"][to_string(Reject::not_finite)] == 2);
  CHECK(link["change"] == 0.02);
  CHECK(link["age_steps"] == 4.0);
  CHECK(link["protocol"] == 3);
  CHECK(json["sessions"][1]["wire_bytes_sent"] == 600);
}

TEST_CASE("/v1/links shows of each link what the kernel knows of its connection's path") {
  MadeUpDaemon daemon;
  const auto path = [&] { return json_of(ask(daemon, "GET", "/v1/links"))["links"][0]["path"]; };
  CHECK(path()["mtu"] == 1500);
  CHECK(path()["rtt_min_ms"] == 0.3);
  CHECK(path()["bytes_acknowledged"] == 5'000'000);
  CHECK(path()["busy_s"] == 4.0);
  daemon.made_up_links[0].session = SessionId{};
  CHECK(path().is_null());
}

TEST_CASE("a name that is no UTF-8 and a loss that is no number still make valid JSON") {
  MadeUpDaemon daemon;
  daemon.made_up_members[1].record.name = "b\xff\xfe";
  daemon.made_up.node.loss = std::numeric_limits<double>::quiet_NaN();
  json_of(ask(daemon, "GET", "/v1/members"));
  CHECK(json_of(ask(daemon, "GET", "/v1/status"))["loss"].is_null());
}

TEST_CASE("/readyz is 200 only while the node can be used, and says why not") {
  MadeUpDaemon daemon;
  const Phase usable[] = {Phase::training, Phase::paused, Phase::waiting_for_trainer,
                          Phase::finishing, Phase::finished};
  for (const Phase phase : usable) {
    daemon.made_up.node.phase = phase;
    CHECK(ask(daemon, "GET", "/readyz").status == 200);
  }
  const Phase other[] = {Phase::joining, Phase::waiting_for_data, Phase::preparing,
                         Phase::syncing, Phase::leaving,          Phase::left,
                         Phase::broken};
  static_assert(std::size(usable) + std::size(other) == phase_count);
  for (const Phase phase : other) {
    daemon.made_up.node.phase = phase;
    CHECK(ask(daemon, "GET", "/readyz").status == 503);
  }
  daemon.made_up.node.phase = Phase::joining;
  daemon.made_up.node.waiting_for = "a seed to answer";
  const HttpResponse answer = ask(daemon, "GET", "/readyz");
  CHECK(answer.content_type == "application/problem+json");
  CHECK(json_of(answer)["code"] == "not-ready");
  CHECK(mentions(answer.body, "joining: a seed to answer"));
  CHECK(ask(daemon, "GET", "/livez").status == 200);
}

TEST_CASE("/v1/job is 404 with a stable code until the job is known") {
  MadeUpDaemon daemon;
  CHECK(json_of(ask(daemon, "GET", "/v1/job"))["document"] == "name = \"tiny\"\n");
  daemon.made_up_job.reset();
  const HttpResponse answer = ask(daemon, "GET", "/v1/job");
  CHECK(answer.status == 404);
  CHECK(json_of(answer)["code"] == "no-job");
  CHECK_FALSE(json_of(answer)["hint"].get<std::string>().empty());
}

TEST_CASE("joining takes seeds as a list inside an object, or nothing") {
  MadeUpDaemon daemon;
  CHECK(ask(daemon, "POST", "/v1/cluster/join", R"({"seeds":["box9","[::1]:5"]})").status == 202);
  REQUIRE(daemon.joined.size() == 2);
  CHECK(daemon.joined[0] == Endpoint{"box9", peer_port_default});
  CHECK(ask(daemon, "POST", "/v1/cluster/join").status == 202);
  for (const char* bad : {"[]", "{\"seed\":[]}", "{\"seeds\":\"box\"}", "{\"seeds\":[1]}",
                          "{\"seeds\":[\"a b\"]}", "nonsense"}) {
    const HttpResponse answer = ask(daemon, "POST", "/v1/cluster/join", bad);
    CHECK(answer.status == 400);
    CHECK(json_of(answer)["code"] == "bad-request");
  }
}

TEST_CASE("a command that the node's state refuses is 409 with the node's own code") {
  MadeUpDaemon daemon;
  CHECK(ask(daemon, "POST", "/v1/training/pause").status == 202);
  CHECK(ask(daemon, "POST", "/v1/job/extend", R"({"samples": 500})").status == 202);
  CHECK(daemon.extended_by == 500);
  for (const char* body : {"", "{}", "[1]", R"({"samples": -1})", R"({"samples": 5, "budget": 7})"})
    CHECK(ask(daemon, "POST", "/v1/job/extend", body).status == 400);
  CHECK(
      json_of(ask(daemon, "POST", "/v1/job/extend", R"({"samples": 5, "budget": 7})"))["detail"] ==
      "'budget' is unknown; only 'samples' is understood");
  const HttpResponse started = ask(daemon, "POST", "/v1/job/start", R"({"file": "/b.toml"})");
  CHECK(started.status == 202);
  CHECK(json_of(started) == Json{{"name", "second"}, {"hash", "0000000000000007"}, {"number", 2}});
  CHECK(daemon.started == "/b.toml");
  CHECK(ask(daemon, "POST", "/v1/members/forget", R"({"id": "00000000000000ab"})").status == 202);
  CHECK(daemon.forgot == NodeId{0xab});
  for (const char* body :
       {"", "{}", R"({"id": 171})", R"({"id": "ab"})", R"({"id": "00000000000000xy"})"})
    CHECK(ask(daemon, "POST", "/v1/members/forget", body).status == 400);
  daemon.refusal = Error{"still-alive", "box2 has neither failed nor left"};
  CHECK(ask(daemon, "POST", "/v1/members/forget", R"({"id": "00000000000000ab"})").status == 409);
  daemon.refusal = Error{"unknown-member", "no member has this id"};
  CHECK(ask(daemon, "POST", "/v1/members/forget", R"({"id": "00000000000000ab"})").status == 404);
  for (const auto& [code, status] :
       {std::pair("job-running", 409), std::pair("no-job", 409), std::pair("no-data", 400),
        std::pair("still-trying", 504), std::pair("no-space", 500), std::pair("io-error", 500),
        std::pair("state-gone", 500)}) {
    CAPTURE(code);
    daemon.refusal = Error{code, "no"};
    CHECK(ask(daemon, "POST", "/v1/job/start", R"({"file": "/b.toml"})").status == status);
  }
  daemon.refusal = Error{"not-training", "nothing to pause"};
  for (const char* path :
       {"/v1/cluster/join", "/v1/cluster/leave", "/v1/training/pause", "/v1/training/resume"}) {
    const HttpResponse answer = ask(daemon, "POST", path);
    CHECK(answer.status == 409);
    CHECK(json_of(answer)["code"] == "not-training");
  }
}

TEST_CASE(
    "a budget that cannot be is no matter of the node's state, and the hint says what can be") {
  MadeUpDaemon daemon;
  daemon.refusal = Error{"bad-budget", "0 samples extend nothing"};
  const HttpResponse answer = ask(daemon, "POST", "/v1/job/extend", R"({"samples": 0})");
  CHECK(answer.status == 400);
  CHECK(json_of(answer)["code"] == "bad-budget");
  CHECK(json_of(answer)["hint"] ==
        "samples is what is added to the budget of 10000: at least 1, and both together at most "
        "1152921504606846976");
  daemon.refusal = Error{"left", "this node leaves the cluster"};
  CHECK(ask(daemon, "POST", "/v1/job/extend", R"({"samples": 5})").status == 409);
}

TEST_CASE("a next job for which the disk has no room is told to make some, not to try the job") {
  MadeUpDaemon daemon;
  daemon.refusal = Error{"no-space", "job.toml: cannot write it: No space left on device"};
  const Json answer = json_of(ask(daemon, "POST", "/v1/job/start", R"({"file": "/b.toml"})"));
  CHECK(mentions(answer["hint"], "free some space"));
  CHECK_FALSE(mentions(answer["hint"], "--check-config"));
}

TEST_CASE("a job for whose trial no process can be started is no matter of the disk's") {
  MadeUpDaemon daemon;
  daemon.refusal = Error{"not-tried", "no process can be started to try the job"};
  const HttpResponse response = ask(daemon, "POST", "/v1/job/start", R"({"file": "/b.toml"})");
  CHECK(response.status == 500);
  const Json answer = json_of(response);
  CHECK(mentions(answer["hint"], "ulimit"));
  CHECK_FALSE(mentions(answer["hint"], "disk"));
}

TEST_CASE(
    "a job whose trial takes long is said to be tried still, and where its end is to be seen") {
  MadeUpDaemon daemon;
  daemon.refusal = Error{"still-trying", "trying the job takes longer than 50 s"};
  const Json answer = json_of(ask(daemon, "POST", "/v1/job/start", R"({"file": "/b.toml"})"));
  CHECK(answer["code"] == "still-trying");
  CHECK(answer["title"] == "The job is still tried");
  CHECK(mentions(answer["hint"], "gossipctl status"));
  CHECK(mentions(answer["hint"], "waiting_for"));
  CHECK(mentions(answer["hint"], "warnings"));
}

TEST_CASE(
    "a command that the disk does not come to know says so, and a checkpoint or a key that is late "
    "is 504") {
  MadeUpDaemon daemon;
  CHECK_FALSE(
      json_of(ask(daemon, "POST", "/v1/job/extend", R"({"samples": 500})")).contains("on_disk"));
  daemon.disk_answers = false;
  for (const auto& [path, body] :
       {std::pair("/v1/job/extend", R"({"samples": 500})"), std::pair("/v1/cluster/join", ""),
        std::pair("/v1/members/forget", R"({"id": "0123456789abcdef"})"),
        std::pair("/v1/training/pause", ""), std::pair("/v1/training/resume", "")}) {
    const HttpResponse answer = ask(daemon, "POST", path, body);
    CHECK(answer.status == 202);
    CHECK(json_of(answer)["on_disk"] == false);
  }
  daemon.refusal = Error{"disk-slow", "not on disk after 5 s"};
  for (const auto& [path, body] : {std::pair("/v1/checkpoint", ""),
                                   std::pair("/v1/keys/use", R"({"id": "00000000000000a2"})")}) {
    const HttpResponse answer = ask(daemon, "POST", path, body);
    CHECK(answer.status == 504);
    CHECK(json_of(answer)["code"] == "disk-slow");
  }
  daemon.made_up.disk.writing = "node.json";
  daemon.made_up.disk.writing_s = 7;
  daemon.made_up.disk.slow = true;
  const Json disk = json_of(ask(daemon, "GET", "/v1/status"))["disk"];
  CHECK(disk["slow"] == true);
  CHECK(disk["writing"] == "node.json");
  CHECK(disk["writing_s"] == 7);
  CHECK(mentions(ask(daemon, "GET", "/metrics").body, "gossipd_disk_slow 1"));
}

TEST_CASE("a checkpoint is answered when it is written, or with the reason why it was not") {
  MadeUpDaemon daemon;
  CHECK(json_of(ask(daemon, "POST", "/v1/checkpoint"))["checkpoint"]["path"] ==
        "/state/now.safetensors");
  daemon.refusal = Error{"no-space", "the disk is full"};
  const HttpResponse full = ask(daemon, "POST", "/v1/checkpoint");
  CHECK(full.status == 500);
  CHECK(mentions(json_of(full)["hint"], "disk"));
  for (const char* const code : {"not-finite", "device-failed"}) {
    daemon.refusal = Error{code, "no fault of the disk"};
    const HttpResponse failed = ask(daemon, "POST", "/v1/checkpoint");
    CHECK(failed.status == 500);
    CHECK(json_of(failed)["code"] == code);
    CHECK_FALSE(mentions(json_of(failed)["hint"], "disk"));
  }
  daemon.refusal = Error{"no-model", "nothing to write"};
  CHECK(ask(daemon, "POST", "/v1/checkpoint").status == 409);
}

TEST_CASE("keys are shown by id and changed by file and id, never by secret") {
  MadeUpDaemon daemon;
  Json json = json_of(ask(daemon, "GET", "/v1/keys"));
  REQUIRE(json["keys"].size() == 2);
  CHECK(json["keys"][0] == Json{{"id", "00000000000000a1"}, {"in_use", true}, {"sessions", 2}});
  CHECK(json["retired"] == Json::array({"00000000000000a0"}));
  CHECK(ask(daemon, "POST", "/v1/keys/install", R"({"file": "/etc/gossipd/new.key"})").status ==
        200);
  CHECK(daemon.installed == "/etc/gossipd/new.key");
  const HttpResponse unnamed = ask(daemon, "POST", "/v1/keys/install", R"({"file": ""})");
  CHECK(unnamed.status == 400);
  CHECK(json_of(unnamed)["detail"] == "'file' is empty");
  CHECK(daemon.installed == "/etc/gossipd/new.key");
  CHECK(ask(daemon, "POST", "/v1/keys/use", R"({"id": "00000000000000a2"})").status == 200);
  CHECK(daemon.used == 0xa2);
  CHECK(ask(daemon, "POST", "/v1/keys/retire", R"({"id": "00000000000000a1"})").status == 200);
  CHECK(daemon.retired == 0xa1);
  for (const char* body :
       {"", "[]", R"({"id": 5})", R"({"id": "a2"})", R"({"id": "zz000000000000a2"})",
        R"({"id": "00000000000000a2", "more": "x"})"}) {
    CAPTURE(body);
    CHECK(ask(daemon, "POST", "/v1/keys/use", body).status == 400);
  }
  daemon.refusal = Error{"key-in-use", "the key is in use"};
  const HttpResponse refused =
      ask(daemon, "POST", "/v1/keys/retire", R"({"id": "00000000000000a1"})");
  CHECK(refused.status == 409);
  CHECK(json_of(refused)["code"] == "key-in-use");
  for (const char* code : {"no-space", "io-error", "key-write", "state-gone"}) {
    daemon.refusal = Error{code, "the disk"};
    for (const auto& [path, body] : {std::pair("/v1/keys/install", R"({"file": "/new.key"})"),
                                     std::pair("/v1/keys/use", R"({"id": "00000000000000a2"})")}) {
      const HttpResponse answer = ask(daemon, "POST", path, body);
      CHECK(answer.status == 500);
      CHECK(json_of(answer)["code"] == code);
    }
  }
  daemon.made_up_keys = Error{"no-key", "started with --key-file none"};
  CHECK(ask(daemon, "GET", "/v1/keys").status == 404);
  const Error certificates{"certificates", "this cluster uses certificates"};
  daemon.made_up_keys = certificates;
  daemon.refusal = certificates;
  for (const HttpResponse& answer :
       {ask(daemon, "GET", "/v1/keys"),
        ask(daemon, "POST", "/v1/keys/use", R"({"id": "00000000000000a2"})")}) {
    CHECK(answer.status == 404);
    CHECK(json_of(answer)["code"] == "certificates");
    CHECK(json_of(answer)["detail"] == "this cluster uses certificates");
  }
}

TEST_CASE("an unknown path is 404, a wrong method 405") {
  MadeUpDaemon daemon;
  CHECK(ask(daemon, "GET", "/v1/nothing").status == 404);
  CHECK(ask(daemon, "GET", "/v1/cluster/leave").status == 405);
}

TEST_CASE("metrics are Prometheus text: one TYPE per name, base units, our prefix") {
  const MadeUpDaemon daemon;
  const std::string text = metrics_text(daemon.status(), daemon.links());
  CHECK(mentions(text, "# TYPE gossipd_cluster_samples_total counter"));
  CHECK(mentions(text, "gossipd_cluster_samples_total 5000"));
  CHECK(mentions(text, "gossipd_phase{phase=\"training\"} 1"));
  CHECK(mentions(text, "gossipd_wire_bytes_total{direction=\"sent\"} 1000"));
  CHECK(mentions(text, "gossipd_members{state=\"suspect\"} 1"));
  CHECK(mentions(text, "gossipd_trouble 0"));
  CHECK(mentions(text,
                 "gossipd_link_quarantine_seconds{peer=\"box2\",peer_id=\"00000000000000bb\"} 20"));
  CHECK(mentions(text,
                 "gossipd_link_rtt_seconds{peer=\"box2\",peer_id=\"00000000000000bb\"} 0.0004"));
  std::istringstream lines(text);
  std::map<std::string, int> types;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("# TYPE ")) ++types[line.substr(7, line.find(' ', 7) - 7)];
    CHECK((line.empty() || line.starts_with("#") || line.starts_with("gossipd_")));
  }
  for (const auto& [name, count] : types) CHECK_MESSAGE(count == 1, name);
}

TEST_CASE("metrics stay readable whatever a peer calls itself") {
  MadeUpDaemon daemon;
  std::vector<LinkView> links = daemon.links();
  links.at(0).name = "b\xff\xfe\n\"x\"";
  const std::string text = metrics_text(daemon.status(), links);
  CHECK(is_utf8(text));
  CHECK(mentions(text, "gossipd_link_up{peer=\"b???\\\"x\\\"\","));
}

TEST_CASE("history stays bounded, keeps its first point and its evaluations") {
  History history(1.0);
  for (int second = 0; second < 100'000; ++second) {
    HistoryPoint point;
    point.time_s = second;
    if (second % 1000 == 500)
      point.evaluation =
          Figures{.loss = 0.7, .accuracy = 0.5, .top5_accuracy = {}, .perplexity = {}};
    history.add(point);
  }
  CHECK(history.points().size() <= History::points_max);
  CHECK(history.points().size() >= History::points_max / 4);
  CHECK(history.points().front().time_s == 0);
  CHECK(history.points().back().time_s > 99'000);
  int evaluations = 0;
  for (const HistoryPoint& p : history.points()) evaluations += p.evaluation.has_value();
  CHECK(evaluations == 100);
}

TEST_CASE("history stays bounded even when there are only evaluations") {
  History history(1.0);
  HistoryPoint point;
  point.evaluation = Figures{.loss = 0.7, .accuracy = 0.5, .top5_accuracy = {}, .perplexity = {}};
  for (int i = 0; i < 10'000; ++i) history.add(point);
  CHECK(history.points().size() <= History::points_max);
}
