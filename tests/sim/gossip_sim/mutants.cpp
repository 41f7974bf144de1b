#include "tests/sim/gossip_sim/mutants.h"

#include <algorithm>
#include <limits>
#include <memory>

#include "core/node/durable_claims.h"
#include "core/wire/control.h"
#include "core/wire/turn.h"

namespace gossipd::sim {
namespace {

// Lets f change the records of a message that lists members.
template <typename F>
void edit_members(Lane lane, Bytes& message, F f) {
  if (lane != Lane::control) return;
  Result<Control> control = decode_control(message);
  auto* members = control ? std::get_if<Members>(&*control) : nullptr;
  if (members == nullptr) return;
  for (MemberRecord& record : members->records) f(record);
  message = encode_control(*control);
}

Hooks nothing_written(VirtualCluster&, const Scenario&) {
  Hooks hooks;
  hooks.write = [](std::size_t, const NodeState& before, NodeState& written) { written = before; };
  return hooks;
}

// The node sends what is not durable yet, which matters on slow disks.
Hooks send_before_durable(VirtualCluster&, const Scenario&) {
  Hooks hooks;
  hooks.says_written = [](std::size_t) { return true; };
  return hooks;
}

Hooks incarnation_reused(VirtualCluster&, const Scenario&) {
  Hooks hooks;
  hooks.boot = [](std::size_t, Disk& disk) {
    disk.state.incarnation -=
        std::min<std::uint64_t>(disk.state.incarnation, DurableClaims::reserve + 1);
  };
  return hooks;
}

Hooks left_forgotten(VirtualCluster&, const Scenario&) {
  Hooks hooks;
  hooks.boot = [](std::size_t, Disk& disk) { disk.state.left = false; };
  return hooks;
}

Hooks samples_withheld(VirtualCluster&, const Scenario&) {
  Hooks hooks;
  hooks.wire = [](std::size_t, std::size_t, Lane lane, Bytes& message) {
    if (lane != Lane::control) return true;
    Result<Control> control = decode_control(message);
    auto* members = control ? std::get_if<Members>(&*control) : nullptr;
    if (members == nullptr) return true;
    for (MemberRecord& record : members->records) record.samples /= 2;
    for (MemberStats& stats : members->stats) stats.samples /= 2;
    message = encode_control(*control);
    return true;
  };
  return hooks;
}

Hooks counted_twice(VirtualCluster&, const Scenario&) {
  Hooks hooks;
  hooks.boot = [](std::size_t, Disk& disk) {
    disk.state.own_samples += disk.checkpoint.counters.samples;
  };
  return hooks;
}

Hooks ghost_samples(VirtualCluster&, const Scenario&) {
  Hooks hooks;
  hooks.snapshot = [](std::size_t, Snapshot& snapshot) { snapshot.samples += snapshot.batch; };
  return hooks;
}

Hooks restless(VirtualCluster& cluster, const Scenario&) {
  Hooks hooks;
  hooks.snapshot = [&cluster](std::size_t node, Snapshot& snapshot) {
    if (cluster.node(node).phase() != Phase::training) snapshot.step_seconds = 1e-9;
  };
  return hooks;
}

Hooks update_twice(VirtualCluster&, const Scenario&) {
  Hooks hooks;
  hooks.applied = [](std::size_t, std::span<float> parameters, const Update& update) {
    for (std::size_t p = 0; p < parameters.size() && !update.replace; ++p)
      parameters[p] += update.values[p];
  };
  return hooks;
}

Hooks update_in_part(VirtualCluster&, const Scenario&) {
  Hooks hooks;
  hooks.applied = [](std::size_t, std::span<float> parameters, const Update& update) {
    for (std::size_t p = parameters.size() / 2; p < parameters.size() && !update.replace; ++p)
      parameters[p] -= update.values[p];
  };
  return hooks;
}

Hooks update_not_finite(VirtualCluster&, const Scenario&) {
  Hooks hooks;
  hooks.effects = [](std::size_t, std::vector<Effect>& effects) {
    for (Effect& effect : effects)
      if (auto* update = std::get_if<UpdateEffect>(&effect))
        update->update.values.back() = std::numeric_limits<float>::infinity();
  };
  return hooks;
}

// Only of deltas, since a whole block carries its hash.
Hooks flipped_bit(VirtualCluster&, const Scenario& scenario) {
  Hooks hooks;
  hooks.wire = [schema = scenario.schema](std::size_t, std::size_t, Lane lane, Bytes& message) {
    TurnHeader header;
    std::vector<TurnRecord> records;
    if (lane != Lane::bulk || bulk_kind(message) != BulkKind::turn ||
        decode_turn(message, schema, header, records))
      return true;
    if (!records.empty() && std::none_of(records.begin(), records.end(), is_whole))
      message.back() ^= std::byte{1};
    return true;
  };
  return hooks;
}

// Keeps the header of a turn's message: without it the turn would not end, and the models would
// drift apart before a link is at rest.
Hooks lost_in_session(VirtualCluster&, const Scenario& scenario) {
  Hooks hooks;
  hooks.wire = [random = std::make_shared<Random>(scenario.seed)](std::size_t, std::size_t,
                                                                  Lane lane, Bytes& message) {
    if (lane == Lane::control || bulk_kind(message) != BulkKind::turn || random->below(20) != 0)
      return true;
    message.resize(turn_header_bytes);
    message[2] = message[3] = std::byte{0};  // its number of records
    return true;
  };
  return hooks;
}

Hooks foreigners_let_in(VirtualCluster&, const Scenario& scenario) {
  Hooks hooks;
  if (!scenario.foreign) return hooks;
  hooks.wire = [foreign = scenario.nodes.size() - 1](std::size_t from, std::size_t to, Lane lane,
                                                     Bytes& message) {
    if ((from != foreign && to != foreign) || lane != Lane::control) return true;
    Result<Control> control = decode_control(message);
    if (auto* hello = control ? std::get_if<Hello>(&*control) : nullptr) {
      hello->cluster = from == foreign ? own_cluster : ClusterId{raw(own_cluster) + foreign};
      message = encode_control(*control);
    }
    return true;
  };
  return hooks;
}

Hooks never_acknowledged(VirtualCluster&, const Scenario&) {
  Hooks hooks;
  hooks.acknowledge = [](std::size_t) { return false; };
  return hooks;
}

Hooks storm(VirtualCluster&, const Scenario&) {
  Hooks hooks;
  hooks.effects = [](std::size_t, std::vector<Effect>& effects) {
    std::vector<Effect> more;
    for (const Effect& effect : effects)
      if (const auto* send = std::get_if<SendEffect>(&effect);
          send != nullptr && send->lane == Lane::control)
        more.insert(more.end(), 1100, effect);
    effects.insert(effects.end(), more.begin(), more.end());
  };
  return hooks;
}

// The transport once ended a closing session by a reset, which lost its last messages. A hello that
// reports leaving would repair that.
Hooks goodbye_cut(VirtualCluster&, const Scenario&) {
  Hooks hooks;
  hooks.effects = [](std::size_t, std::vector<Effect>& effects) {
    std::set<SessionId> closed;
    for (const Effect& effect : effects)
      if (const auto* close = std::get_if<CloseEffect>(&effect)) closed.insert(close->session);
    std::erase_if(effects, [&](const Effect& effect) {
      const auto* send = std::get_if<SendEffect>(&effect);
      return send != nullptr && closed.contains(send->session);
    });
  };
  hooks.wire = [](std::size_t, std::size_t, Lane lane, Bytes& message) {
    if (lane != Lane::control) return true;
    Result<Control> control = decode_control(message);
    if (auto* hello = control ? std::get_if<Hello>(&*control) : nullptr;
        hello != nullptr && std::exchange(hello->leaving, false))
      message = encode_control(*control);
    return true;
  };
  return hooks;
}

Hooks raised_from_the_dead(VirtualCluster&, const Scenario&) {
  Hooks hooks;
  hooks.wire = [](std::size_t, std::size_t, Lane lane, Bytes& message) {
    edit_members(lane, message, [](MemberRecord& record) {
      if (record.state != MemberState::failed) return;
      record.state = MemberState::alive;
      ++record.incarnation;
    });
    return true;
  };
  return hooks;
}

Hooks refused_but_applied(VirtualCluster& cluster, const Scenario&) {
  Hooks hooks;
  hooks.effects = [&cluster](std::size_t node, std::vector<Effect>& effects) {
    for (const Effect& effect : effects)
      if (const auto* log = std::get_if<LogEffect>(&effect);
          log != nullptr && log->text.starts_with("event=delta-refused"))
        cluster.model(node)[0] += 1;
  };
  return hooks;
}

Hooks never_closed(VirtualCluster&, const Scenario&) {
  Hooks hooks;
  hooks.effects = [](std::size_t, std::vector<Effect>& effects) {
    std::erase_if(effects,
                  [](const Effect& effect) { return std::holds_alternative<CloseEffect>(effect); });
  };
  return hooks;
}

// Like a release that does not identify its process.
Hooks instance_unsaid(VirtualCluster&, const Scenario&) {
  Hooks hooks;
  hooks.wire = [](std::size_t, std::size_t, Lane lane, Bytes& message) {
    if (lane != Lane::control) return true;
    Result<Control> control = decode_control(message);
    if (auto* hello = control ? std::get_if<Hello>(&*control) : nullptr) {
      hello->instance = 0;
      message = encode_control(*control);
    }
    return true;
  };
  return hooks;
}

Hooks last_incarnation(VirtualCluster&, const Scenario&) {
  Hooks hooks;
  hooks.boot = [](std::size_t, Disk& disk) { disk.state.incarnation = ~std::uint64_t{0}; };
  return hooks;
}

// The network keeps reflecting what it has reflected once.
Hooks reflected_for_ever(VirtualCluster& cluster, const Scenario&) {
  Hooks hooks;
  hooks.effects = [&cluster, led_back = std::make_shared<std::set<std::size_t>>()](
                      std::size_t node, std::vector<Effect>& effects) {
    for (const Effect& effect : effects) {
      if (const auto* log = std::get_if<LogEffect>(&effect);
          log != nullptr && log->text.starts_with("event=dial-reflected"))
        led_back->insert(node);
      for (std::size_t to = 0; led_back->contains(node) &&
                               std::holds_alternative<DialEffect>(effect) && to < cluster.size();
           ++to) {
        cluster.reflect(node, to, true);
        cluster.reflect(to, node, true);
      }
    }
  };
  return hooks;
}

// A failed assertion of the core, which the campaign must survive.
Hooks two_updates(VirtualCluster& cluster, const Scenario& scenario) {
  Hooks hooks;
  hooks.snapshot = [&cluster, floats = scenario.schema.floats()](std::size_t node, Snapshot&) {
    Snapshot another;
    another.model.assign(floats, 0.0f);
    cluster.node(node).on_snapshot(std::move(another), cluster.local(node));
  };
  return hooks;
}

// Keeps the first final model whatever follows.
Hooks final_once(VirtualCluster& cluster, const Scenario&) {
  Hooks hooks;
  hooks.final_model = [&cluster](std::size_t node) {
    return cluster.whole_disk(node).final_model.empty();
  };
  return hooks;
}

// The samples of the job before count for the next one.
Hooks samples_carried_on(VirtualCluster&, const Scenario&) {
  Hooks hooks;
  hooks.boot = [](std::size_t, Disk& disk) {
    if (disk.state.former_job != JobHash{} && disk.checkpoint.job == disk.state.former_job)
      disk.state.own_samples += disk.checkpoint.counters.samples;
  };
  return hooks;
}

// What a driver tells when its disk had no room.
Hooks next_job_unwritten(VirtualCluster&, const Scenario&) {
  Hooks hooks;
  hooks.next_job = [](std::size_t) { return false; };
  return hooks;
}

constexpr Mutant all[] = {
    {"nothing-written", "persist-first", "a state is said to be on disk and is not",
     nothing_written},
    {"send-before-durable", "persist-first",
     "the driver says that a state is on disk when it begins to write it", send_before_durable},
    {"incarnation-reused", "incarnation", "a start uses the incarnation of the one before",
     incarnation_reused},
    {"left-forgotten", "left", "a restart forgets that the node has left", left_forgotten},
    {"counted-twice", "samples", "a restart adds the checkpoint's samples to the disk's",
     counted_twice},
    {"samples-withheld", "samples", "messages halve every count of samples", samples_withheld},
    {"ghost-samples", "samples", "the trainer counts a step that it has not made", ghost_samples},
    {"update-twice", "delta-once", "the trainer adds an update twice", update_twice},
    {"update-in-part", "delta-once", "the trainer adds half of an update", update_in_part},
    {"restless", "calm", "a step takes no time, and so does the pause between two looks at rest",
     restless},
    {"update-not-finite", "finite", "an infinite value reaches the trainer", update_not_finite},
    {"flipped-bit", "replicas", "the network flips a bit of a delta", flipped_bit},
    {"lost-in-session", "replicas", "the network loses the records of a message inside a session",
     lost_in_session},
    {"foreigners-let-in", "foreign", "the handshake takes every cluster for its own",
     foreigners_let_in},
    {"never-acknowledged", "model", "nobody is told that bulk has been sent", never_acknowledged},
    {"storm", "queues", "the driver repeats control messages", storm},
    {"never-closed", "queues",
     "the driver does not end a session that the core has ended, so a turn goes on for ever",
     never_closed},
    {"goodbye-cut", "living",
     "a session is closed without its last words (as before 0e6d15a), and no hello tells of "
     "leaving",
     goodbye_cut},
    {"raised-from-the-dead", "living", "somebody else raises a dead node's incarnation",
     raised_from_the_dead},
    {"refused-but-applied", "refusal", "a refused message changes the model", refused_but_applied},
    {"final-once", "final", "a node whose model moves does not write `final` again", final_once},
    {"samples-carried-on", "samples", "the samples of the job before count for the next one",
     samples_carried_on},
    {"next-job-unwritten", "next-job", "the next job is said to be on disk and is not",
     next_job_unwritten},
    {"instance-unsaid", "living",
     "no hello says which process of its id speaks, so a cloned disk goes unnoticed",
     instance_unsaid},
    {"last-incarnation", "incarnation", "a disk holds the last of all incarnations",
     last_incarnation},
    {"reflected-for-ever", "living", "what leads back to its sender once does so for ever",
     reflected_for_ever},
    {"two-snapshots", "core", "the trainer answers an update twice", two_updates},
};

}  // namespace

std::span<const Mutant> mutants() { return all; }

const Mutant* find_mutant(const std::string& name) {
  const auto found = std::find_if(std::begin(all), std::end(all),
                                  [&](const Mutant& mutant) { return mutant.name == name; });
  return found == std::end(all) ? nullptr : found;
}

}  // namespace gossipd::sim
