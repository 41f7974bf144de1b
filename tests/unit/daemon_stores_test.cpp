// What the driver keeps beside the node: the cluster's keys, and what is remembered to be shown.
#include <doctest/doctest.h>

#include "daemon/disk/disk_watch.h"
#include "daemon/disk/key_store.h"
#include "daemon/job_trial.h"
#include "daemon/log/log.h"
#include "daemon/rest/status_log.h"
#include "tests/unit/daemon_support.h"

using namespace gossipd;
using namespace std::chrono_literals;

namespace {

constexpr Duration patience = 60s;
constexpr Instant start{1000s};

// A store with one key, and what it has told its owner.
struct Keys {
  explicit Keys(KeyStore::Start start)
      : store(disk, answers, std::move(start),
              {.on_changed = [this](const Keyring& keys) { changed.push_back(keys.in_use().id); },
               .on_warning = [this](const std::string& text) { warnings.push_back(text); }}) {}

  void settle() {
    bool all = false;
    disk.after_all([&all] { all = true; });
    REQUIRE(loop.run_until([&all] { return all; }, patience));
  }

  EventLoop loop;
  DiskWriter disk{loop};
  BoundedAnswers answers;
  std::vector<std::uint64_t> changed;
  std::vector<std::string> warnings;
  KeyStore store;
};

ClusterKey some_key() {
  const Result<ClusterKey> key = generate_cluster_key();
  REQUIRE(key);
  return *key;
}

}  // namespace

TEST_CASE("a key comes into force when it is on disk, and one change is made at a time") {
  const TemporaryDirectory directory;
  const std::string path = directory.path() / "cluster.key", other = directory.path() / "new.key";
  const ClusterKey first = some_key(), second = some_key();
  REQUIRE_FALSE(write_cluster_key(other, second));
  Keys keys({.keys = Keyring(first), .path = path});

  std::vector<std::string> answers;
  const auto answer = [&answers](const std::optional<Error>& error) {
    answers.push_back(error ? error->code : "done");
  };
  keys.store.install(other, answer);
  keys.store.use(second.id, answer);  // not on disk yet
  CHECK(keys.changed.empty());
  CHECK(keys.store.view({})->keys.size() == 1);
  keys.settle();
  CHECK(answers == std::vector<std::string>{"disk-slow", "done"});
  CHECK(keys.changed == std::vector{first.id});

  keys.store.use(second.id, answer);
  keys.settle();
  CHECK(keys.changed == std::vector{first.id, second.id});
  const Result<KeysView> view = keys.store.view({{second.id, 3}});
  REQUIRE(view);
  CHECK(view->keys[0].id == second.id);
  CHECK(view->keys[0].in_use);
  CHECK(view->keys[0].sessions == 3);
  CHECK(read_keyring(path)->in_use().id == second.id);
}

TEST_CASE("a key that works is kept, but a member's file is not replaced by another one's") {
  const TemporaryDirectory directory;
  const std::string path = directory.path() / "cluster.key";
  const ClusterKey first = some_key(), second = some_key();
  for (const auto& [key, was_member, expected] :
       {std::tuple{first, false, first.id}, std::tuple{second, true, first.id},
        std::tuple{second, false, second.id}}) {
    Keys keys({.keys = Keyring(key), .was_member = was_member, .path = path});
    keys.store.keep();
    keys.store.keep();
    CHECK(keys.disk.view(EventLoop::now()).waiting <= 1);
    keys.settle();
    CHECK(keys.warnings.empty());
    CHECK(read_keyring(path)->in_use().id == expected);
  }
}

TEST_CASE("what was made of a key since is not replaced by that key when it works") {
  const TemporaryDirectory directory;
  const std::string path = directory.path() / "cluster.key";
  const ClusterKey first = some_key(), second = some_key();
  Keyring ring(first);
  REQUIRE_FALSE(ring.install(second));
  REQUIRE_FALSE(ring.use(second.id));
  for (const bool retired : {false, true}) {
    if (retired) REQUIRE_FALSE(ring.retire(first.id));
    REQUIRE_FALSE(write_keyring(path, ring));
    Keys keys({.keys = Keyring(first), .path = path});
    keys.store.keep();
    keys.settle();
    CHECK(*read_keyring(path) == ring);
  }
}

TEST_CASE("a change under way when the key is found to work stays on disk") {
  const TemporaryDirectory directory;
  const std::string path = directory.path() / "cluster.key", other = directory.path() / "new.key";
  const ClusterKey second = some_key();
  REQUIRE_FALSE(write_cluster_key(other, second));
  Keys keys({.keys = Keyring(some_key()), .path = path});
  keys.store.install(other, [](const std::optional<Error>& error) { CHECK_FALSE(error); });
  keys.store.keep();
  keys.settle();
  CHECK(read_keyring(path)->find(second.id) != nullptr);
}

TEST_CASE("the file of a new key is read where no disk holds up the loop") {
  const TemporaryDirectory directory;
  const std::string other = directory.path() / "new.key";
  Keys keys({.keys = Keyring(some_key()), .path = directory.path() / "cluster.key"});
  std::vector<std::string> answers;
  const auto answer = [&answers](const std::optional<Error>& error) {
    answers.push_back(error ? error->code : "done");
  };
  keys.store.install(other, answer);
  CHECK(answers.empty());
  keys.settle();
  REQUIRE_FALSE(write_cluster_key(other, some_key()));
  keys.store.install(other, answer);
  keys.settle();
  CHECK(answers == std::vector<std::string>{"key-missing", "done"});
  CHECK(keys.disk.view(EventLoop::now()).failed == 0);  // the state's disk is well
}

