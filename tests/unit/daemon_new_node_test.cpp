#include <doctest/doctest.h>

#include <string>

#include "daemon/start_plan.h"
#include "models/job/epochs.h"
#include "tests/unit/daemon_support.h"

using namespace gossipd;

TEST_CASE("what a new node cannot begin with is found before anything is written") {
  const TemporaryDirectory directory;
  DaemonConfig config;
  config.state_dir = (directory.path() / "state").string();
  const auto refused = [&](const std::string& code, const std::string& words) {
    const auto error = refuse_new_node(config);
    REQUIRE(error);
    CHECK(error->code == code);
    CHECK_MESSAGE(error->text.find(words) != std::string::npos, error->text);
    CHECK_FALSE(std::filesystem::exists(config.state_dir));
  };
  refused("bad-config", "nothing to do");
  config.job_file = directory.write("job.toml", "name = \"tiny\"\nbudget_samples = 1000\n");
  refused("no-data", "--data DIR");
  using namespace std::string_literals;
  for (const std::string set : {"train", "t10k"}) {
    directory.write(set + "-images-idx3-ubyte", "\0\0\x08\x03\0\0\0\x04\0\0\0\x1c\0\0\0\x1c"s +
                                                    std::string(4 * 28 * 28, '\x01'));
    directory.write(set + "-labels-idx1-ubyte", "\0\0\x08\x01\0\0\0\x04\0\1\2\3"s);
  }
  config.data_dir = directory.path().string();
  config.shard_count = 5;
  refused("bad-config", "only 4 training samples");
  config.shard_count = 4;
  config.job_file = directory.write(
      "job.toml", "name = \"tiny\"\nbudget_samples = 1000\n[data]\ndivision = \"shared\"\n");
  refused("bad-config", "take --shard out");
  config.shard_count = 0;
  CHECK_FALSE(refuse_new_node(config));
  config.data_dir = (directory.path() / "none").string();
  refused("no-data", config.data_dir);
  config.join = {{"box1", 7610}};
  refused("bad-config", "the cluster's secret");
  config.key_file = "none";
  CHECK_FALSE(refuse_new_node(config));  // a member waits for its data
  config.key_file = (directory.path() / "cluster.key").string();
  refused("bad-config", "does not exist");
}

TEST_CASE("a state directory that cannot be looked into is not that of a new node") {
  const TemporaryDirectory directory;
  const std::filesystem::path loop = directory.path() / "loop";
  CHECK(StateStore::is_new(loop));
  CHECK_FALSE(StateStore::why_hidden(loop));
  CHECK(StateStore::is_new(directory.write("file", "")));  // where no directory can be
  std::filesystem::create_symlink(loop, loop);
  CHECK_FALSE(StateStore::is_new(loop));
  DaemonConfig config;
  config.state_dir = loop.string();
  const auto error = refuse_new_node(config);
  REQUIRE(error);
  CHECK_MESSAGE(error->text.starts_with("state_dir: " + loop.string() + " cannot be looked into: "),
                error->text);
}

TEST_CASE("a joiner that has not joined yet founds no cluster when its invite is gone") {
  const TemporaryDirectory directory;
  DaemonConfig config;
  config.state_dir = (directory.path() / "state").string();
  config.job_file = directory.write("job.toml", "name = \"tiny\"\nbudget_samples = 1000\n");
  config.invite_missing = Error{"key-missing", "there is no invite file gone"};
  const auto store = StateStore::open(config.state_dir);
  REQUIRE(store);
  NodeState state;
  state.id = NodeId{7};
  const auto refused = [&] {
    REQUIRE_FALSE(store->save_state(state));
    const auto plan = make_start_plan(config, *store);
    REQUIRE_FALSE(plan);
    CHECK(plan.error().code == "bad-config");
    CHECK(plan.error().text == "join: there is no invite file gone");
    CHECK_FALSE(std::filesystem::exists(store->key_path()));
  };
  refused();
  config.join = {{"box1", 7610}};
  refused();
  // Nor in place of a cluster of its own that is of no use any more.
  config.join.clear();
  state.cluster = ClusterId{9};
  state.job = Job::parse("name = \"other\"\nbudget_samples = 1000\n", "other")->hash();
  refused();
  // A member has what it needs.
  REQUIRE_FALSE(store->save_job(load_job(config.job_file, {})->canonical_text()));
  state.job = load_job(config.job_file, {})->hash();
  REQUIRE_FALSE(store->save_state(state));
  config.key_file = "none";
  const auto member = make_start_plan(config, *store);
  REQUIRE(member);
  CHECK(member->kind == StartPlan::Kind::rejoin);
}
