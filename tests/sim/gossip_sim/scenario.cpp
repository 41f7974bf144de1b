#include "tests/sim/gossip_sim/scenario.h"

#include <cmath>

namespace gossipd::sim {
namespace {

using namespace std::chrono_literals;

constexpr const char* fault_names[] = {"reset",
                                       "half-open",
                                       "one-way-cut",
                                       "partition",
                                       "delay",
                                       "clog",
                                       "duplicate-session",
                                       "kill",
                                       "kill-at-effect",
                                       "power-loss",
                                       "lost-write",
                                       "stop",
                                       "freeze",
                                       "clock-jump",
                                       "old-disk",
                                       "empty-disk",
                                       "foreign-disk",
                                       "disk-error",
                                       "slow-disk",
                                       "stuck-disk",
                                       "lost-checkpoint",
                                       "late-join",
                                       "operator-race",
                                       "wrong-cluster",
                                       "not-a-number",
                                       "explosion",
                                       "hostile-bytes",
                                       "hostile-member",
                                       "connection-flood",
                                       "at-the-end",
                                       "endless-turn",
                                       "cloned-disk",
                                       "reflected-dial",
                                       "lying-member",
                                       "poisoned-step",
                                       "lie",
                                       "next-job"};
static_assert(std::size(fault_names) == fault_classes);

// at most between two dials of members that failed (core: 10 s and a half)
constexpr Duration failed_dial_gap = 15s;
// 10 s, doubled six times: a node that alone has a model, an exploded one, may reach it
constexpr Duration quarantine_max = 640s;
// for an explosion's remains in a few places: one magnitude for a group of 256
constexpr double ternary_rounds = 8;
constexpr double gradient_peak = 0.2;

double between(Random& random, double low, double high) {
  return low + (high - low) * random.uniform();
}
Duration between(Random& random, Duration low, Duration high) {
  return from_seconds(between(random, seconds(low), seconds(high)));
}
bool chance(Random& random, double probability) { return random.uniform() < probability; }

// Most clusters are small, since many seeds find bugs between two or three nodes sooner than many
// nodes do.
std::size_t draw_size(Random& random) {
  const double u = random.uniform();
  if (u < 0.70) return 2 + random.below(3);
  if (u < 0.94) return 5 + random.below(4);
  if (u < 0.99) return 9 + random.below(8);
  return 17 + random.below(48);
}

Schema draw_schema(Random& random) {
  std::vector<Segment> segments;
  std::uint64_t offset = 0;
  const std::size_t count = 1 + random.below(4);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t size = chance(random, 0.5) ? 1 + random.below(40) : 40 + random.below(700);
    const SegmentKind kind = i > 0 && chance(random, 0.15)  ? SegmentKind::statistic
                             : i > 0 && chance(random, 0.1) ? SegmentKind::local
                                                            : SegmentKind::parameter;
    segments.push_back(
        Segment{"s" + std::to_string(i), {static_cast<std::int64_t>(size)}, offset, size, kind});
    offset += size;
  }
  return Schema::build(std::move(segments)).value();
}

MembershipPolicy draw_membership(Random& random, std::size_t nodes) {
  // Traffic grows with nodes x links x members, so large clusters tick slowly.
  const double slow = nodes > 16 ? 5 : nodes > 8 ? 3 : 1;
  MembershipPolicy policy;
  policy.links = static_cast<std::uint32_t>(2 + random.below(3));
  policy.tick = between(random, 2s, 5s) * static_cast<int>(slow);
  policy.ping = between(random, 2s, 4s) * static_cast<int>(slow);
  policy.suspect_after = policy.ping * 3;
  policy.fail_after = policy.ping * 6;
  policy.handshake_timeout = policy.fail_after;
  policy.redial_min = between(random, 300ms, 1s);
  policy.redial_max = between(random, 5s, 15s);
  return policy;
}

ExchangePolicy draw_exchange(Random& random) {
  ExchangePolicy policy;
  const Codec codecs[] = {{CodecId::fp32, 0},   {CodecId::bf16, 0},    {CodecId::int8, 0},
                          {CodecId::int4, 0},   {CodecId::ternary, 0}, {CodecId::top_k, 64},
                          {CodecId::top_k, 200}};
  const Codec whole[] = {{CodecId::fp32, 0}, {CodecId::bf16, 0}, {CodecId::int8, 0}};
  const TriggerRule rules[] = {TriggerRule::change, TriggerRule::change, TriggerRule::period,
                               TriggerRule::period, TriggerRule::budget};
  policy.codec = codecs[random.below(std::size(codecs))];
  policy.consensus_codec = codecs[2 + random.below(2)];
  policy.keyframe_codec = whole[random.below(std::size(whole))];
  policy.trigger = rules[random.below(std::size(rules))];
  policy.budget_bytes_per_s =
      policy.trigger == TriggerRule::budget ? between(random, 2000, 20000) : 0;
  // Draws two numbers of removed settings, so that a seed keeps its meaning.
  (void)random.uniform();
  policy.bulk_window_bytes = 2048 + random.below(64 * 1024);
  policy.round_steps = 1 + random.below(3);
  policy.period_steps = 1 + random.below(6);
  (void)random.uniform();
  policy.heartbeat = between(random, 2s, 6s);
  policy.outer_momentum = chance(random, 0.5) ? 0.5 : 0;
  policy.correction.future_position = chance(random, 0.2) ? 0.5 : 0;
  policy.correction.curvature = chance(random, 0.1) ? 1 : 0;
  policy.correction.loss_trust = chance(random, 0.15) ? LossTrust::holt : LossTrust::off;
  policy.age_decay = chance(random, 0.1) ? 0.05 : 0;
  policy.joiner_steps = random.below(100);
  policy.replicas = chance(random, 0.6) ? ReplicaFormat::bf16 : ReplicaFormat::fp32;
  return policy;
}

std::vector<float> draw_model(Random& random, std::size_t floats) {
  std::vector<float> model(floats);
  for (float& x : model) x = static_cast<float>(between(random, -1, 1));
  return model;
}

// The classes from the first drawn apart on are drawn separately, so that a new one changes nothing
// else of a seed.
void draw_rates(Scenario& s, Random& random) {
  constexpr auto first_apart = static_cast<std::size_t>(Fault::cloned_disk);
  Random apart(s.seed * 0xa0761d6478bd642full + 3);
  for (std::size_t i = 0; i < fault_classes; ++i) {
    const auto fault = static_cast<Fault>(i);
    if (fault == Fault::at_the_end || fault == Fault::next_job) continue;
    Random& from = i < first_apart ? random : apart;
    s.rates[i] = chance(from, 0.4) ? 0 : from.uniform();
  }
}

// `time_for`: samples that all nodes can train on in the chaos.
void draw_budget(Scenario& s, double time_for, Random& random) {
  Random ends(s.seed * 0xa0761d6478bd642full + 3);
  double budget = chance(random, 0.1) ? between(random, 0.3, 0.9) : 0;
  if (chance(ends, 0.15) && budget == 0) budget = between(ends, 0.2, 0.7);
  // One that is over so soon that others follow it.
  Random follows(s.seed * 0x94d049bb133111ebull + 7);
  if (chance(follows, 0.15) && budget == 0) budget = between(follows, 0.03, 0.15);
  s.budget = static_cast<Samples>(budget * time_for);
  // Without gradients nothing repairs an exploded model.
  for (const Fault fault : {Fault::explosion, Fault::poisoned_step})
    if (s.budget > 0) s.rates[static_cast<std::size_t>(fault)] = 0;
}

// `i` of `count` members; beyond them a founder of a foreign cluster.
NodeOptions draw_node(const Scenario& s, std::size_t i, std::size_t count, Duration step,
                      double timer_slack_s, Random& random) {
  NodeOptions node;
  node.membership = s.membership;
  node.exchange = draw_exchange(random);
  node.step_time = from_seconds(seconds(step) * between(random, 0.7, 1.5));
  node.budget = s.budget;
  node.clock_offset = between(random, 0s, 1000s);
  node.timer_slack = from_seconds(timer_slack_s * random.uniform());
  if (i > 0 && i < count) {
    node.seeds.push_back(chance(random, 0.6) ? 0 : random.below(i));
    node.knows_job = chance(random, 0.3);
  } else {
    node.start = draw_model(random, s.schema.floats());
  }
  return node;
}

// Some clusters are being upgraded.
void draw_versions(Scenario& s) {
  Random versions(s.seed * 0xd1342543de82ef95ull + 7);
  const bool mixed = chance(versions, 0.3);
  for (NodeOptions& node : s.nodes)
    if (mixed && chance(versions, 0.5)) node.membership.protocol = protocol_oldest;
}

// In some clusters every node makes the founder's model from the job.
void draw_initial(Scenario& s) {
  Random random(s.seed * 0x94d049bb133111ebull + 3);
  if (!chance(random, 0.5)) return;
  for (NodeOptions& node : s.nodes) node.initial = s.nodes.front().start;
}

}  // namespace

