#define XXH_INLINE_ALL
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <xxhash.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "daemon/disk/durable_file.h"
#include "daemon/disk/state_store.h"
#include "daemon/start_plan.h"
#include "models/job/job.h"
#include "tests/unit/daemon_state_support.h"

using namespace gossipd;

namespace {

constexpr const char* job_text = "name = \"tiny\"\nbudget_samples = 1000\n";

DaemonConfig config_in(const TemporaryDirectory& directory) {
  DaemonConfig config;
  config.state_dir = (directory.path() / "state").string();
  return config;
}

Result<StartPlan> plan(const DaemonConfig& config) {
  const auto store = StateStore::open(config.state_dir);
  REQUIRE(store);
  return make_start_plan(config, *store);
}

}  // namespace

TEST_CASE("the state comes back as it was saved") {
  const TemporaryDirectory directory;
  const auto store = StateStore::open(directory.path() / "state");
  REQUIRE(store);
  CHECK_FALSE(store->load_state()->state.has_value());
  REQUIRE_FALSE(store->save_state(some_state(3)).has_value());
  const auto loaded = store->load_state();
  REQUIRE(loaded);
  REQUIRE(loaded->state.has_value());
  CHECK(loaded->fallback_reason.empty());
  const NodeState &state = *loaded->state, expected = some_state(3);
  CHECK(state.id == expected.id);
  CHECK(state.cluster == expected.cluster);
  CHECK(state.incarnation == 3);
  CHECK(state.left);
  CHECK(state.job == expected.job);
  CHECK(state.own_samples == expected.own_samples);
  CHECK(state.generation == 3);
  CHECK(state.meeting_in == expected.meeting_in);
  REQUIRE(state.members.size() == 1);
  CHECK(state.members[0].address == expected.members[0].address);
  CHECK(state.members[0].samples == 123456789);
  CHECK(state.members[0].state == MemberState::suspect);
  CHECK(state.members[0].phase == Phase::finishing);
  CHECK(state.members[0].loss == 0.1);
  CHECK(state.met == expected.met);
}

TEST_CASE("two daemons cannot share a state directory") {
  const TemporaryDirectory directory;
  auto first = StateStore::open(directory.path());
  REQUIRE(first);
  const auto second = StateStore::open(directory.path());
  REQUIRE_FALSE(second);
  CHECK(second.error().code == "state-locked");
  CHECK(mentions(second.error().text, "--state-dir"));
  { const StateStore gone = std::move(*first); }
  CHECK(StateStore::open(directory.path()));
}

TEST_CASE(
    "nothing is written into a directory that was removed and made again by another process") {
  const TemporaryDirectory directory;
  const auto path = directory.path() / "state";
  const Result<StateStore> first = StateStore::open(path);
  REQUIRE(first);
  std::filesystem::remove_all(path);
  const auto gone = first->save_state(NodeState{});
  REQUIRE(gone);
  CHECK(gone->text.find("removed or replaced") != std::string::npos);
  const Result<StateStore> second = StateStore::open(path);
  REQUIRE(second);
  CHECK(first->save_state(NodeState{}));
  CHECK(first->save_job("job"));
  CHECK_FALSE(second->save_state(NodeState{}));
}

TEST_CASE("a job is found by its hash, in the current file or the previous one") {
  const TemporaryDirectory directory;
  const auto store = StateStore::open(directory.path());
  const auto job = Job::parse(job_text, "test");
  REQUIRE(job);
  REQUIRE_FALSE(store->save_job(job->canonical_text()).has_value());
  REQUIRE_FALSE(store->save_job("something else").has_value());
  const auto found = store->load_job(job->hash());
  REQUIRE(found);
  CHECK(found->document == job->canonical_text());
  CHECK_FALSE(found->fallback_reason.empty());
  CHECK_FALSE(store->load_job(JobHash{1})->document.has_value());
}

TEST_CASE("a full write leaves the content and the version before it, and no other file") {
  const TemporaryDirectory directory;
  const auto path = directory.path() / "a.txt";
  REQUIRE_FALSE(write_durably(path, "one").has_value());
  REQUIRE_FALSE(write_durably(path, "two").has_value());
  REQUIRE_FALSE(write_durably(path, "three").has_value());
  CHECK(read_file(path) == "three");
  CHECK(read_file(previous_of(path)) == "two");
  const auto files = std::distance(std::filesystem::directory_iterator(directory.path()),
                                   std::filesystem::directory_iterator());
  CHECK(files == 2);
}

