#include <doctest/doctest.h>

#include "daemon/start_plan.h"
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
  config.data_dir = (directory.path() / "none").string();
  refused("no-data", config.data_dir);
  config.join = {{"box1", 7610}};
  refused("bad-config", "the cluster's secret");
  config.key_file = "none";
  CHECK_FALSE(refuse_new_node(config));  // a member waits for its data
  config.key_file = (directory.path() / "cluster.key").string();
  refused("bad-config", "does not exist");
}