const char* to_string(Fault fault) { return fault_names[static_cast<std::size_t>(fault)]; }

Scenario draw_scenario(std::uint64_t seed) {
  Random random(seed * 0x9e3779b97f4a7c15ull + 1);
  Scenario s;
  s.seed = seed;
  const std::size_t count = draw_size(random);
  s.schema = draw_schema(random);
  s.membership = draw_membership(random, count);
  s.late = count > 2 ? random.below(count / 2) : 0;
  s.foreign = chance(random, 0.25);
  s.chaos = between(random, 420s, 480s);
  s.freeze_max = chance(random, 0.03) ? Duration(3600s) : Duration(60s);
  s.faults = 20 + random.below(25);
  draw_rates(s, random);

  const std::vector<float> shared = draw_model(random, s.schema.floats());
  const Duration step = between(random, 300ms, 1500ms) * (count > 16 ? 3 : 1);
  draw_budget(s, seconds(s.chaos) / seconds(step) * 32.0 * static_cast<double>(count), random);
  const double timer_slack_s = chance(random, 0.5) ? 0.4 : 0.05;
  for (std::size_t i = 0; i < count + (s.foreign ? 1 : 0); ++i) {
    s.nodes.push_back(draw_node(s, i, count, step, timer_slack_s, random));
    // Half of the target is common to all nodes.
    std::vector<float> target = draw_model(random, s.schema.floats());
    for (std::size_t p = 0; p < target.size(); ++p) target[p] = shared[p] + 0.3f * target[p];
    s.targets.push_back(std::move(target));
  }
  draw_versions(s);
  draw_initial(s);
  s.pull = static_cast<float>(between(random, 0.1, gradient_peak));
  return s;
}