TEST_CASE("without a key the store says why there is none") {
  for (const bool certificates : {false, true}) {
    Keys keys({.certificates = certificates, .path = "/nowhere"});
    const std::string expected = certificates ? "certificates" : "no-key";
    CHECK(keys.store.view({}).error().code == expected);
    std::string refused;
    keys.store.retire(1, [&refused](const std::optional<Error>& error) { refused = error->code; });
    CHECK(refused == expected);
    keys.store.keep();
    CHECK(keys.disk.view(EventLoop::now()).waiting == 0);
  }
}

TEST_CASE("a warning that repeats is shown once with its newest age, and old ones make room") {
  StatusLog log(start);
  log.warn("the disk is full", start);
  log.warn("the disk is full", start + 5s);
  StatusView status;
  log.describe(status, start + 7s);
  REQUIRE(status.warnings.size() == 1);
  CHECK(status.warnings[0].age_s == 2);
  CHECK(status.uptime_s == 7);

  for (std::size_t i = 0; i < 2 * warnings_max; ++i) log.remember(std::to_string(i), start);
  status = {};
  log.describe(status, start);
  REQUIRE(status.warnings.size() == warnings_max);
  CHECK(status.warnings.back().text == std::to_string(2 * warnings_max - 1));
}

TEST_CASE("warnings that take turns are shown once each, and logged again only after minutes") {
  StatusLog log(start);
  std::size_t logged = 0;
  watch_log([&logged](Level, const std::string&) { ++logged; });
  for (Instant now = start; now < start + 280s; now += 10s)
    for (const char* file : {"node.json", "history.jsonl"})
      log.warn(std::string(file) + ": the disk is full", now);
  CHECK(logged == 2);
  StatusView status;
  log.describe(status, start + 280s);
  REQUIRE(status.warnings.size() == 2);
  CHECK(status.warnings[1].text == "history.jsonl: the disk is full");
  CHECK(status.warnings[1].age_s == 10);
  log.warn("node.json: the disk is full", start + 300s);
  CHECK(logged == 3);
  status = {};
  log.describe(status, start + 300s);
  CHECK(status.warnings.back().text == "node.json: the disk is full");
  watch_log({});
}

TEST_CASE("what a node has done until its stop is where the next process goes on") {
  StatusLog log(start);
  const auto record = [&log](Duration at, std::uint64_t bytes, bool last) {
    WireView wire;
    wire.bytes_sent = bytes;
    log.record({}, std::nullopt, wire, start + at, last);
  };
  record(0s, 0, false);
  record(1s, 100, false);  // within the interval
  CHECK(log.history().points().size() == 1);
  record(1500ms, 150, true);
  REQUIRE(log.history().points().size() == 2);
  StatusLog next(start);
  next.restore_history(log.history().interval_s(), log.history().points(), true);
  StatusView status;
  next.describe(status, start);
  CHECK(status.ran_s == 1.5);
  CHECK(log.history().points().back().bytes_sent == 150);
}

TEST_CASE("connections that were turned away stand among the node's own refusals, by time") {
  StatusLog log(start);
  log.turned_away("10.0.0.9", {"handshake", "another key"}, start + 2s);
  StatusView status;
  for (const Duration after : {1s, 3s})
    status.node.refusals.push_back({start + after, false, "box2", {"full", "no room"}});
  log.describe(status, start + 10s);
  REQUIRE(status.node.refusals.size() == 3);
  CHECK(status.node.refusals[1].peer == "10.0.0.9");
  CHECK(status.node.refusals[1].by_us);
  CHECK(status.refusals_now_s == 1010);
}

TEST_CASE("a stop that took too long blames the disk only for a write that took long") {
  DiskView disk;
  disk.writing = "node.json";
  disk.writing_s = 0.2;
  const std::string parts = stopped_too_late(disk, "/state", {"the trainer", "the disk"}).text;
  CHECK(parts.find("waiting any longer for: the disk, the trainer;") != std::string::npos);
  CHECK(parts.find("/state") == std::string::npos);
  disk.writing_s = 21;
  const std::string slow = stopped_too_late(disk, "/state", {"the disk"}).text;
  CHECK(slow.find("the disk of /state has been writing node.json for 21 s") != std::string::npos);
}

TEST_CASE("a job's trial ends in what its process said, or how it ended") {
  const std::string words = "warning: x\ngossipd: job.toml: no 'name'; add one\n";
  CHECK(trial_error(words, 78 << 8).text == "job.toml: no 'name'; add one");
  CHECK(trial_error("", 9).text.find("more memory than this machine has") != std::string::npos);
  CHECK(trial_error("", 1 << 8).text.find("exit code 1") != std::string::npos);
}

TEST_CASE("a slow disk is one story: it is told again only after half a minute of peace") {
  DiskWatch watch("/state");
  DiskView disk;
  CHECK_FALSE(watch.look(disk, start));
  disk.writing = "node.json";
  disk.writing_s = disk_slow_after_s;
  const auto warning = watch.look(disk, start + 1s);
  REQUIRE(warning);
  CHECK(warning->find("node.json") != std::string::npos);
  CHECK(watch.slow());
  CHECK_FALSE(watch.look(disk, start + 2s));

  disk.writing_s = 0;
  CHECK_FALSE(watch.look(disk, start + 20s));
  CHECK(watch.slow());
  CHECK_FALSE(watch.look(disk, start + 32s));
  CHECK_FALSE(watch.slow());
  disk.writing_s = disk_slow_after_s;
  CHECK(watch.look(disk, start + 33s));
}
