#include <doctest/doctest.h>

#include "core/node/founding.h"
#include "core/wire/control.h"
#include "tests/lone_node.h"

using namespace gossipd;

namespace {

const Endpoint box2{"box2", 7610}, box3{"box3", 7610};
constexpr ClusterId ours{0xc1}, theirs{0xc2};

// A node 0 of three, which asks box2 and box3.
struct First {
  explicit First(const NodeConfig& node_config = config())
      : node(node_config, LoneNode::state_of(NodeId{1}, ClusterId{})) {}

  static NodeConfig config() {
    NodeConfig config = LoneNode::config_of(1);
    config.seeds = {box2, box3};
    config.founds = ours;
    return config;
  }
  void hear(const Endpoint& at, NodeId id, ClusterId cluster, bool founds = false) {
    hear(at, id, cluster, founds, cluster == ClusterId{} ? JobHash{} : JobHash{7});
  }
  void hear(const Endpoint& at, NodeId id, ClusterId cluster, bool founds, JobHash job) {
    Hello hello;
    hello.protocol = protocol_oldest;
    hello.newest = protocol_version;
    hello.cluster = cluster;
    hello.job = job;
    hello.id = id;
    hello.incarnation = 1;
    hello.name = at.host;
    hello.address = at;
    hello.instance = raw(id);
    hello.founds = founds;
    node.hear(node.open(true, at), hello);
  }
  [[nodiscard]] ClusterId cluster() { return node.node().cluster(); }
  [[nodiscard]] std::string waits_for() { return node.node().summary(node.now()).waiting_for; }

  LoneNode node;
};

}  // namespace

TEST_CASE("a founder of a fixed set founds once every other has said that it has no cluster") {
  First first;
  first.hear(box2, NodeId{2}, ClusterId{});
  CHECK(first.cluster() == ClusterId{});
  CHECK(first.waits_for().find("box3:7610") != std::string::npos);
  CHECK(first.waits_for().find("box2:7610") == std::string::npos);
  first.hear(box3, NodeId{3}, ClusterId{});
  CHECK(first.cluster() == ours);
}

TEST_CASE("silence never lets it found, however long it lasts") {
  First first;
  first.hear(box2, NodeId{2}, ClusterId{});
  for (int hours = 0; hours < 100; ++hours) first.node.pass(std::chrono::hours(1));
  CHECK(first.cluster() == ClusterId{});
}

TEST_CASE("one of another cluster takes it in, though all others are free") {
  First first;
  first.hear(box2, NodeId{2}, ClusterId{});
  first.hear(box3, NodeId{3}, theirs);
  CHECK(first.cluster() == theirs);
  first.hear(box3, NodeId{4}, ClusterId{});
  CHECK(first.cluster() == theirs);
}

TEST_CASE("a member that does not know the job yet neither takes it in nor lets it found") {
  First first;
  first.hear(box2, NodeId{2}, ClusterId{});
  first.hear(box3, NodeId{3}, theirs, false, JobHash{});
  CHECK(first.cluster() == ClusterId{});
  first.hear(box3, NodeId{3}, theirs);
  CHECK(first.cluster() == theirs);
}

TEST_CASE("one node that answers at two addresses is one witness, not two") {
  First first;
  first.hear(box2, NodeId{2}, ClusterId{});
  first.hear(box3, NodeId{2}, ClusterId{});
  CHECK(first.cluster() == ClusterId{});
  CHECK(first.waits_for().find("lead to one") != std::string::npos);
  first.hear(box3, NodeId{3}, ClusterId{});
  CHECK(first.cluster() == ours);
}

TEST_CASE("where two nodes would found, neither does, and both say why") {
  First first;
  first.hear(box2, NodeId{2}, ClusterId{});
  first.hear(box3, NodeId{3}, ClusterId{}, true);
  CHECK(first.cluster() == ClusterId{});
  CHECK(first.waits_for().find("box3:7610 would found the cluster as well") != std::string::npos);
  first.hear(box3, NodeId{3}, ClusterId{});
  CHECK(first.cluster() == ours);
}

TEST_CASE("a node that only joins founds nothing, whoever is free") {
  NodeConfig config = First::config();
  config.founds = ClusterId{};
  First joiner(config);
  joiner.hear(box2, NodeId{2}, ClusterId{});
  joiner.hear(box3, NodeId{3}, ClusterId{});
  CHECK(joiner.cluster() == ClusterId{});
  joiner.hear(box3, NodeId{3}, theirs);  // it does listen
  CHECK(joiner.cluster() == theirs);
}

TEST_CASE("where every seed leads back to the node itself, nobody else is to be asked") {
  Founding alone(ours, {box2});
  CHECK_FALSE(alone.is_due());
  alone.on_self(box2);
  CHECK(alone.is_due());
}