TEST_CASE("a node without job, seeds and history says how to begin") {
  const TemporaryDirectory directory;
  const auto refused = plan(config_in(directory));
  REQUIRE_FALSE(refused);
  CHECK(mentions(refused.error().text, "--job"));
  CHECK(mentions(refused.error().text, "--join"));
}

TEST_CASE("--job founds a cluster and writes its key where it was told to, once") {
  const TemporaryDirectory directory;
  DaemonConfig config = config_in(directory);
  config.job_file = directory.write("job.toml", job_text);
  config.key_file = (directory.path() / "cluster.key").string();
  const auto first = plan(config);
  REQUIRE_MESSAGE(first, (first ? std::string() : first.error().text));
  CHECK(first->kind == StartPlan::Kind::found);
  CHECK(first->state.cluster != ClusterId{});
  CHECK(first->state.job == first->job->hash);
  CHECK(first->keys.has_value());
  CHECK(first->key_written == config.key_file);
  CHECK(first->listen == Endpoint{"*", peer_port_default});
  const auto second = plan(config);
  REQUIRE(second);
  CHECK(second->key_written.empty());
  CHECK(*second->keys == *first->keys);
}

TEST_CASE("the node's own keyring counts for more than the key file it once began with") {
  const TemporaryDirectory directory;
  DaemonConfig config = config_in(directory);
  config.job_file = directory.write("job.toml", job_text);
  config.key_file = (directory.path() / "cluster.key").string();
  const auto first = plan(config);
  REQUIRE(first);
  const auto store = StateStore::open(config.state_dir);
  REQUIRE(store);
  NodeState state = first->state;
  state.incarnation = 1;
  REQUIRE_FALSE(store->save_state(state).has_value());
  Keyring ring = *first->keys;
  const auto another = generate_cluster_key();
  REQUIRE(another);
  REQUIRE_FALSE(ring.install(*another).has_value());
  REQUIRE_FALSE(ring.use(another->id).has_value());
  REQUIRE_FALSE(write_keyring(store->key_path().string(), ring).has_value());
  auto again = make_start_plan(config, *store);
  REQUIRE_MESSAGE(again, (again ? std::string() : again.error().text));
  CHECK(*again->keys == ring);
  const auto warned = [&again] {
    return std::any_of(again->warnings.begin(), again->warnings.end(),
                       [](const std::string& text) { return mentions(text, "was retired"); });
  };
  CHECK_FALSE(warned());

  REQUIRE_FALSE(ring.retire(first->keys->in_use().id).has_value());
  REQUIRE_FALSE(write_keyring(store->key_path().string(), ring).has_value());
  again = make_start_plan(config, *store);
  REQUIRE(again);
  CHECK(*again->keys == ring);
  CHECK(warned());

  // A ring that cannot be read may have retired the key that is given: that one is not taken.
  std::filesystem::permissions(store->key_path(), std::filesystem::perms::group_read,
                               std::filesystem::perm_options::add);
  again = make_start_plan(config, *store);
  REQUIRE_FALSE(again);
  CHECK(again.error().code == "key-permissions");
  CHECK(mentions(again.error().text, "chmod 600 " + store->key_path().string()));
  std::filesystem::remove(store->key_path());
  again = make_start_plan(config, *store);
  REQUIRE(again);
  CHECK(*again->keys == *first->keys);
}

TEST_CASE("the keys that a node was given since count for more where it has not joined yet, too") {
  const TemporaryDirectory directory;
  DaemonConfig config = config_in(directory);
  config.join = {{"box1", 7610}};
  config.key_file = (directory.path() / "given.key").string();
  const auto given = generate_cluster_key(), newer = generate_cluster_key();
  REQUIRE((given && newer));
  REQUIRE_FALSE(write_cluster_key(config.key_file, *given));
  Keyring ring = *given;
  REQUIRE_FALSE(ring.install(*newer));
  REQUIRE_FALSE(ring.use(newer->id));
  REQUIRE_FALSE(ring.retire(given->id));
  const auto store = StateStore::open(config.state_dir);
  REQUIRE(store);
  REQUIRE_FALSE(write_keyring(store->key_path().string(), ring));
  const auto planned = [&] {
    const auto made = make_start_plan(config, *store);
    REQUIRE_MESSAGE(made, (made ? std::string() : made.error().text));
    CHECK(made->kind == StartPlan::Kind::join);
    return *made->keys;
  };
  CHECK(planned() == ring);
  config.invite = Invite{ClusterId{7}, *given, {{"box1", 7610}}};
  CHECK(planned() == ring);
  const auto foreign = generate_cluster_key();  // of another cluster than the one before
  config.invite->key = *foreign;
  CHECK(planned() == Keyring(*foreign));
}

