// What a state directory makes of a cluster that has gone on to its next job.
#include <doctest/doctest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "core/model/job_hash.h"
#include "daemon/disk/durable_file.h"
#include "daemon/disk/state_store.h"
#include "daemon/job_trial.h"
#include "daemon/start_plan.h"
#include "models/job/job.h"
#include "tests/unit/daemon_support.h"

using namespace gossipd;

namespace {

constexpr const char* job_text = "name = \"tiny\"\nbudget_samples = 1000\n";

// Becomes the trial of `daemon`, as the program does in the environment that it is given.
void become_trial(pid_t daemon) {
  for (std::string& variable : trial_environment(daemon)) {
    const std::size_t equals = variable.find('=');
    ::setenv(variable.substr(0, equals).c_str(), variable.substr(equals + 1).c_str(), 1);
  }
  end_with_daemon();
}

}  // namespace

TEST_CASE("the job before is set aside once, whatever of that a crash left undone") {
  const std::string before = job_text, after = "name = \"next\"\nbudget_samples = 1000\n";
  for (int done = 0; done <= 3; ++done) {
    CAPTURE(done);
    const TemporaryDirectory directory;
    const std::filesystem::path at = directory.path() / "state";
    const auto store = StateStore::open(at);
    REQUIRE(store);
    const JobHash old_job = job_hash_of(before);
    NodeState state;
    state.id = NodeId{0x1234};
    state.cluster = ClusterId{0xfeed};
    state.job = job_hash_of(after);
    state.generation = 2;
    state.former_job = old_job;
    state.former_generation = 1;
    REQUIRE_FALSE(store->save_job(before));
    REQUIRE_FALSE(store->save_job(after));
    REQUIRE_FALSE(store->save_state(state));
    REQUIRE_FALSE(write_durably(store->checkpoint_path("current"), "old model"));
    REQUIRE_FALSE(write_durably(at / "history.jsonl", "old history"));
    const std::filesystem::path former = at / "jobs" / ("1-" + to_hex(old_job));
    if (done > 0) std::filesystem::create_directories(former);
    if (done > 1) std::filesystem::rename(at / "history.jsonl", former / "history.jsonl");
    if (done > 2) std::filesystem::rename(at / "checkpoints", former / "checkpoints");
    if (done > 2) std::filesystem::create_directories(at / "checkpoints");  // by open()
    NodeState read = *store->load_state()->state;
    CHECK(read.former_job == old_job);
    REQUIRE_FALSE(store->set_former_job_aside(read));
    CHECK(read.former_job == JobHash{});
    CHECK(*read_whole(former / "checkpoints" / "current.safetensors") == "old model");
    CHECK(*read_whole(former / "history.jsonl") == "old history");
    CHECK(*read_whole(former / "job.toml") == before);
    CHECK(std::filesystem::is_empty(at / "checkpoints"));
    // What the next job writes stays, also where the state is read again.
    REQUIRE_FALSE(write_durably(store->checkpoint_path("current"), "new model"));
    NodeState again = *store->load_state()->state;
    CHECK(again.generation == 2);
    REQUIRE_FALSE(store->set_former_job_aside(again));
    CHECK(*read_whole(store->checkpoint_path("current")) == "new model");
    CHECK(*store->load_job(state.job)->document == after);
  }
}

TEST_CASE("a job file of the cluster's earlier job is left aside, also by a node alone") {
  const TemporaryDirectory directory;
  DaemonConfig config;
  config.state_dir = (directory.path() / "state").string();
  config.key_file = "none";
  const auto second = Job::parse("name = \"second\"\nbudget_samples = 1000\n", "test");
  {
    const auto store = StateStore::open(config.state_dir);
    NodeState state;
    state.id = NodeId{0x1234};
    state.cluster = ClusterId{0xfeed};
    state.job = second->hash();
    state.generation = 2;
    REQUIRE_FALSE(store->save_job(second->canonical_text()));
    REQUIRE_FALSE(store->save_state(state));
  }
  config.job_file = directory.write("first.toml", job_text);
  const auto store = StateStore::open(config.state_dir);
  REQUIRE(store);
  const auto planned = make_start_plan(config, *store);
  REQUIRE_MESSAGE(planned, (planned ? std::string() : planned.error().text));
  CHECK(planned->kind == StartPlan::Kind::rejoin);
  CHECK(planned->state.cluster == ClusterId{0xfeed});
  CHECK(planned->job->name == "second");
  REQUIRE(planned->warnings.size() == 1);
  CHECK(planned->warnings[0].find(" (second), which this node trains") != std::string::npos);
}

TEST_CASE("a job's trial ends with its daemon, also where that is killed") {
  int ends[2] = {-1, -1};
  REQUIRE(::pipe(ends) == 0);
  const pid_t daemon = ::fork();
  if (daemon == 0) {
    const bool is_trial = ::fork() == 0;
    ::alarm(60);
    if (is_trial) {
      become_trial(::getppid());
      (void)!::write(ends[1], "x", 1);
    }
    for (;;) ::pause();
  }
  ::close(ends[1]);
  char began = 0;
  REQUIRE(::read(ends[0], &began, 1) == 1);
  pollfd ended{ends[0], POLLIN, 0};
  CHECK(::poll(&ended, 1, 50) == 0);  // both live
  ::kill(daemon, SIGKILL);
  ::waitpid(daemon, nullptr, 0);
  CHECK(::poll(&ended, 1, 20'000) == 1);
  CHECK(::read(ends[0], &began, 1) == 0);
  ::close(ends[0]);
}

TEST_CASE("a job's trial whose daemon is gone already ends at once") {
  const pid_t trial = ::fork();
  if (trial == 0) {
    become_trial(0);  // not the parent's number
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(trial, &status, 0) == trial);
  CHECK(WEXITSTATUS(status) == 1);
}

TEST_CASE("a trial for which no process can be started is told from a job that is refused") {
  EventLoop loop;
  JobTrial trial(loop);
  std::optional<Error> refused;
  rlimit limit{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
  const rlimit none{3, limit.rlim_max};
  bool done = false;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  trial.start({}, "/job.toml", [&](const std::optional<Error>& error) {
    refused = error;
    done = true;
  });
  CHECK(loop.run_until([&done] { return done; }, std::chrono::seconds(20)));
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
  REQUIRE(refused);
  CHECK(refused->code == "not-tried");
  CHECK(refused->text == "no process can be started to try the job: Too many open files");
}

TEST_CASE("a job's trial has the daemon's environment without the settings of the node") {
  ::setenv("GOSSIPD_DATA", "/data", 1);
  ::setenv("OTHER_WORD", "1", 1);
  const auto given = trial_environment(7);
  ::unsetenv("GOSSIPD_DATA"), ::unsetenv("OTHER_WORD");
  CHECK(std::ranges::find(given, "OTHER_WORD=1") != given.end());
  CHECK(std::ranges::none_of(
      given, [](const std::string& variable) { return variable.starts_with("GOSSIPD_"); }));
}