// After the last fault a dead or disconnected node is silent for fail_after plus the four ticks
// that a record may take through others; half-open sessions end in the same time, a stuck handshake
// after its timeout. Then missing nodes are dialled: failed members one at a time (drawn at random
// among ids that will never answer, so twice the expected time of drawing one), seeds after the
// longest backoff with its jitter. A pair may be in quarantine. News then pass through all nodes in
// a row, a tick each.
Duration membership_bound(const Scenario& s, std::size_t ids_ever) {
  const MembershipPolicy& m = s.membership;
  const auto ids = static_cast<int>(ids_ever);
  return 2 * (m.fail_after + 4 * m.tick) + 2 * m.handshake_timeout + m.redial_max * 5 / 4 * 2 +
         2 * failed_dial_gap * ids + m.isolation_grace + quarantine_max + m.tick * ids;
}

// Models grow together in rounds in which every link has had an exchange: at least every heartbeat
// and, where a rule counts steps, period_steps of the slowest node. A round on a path of n nodes,
// the slowest graph, shrinks the distance by 1 - (pi/n)^2/4 with the gain of 1/4 that two exchanges
// at once have: n^2 rounds for a factor of 11, and twice that for the factor from the distance of
// the targets (0.3) to the bound; 40 rounds for two nodes of which one refuses the first. A sparse
// codec says a part of the places in each. A link may be in quarantine when it begins.
Duration agreement_bound(const Scenario& s) {
  Duration round{};
  double places = 1;
  for (const NodeOptions& node : s.nodes) {
    const Duration steps =
        from_seconds(seconds(node.step_time) *
                     static_cast<double>(node.exchange.period_steps + node.exchange.round_steps));
    round = std::max(round, std::max(node.exchange.heartbeat, steps));
    if (node.exchange.codec.id == CodecId::ternary) places = std::max(places, ternary_rounds);
    if (node.exchange.codec.id == CodecId::top_k)
      places = std::max(places, static_cast<double>(top_k_chunk) / node.exchange.codec.keep);
  }
  const auto n = static_cast<double>(s.nodes.size());
  return from_seconds(seconds(round) * (2 * n * n + 40) * places) + quarantine_max;
}

// The final exchange takes at most its cap; a later joiner makes the models agree again, which
// takes another.
Duration final_bound(const Scenario& s) { return agreement_bound(s) + 2 * s.membership.finish_cap; }

}  // namespace gossipd::sim