TEST_CASE(
    "another job founds anew where the first one never trained and nobody joined, and only there") {
  const TemporaryDirectory directory;
  DaemonConfig config = config_in(directory);
  config.job_file = directory.write("job.toml", job_text);
  config.key_file = (directory.path() / "cluster.key").string();
  const auto first = plan(config);
  REQUIRE(first);
  const auto store = StateStore::open(config.state_dir);
  REQUIRE(store);
  NodeState state = first->state;
  state.incarnation = 4;
  const auto plan_after = [&](Samples own_samples) {
    state.own_samples = own_samples;
    REQUIRE_FALSE(store->save_state(state).has_value());
    REQUIRE_FALSE(store->save_job(first->job->document).has_value());
    return make_start_plan(config, *store);
  };
  directory.write("job.toml", "seed = 99\n" + std::string(job_text));
  const auto anew = plan_after(0);
  REQUIRE_MESSAGE(anew, (anew ? std::string() : anew.error().text));
  CHECK(anew->kind == StartPlan::Kind::found);
  CHECK(anew->state.cluster != first->state.cluster);
  CHECK(anew->state.id == first->state.id);
  CHECK(anew->state.incarnation == 4);
  CHECK(*anew->keys == *first->keys);
  const auto used = plan_after(32);
  REQUIRE_FALSE(used);
  CHECK(used.error().code == "other-job");
}

TEST_CASE("--key-file none means plain on loopback only") {
  const TemporaryDirectory directory;
  DaemonConfig config = config_in(directory);
  config.job_file = directory.write("job.toml", job_text);
  config.key_file = "none";
  const auto made = plan(config);
  REQUIRE(made);
  CHECK_FALSE(made->keys.has_value());
  CHECK(made->listen == Endpoint{"127.0.0.1", peer_port_default});
}

TEST_CASE(
    "--join without any key, or with a key file that is not there, is refused with the way out") {
  const TemporaryDirectory directory;
  DaemonConfig config = config_in(directory);
  config.join = {{"box1", 7610}};
  const auto without = plan(config);
  REQUIRE_FALSE(without);
  CHECK(mentions(without.error().text, "--key-file"));
  config.key_file = (directory.path() / "missing.key").string();
  const auto missing = plan(config);
  REQUIRE_FALSE(missing);
  CHECK(mentions(missing.error().text, "missing.key"));
  config.key_file = "none";
  const auto plain = plan(config);
  REQUIRE(plain);
  CHECK(plain->kind == StartPlan::Kind::join);
  CHECK(plain->state.cluster == ClusterId{});
}

TEST_CASE("another job than the stored one is refused with both hashes; the same one is not") {
  const TemporaryDirectory directory;
  DaemonConfig config = config_in(directory);
  config.key_file = "none";
  const auto stored = Job::parse(job_text, "test");
  {
    const auto store = StateStore::open(config.state_dir);
    NodeState state = some_state(1);
    state.left = false;
    state.generation = 1;
    state.meeting_in = {};
    state.job = stored->hash();
    REQUIRE_FALSE(store->save_job(stored->canonical_text()).has_value());
    REQUIRE_FALSE(store->save_state(state).has_value());
  }
  config.job_file = directory.write("other.toml", "name = \"other\"\nbudget_samples = 1000\n");
  const auto other = plan(config);
  REQUIRE_FALSE(other);
  CHECK(other.error().code == "other-job");
  CHECK(mentions(other.error().text, to_hex(stored->hash())));
  CHECK(mentions(other.error().text, to_hex(Job::load(config.job_file)->hash())));
  config.job_file = directory.write("same.toml", std::string("# a comment\n") + job_text);
  const auto same = plan(config);
  REQUIRE_MESSAGE(same, (same ? std::string() : same.error().text));
  CHECK(same->kind == StartPlan::Kind::rejoin);
  CHECK(same->job->hash == stored->hash());
}

