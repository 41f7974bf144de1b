// Nodes of two versions of the protocol in one cluster, and versions that have none in common.
#include "core/wire/control.h"
#include "core/wire/turn.h"
#include "tests/sim/support.h"

using namespace gossipd;
using namespace gossipd::sim;
using namespace std::chrono_literals;

namespace {

// Counts records that go whole, with a hash and without, in messages between two nodes that speak
// `protocol`.
struct Reader : Watcher {
  Reader(VirtualCluster& c, const Schema& s) : cluster(c), schema(s) {}
  void after_message(std::size_t from, std::size_t to, Lane lane, const Bytes& message) override {
    TurnHeader header;
    std::vector<TurnRecord> records;
    if (lane != Lane::bulk || bulk_kind(message) != BulkKind::turn ||
        decode_turn(message, schema, header, records))
      return;
    const auto newest = [&](std::size_t i) { return cluster.options(i).membership.protocol; };
    const std::uint32_t protocol = std::min(newest(from), newest(to));
    for (const TurnRecord& record : records)
      if (is_whole(record)) ++(record.hash ? with_hash : without)[protocol];
  }
  VirtualCluster& cluster;
  const Schema& schema;
  std::map<std::uint32_t, std::size_t> with_hash, without;
};

std::uint32_t protocol_between(VirtualCluster& cluster, std::size_t a, std::size_t b) {
  for (const LinkView& link : cluster.view(a).links)
    if (link.peer == cluster.id(b) && link.state == "open") return link.protocol;
  return 0;
}

bool is_linked(VirtualCluster& cluster, std::size_t nodes) {
  for (std::size_t i = 0; i < nodes; ++i)
    for (std::size_t j = 0; j < nodes; ++j)
      if (i != j && protocol_between(cluster, i, j) == 0) return false;
  return true;
}

}  // namespace

TEST_CASE(
    "a cluster is upgraded node by node: each pair speaks the lower version, and every link goes "
    "on exchanging") {
  const Schema schema = schema_of({2000, 300, 40});
  VirtualCluster cluster(schema);
  Reader reader(cluster, schema);
  cluster.watch(reader);
  constexpr std::size_t nodes = 3;
  for (std::size_t i = 0; i < nodes; ++i) {
    NodeOptions options = with_model(schema, i);
    options.membership.protocol = protocol_oldest;
    options.exchange.threshold = 1e-6;
    cluster.add(options);
  }
  for (std::size_t upgraded = 0; upgraded <= nodes; ++upgraded) {
    CAPTURE(upgraded);
    REQUIRE(cluster.run_until([&] { return is_linked(cluster, nodes); }, 60s));
    for (std::size_t i = 0; i < nodes; ++i)
      for (std::size_t j = 0; j < nodes; ++j)
        if (i != j)
          CHECK(protocol_between(cluster, i, j) ==
                (i < upgraded && j < upgraded ? protocol_version : protocol_oldest));
    // News of each node reaches the others.
    for (std::size_t i = 0; i < nodes; ++i)
      for (float& x : cluster.model(i)) x += 0.1f * static_cast<float>(i + 1);
    REQUIRE(cluster.consensus_distance() > 0.05);
    REQUIRE(cluster.run_until([&] { return cluster.consensus_distance() < 2e-3; }, 120s));
    for (std::size_t i = 0; i < nodes; ++i)
      for (const LinkView& link : cluster.view(i).links) CHECK(link.counters.refused_total() == 0);
    if (upgraded == nodes) break;
    cluster.stop(upgraded);
    cluster.options(upgraded).membership.protocol = protocol_version;
    cluster.restart(upgraded);
  }
  CHECK(reader.with_hash[protocol_version] > 0);
  CHECK(reader.without[protocol_version] == 0);
  CHECK(reader.without[protocol_oldest] > 0);
  CHECK(reader.with_hash[protocol_oldest] == 0);
}

TEST_CASE("a joiner of one version takes the model of a donor of the other") {
  const Schema schema = schema_of({3000, 50});
  for (const bool joiner_is_newer : {false, true}) {
    VirtualCluster cluster(schema);
    NodeOptions donor;
    donor.start = random_model(schema.floats(), 3);
    donor.membership.protocol = joiner_is_newer ? protocol_oldest : protocol_version;
    cluster.add(donor);
    NodeOptions joiner;
    joiner.seeds = {0};
    joiner.knows_job = false;
    joiner.membership.protocol = joiner_is_newer ? protocol_version : protocol_oldest;
    cluster.add(joiner);
    REQUIRE(cluster.run_until([&] { return cluster.node(1).phase() == Phase::training; }, 30s));
    CHECK(protocol_between(cluster, 0, 1) == protocol_oldest);
    CHECK(cluster.consensus_distance() < 0.01);
  }
}

TEST_CASE(
    "nodes without a version in common refuse each other, and both say which versions meet and "
    "whom to upgrade") {
  const Schema schema = schema_of({100});
  VirtualCluster cluster(schema);
  cluster.add(with_model(schema, 0));
  // The second one is a release of the future, as far as the first can see.
  cluster.tamper([&](std::size_t from, std::size_t, Lane lane, Bytes& message) {
    if (from != 1 || lane != Lane::control) return true;
    Result<Control> control = decode_control(message);
    if (!control) return true;
    if (auto* hello = std::get_if<Hello>(&*control)) {
      hello->protocol = protocol_version + 1;
      hello->newest = protocol_version + 2;
      hello->name = "newcomer";
      message = encode_control(*control);
    }
    return true;
  });
  cluster.add(with_model(schema, 1));
  REQUIRE(cluster.run_until(
      [&] {
        return has_refusal(cluster.view(0), "protocol-mismatch", true) &&
               has_refusal(cluster.view(1), "protocol-mismatch", false);
      },
      30s));
  CHECK(cluster.view(0).links.empty());
  for (const std::size_t i : {0u, 1u})
    for (const Refusal& refusal : cluster.view(i).refusals) {
      if (refusal.reason.code != "protocol-mismatch") continue;
      CHECK(refusal.reason.text.find(
                "speaks protocol 2 to 3 and newcomer speaks protocol 4 to 5") != std::string::npos);
      CHECK(refusal.reason.text.find("install a newer gossipd on node0") != std::string::npos);
    }
}