TEST_CASE("a node alone whose stored job is damaged says so and waits for nobody") {
  const TemporaryDirectory directory;
  DaemonConfig config = config_in(directory);
  config.key_file = "none";
  const auto job = Job::parse(job_text, "test");
  {
    const auto store = StateStore::open(config.state_dir);
    NodeState state = some_state(1);
    state.left = false;
    state.job = job->hash();
    state.members[0].state = MemberState::left;
    REQUIRE_FALSE(store->save_state(state).has_value());
  }
  const auto stored = std::filesystem::path(config.state_dir) / "job.toml";
  const std::string damaged = "name = \"tin\x01";
  std::ofstream(stored) << damaged;
  const auto refused = plan(config);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == "bad-state");
  for (const std::string& words :
       {stored.string(), std::string("is damaged"), std::string("--job")})
    CHECK(mentions(refused.error().text, words));
  CHECK(read_file(stored) == damaged);

  config.job_file = directory.write("other.toml", "name = \"other\"\nbudget_samples = 1000\n");
  const auto other = plan(config);
  REQUIRE_FALSE(other);
  CHECK(other.error().code == "other-job");
  config.job_file = directory.write("same.toml", job_text);
  const auto mended = plan(config);
  REQUIRE_MESSAGE(mended, (mended ? std::string() : mended.error().text));
  CHECK(mended->kind == StartPlan::Kind::rejoin);
  CHECK(mended->job->hash == job->hash());
  CHECK(mended->state.job == job->hash());
}

TEST_CASE("a FIFO or a directory in place of a state file is refused, and nobody waits for it") {
  for (const char* name : {"node.json", "job.toml"})
    for (const bool fifo : {true, false}) {
      CAPTURE(std::string(name));
      const TemporaryDirectory directory;
      DaemonConfig config = config_in(directory);
      config.key_file = "none";
      const auto store = StateStore::open(config.state_dir);
      REQUIRE_FALSE(store->save_state(some_state(1)).has_value());
      REQUIRE_FALSE(store->save_state(some_state(2)).has_value());
      const auto path = std::filesystem::path(config.state_dir) / name;
      std::filesystem::remove(path);
      if (fifo)
        REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
      else
        std::filesystem::create_directory(path);
      const auto refused = make_start_plan(config, *store);
      REQUIRE_FALSE(refused);
      CHECK(refused.error().code == "bad-file");
      CHECK(mentions(refused.error().text, path.string()));
      CHECK(mentions(refused.error().text, fifo ? "is a FIFO" : "is a directory"));
      CHECK(std::filesystem::exists(path));
    }
}

TEST_CASE("a member whose stored job is damaged asks the cluster for it again") {
  const TemporaryDirectory directory;
  DaemonConfig config = config_in(directory);
  config.key_file = "none";
  {
    const auto store = StateStore::open(config.state_dir);
    REQUIRE_FALSE(store->save_state(some_state(1)).has_value());
  }
  const auto made = plan(config);
  REQUIRE(made);
  CHECK(made->kind == StartPlan::Kind::rejoin);
  CHECK(made->state.job == JobHash{});
  CHECK_FALSE(made->job.has_value());
  CHECK_FALSE(made->warnings.empty());
}

TEST_CASE("a number of a state that is no whole number, or too large, is refused by name") {
  NodeState state;
  state.id = NodeId{7};
  state.own_samples = 12345;
  const std::string good = format_node_state(state, now_s);
  REQUIRE(parse_node_state(good, now_s));
  for (const std::string wrong : {"3e84", "1.5", "-1", "true", "\"8\""}) {
    CAPTURE(wrong);
    auto body = nlohmann::json::parse(good)["state"];
    body["own_samples"] = nlohmann::json::parse(wrong);
    const std::string words = body.dump();
    const std::string text = R"({"format":1,"checksum":")" +
                             to_hex(XXH3_64bits(words.data(), words.size())) + R"(","state":)" +
                             words + "}";
    const auto read = parse_node_state(text, now_s);
    REQUIRE_FALSE(read);
    CHECK(read.error().text.find("own_samples is no whole number") != std::string::npos);
  }
}

TEST_CASE("how old a state is counts only where the clock can tell") {
  const auto year = std::chrono::hours(24 * 365);
  const std::string text = format_node_state(some_state(2), now_s);
  const auto later = parse_node_state(text, now_s + 600),
             stepped = parse_node_state(text, now_s - 60),
             behind = parse_node_state(text, now_s - 86'400), in_1970 = parse_node_state(text, 60);
  REQUIRE((later && stepped && behind && in_1970));
  CHECK(later->down_for == std::chrono::seconds(601));
  CHECK(later->unsure_for == Duration{});
  CHECK(stepped->down_for == std::chrono::seconds(1));
  CHECK(stepped->unsure_for == Duration{});
  // otherwise what the others know of this node's samples would be refused, for good
  CHECK(behind->unsure_for == year);
  CHECK(in_1970->unsure_for == year);
  auto json = nlohmann::json::parse(text);
  json["state"].erase("written_unix_s");
  const std::string body = json["state"].dump();
  json["checksum"] = to_hex(std::uint64_t{XXH3_64bits(body.data(), body.size())});
  const auto undated = parse_node_state(json.dump(), now_s);
  REQUIRE(undated);
  CHECK(undated->unsure_for == year);
}
