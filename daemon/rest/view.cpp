#include "daemon/rest/view.h"

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>

#include "core/base/dense_baseline.h"
#include "core/base/figures.h"

namespace gossipd {

namespace {

using Json = nlohmann::ordered_json;

// Names come from peers: bytes that are no UTF-8 are replaced. NaN and infinity become null.
std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

template <typename E>
Json id_or_null(E id) {
  return raw(id) == 0 ? Json(nullptr) : Json(to_hex(id));
}

Json number_or_null(const std::optional<double>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json bool_or_null(const std::optional<bool>& value) { return value ? Json(*value) : Json(nullptr); }

Json to_json(const CheckpointView& c) {
  return {{"path", c.path},
          {"written_at", utc_time(c.written_at_s)},
          {"step", c.step},
          {"own_samples", c.own_samples},
          {"bytes", c.bytes},
          {"accuracy", number_or_null(c.accuracy)},
          {"evaluation_loss", number_or_null(c.evaluation_loss)}};
}

Json to_json(const EvaluationView& e) {
  return {{"accuracy", number_or_null(e.accuracy)},
          {"top5_accuracy", number_or_null(e.top5_accuracy)},
          {"perplexity", number_or_null(e.perplexity)},
          {"loss", e.loss},
          {"step", e.step},
          {"cluster_samples", e.cluster_samples},
          {"age_s", e.age_s}};
}

Json to_json(const Refusal& r, double now_s) {
  return {{"age_s", now_s - seconds(r.at.time_since_epoch())},
          {"by", r.by_us ? "us" : "peer"},
          {"peer", r.peer},
          {"code", r.reason.code},
          {"reason", r.reason.text},
          {"count", r.count}};
}

Json to_json(const MemberView& m) {
  const MemberRecord& r = m.record;
  return {{"id", to_hex(r.id)},
          {"name", r.name},
          {"address", to_string(r.address)},
          {"self", m.self},
          {"cloned", m.cloned},
          {"linked", m.linked},
          {"state", to_string(r.state)},
          {"phase", to_string(r.phase)},
          {"rtt_ms", m.linked ? Json(m.rtt_ms) : Json(nullptr)},
          {"age_s", m.self ? Json(nullptr) : Json(m.age_s)},
          {"incarnation", r.incarnation},
          {"step", r.step},
          {"samples", r.samples},
          {"samples_per_second", r.phase == Phase::training ? r.samples_per_second : 0},
          {"batch", r.batch},
          {"loss", r.loss},
          {"consensus_distance", r.consensus_distance},
          {"accuracy", r.accuracy < 0 ? Json(nullptr) : Json(r.accuracy)},
          {"device", r.device},
          {"version", r.version},
          {"reachability", to_string(r.reachability)},
          {"answers_us", bool_or_null(m.answers_us)},
          {"finds_us", bool_or_null(m.finds_us)},
          {"no_answer", m.no_answer}};
}

Json refused_by_reason(const ExchangeCounters& c) {
  Json refused = Json::object();
  for (std::size_t i = 0; i < static_cast<std::size_t>(Reject::count_); ++i)
    refused[to_string(static_cast<Reject>(i))] = c.refused[i];
  return refused;
}

Json to_json(const std::optional<TcpPath>& path) {
  if (!path) return nullptr;
  return {{"mtu", path->mtu},
          {"rtt_min_ms", static_cast<double>(path->round_trip_min.count()) / 1e3},
          {"bytes_acknowledged", path->bytes_acknowledged},
          {"busy_s", static_cast<double>(path->busy.count()) / 1e6}};
}

Json to_json(const LinkView& l, const std::optional<TcpPath>& path) {
  const ExchangeCounters& c = l.counters;
  return {{"peer", id_or_null(l.peer)},
          {"name", l.name},
          {"address", to_string(l.address)},
          {"outbound", l.outbound},
          {"protocol", l.protocol == 0 ? Json(nullptr) : Json(l.protocol)},
          {"state", l.state},
          {"rtt_ms", l.rtt_ms},
          {"clock_ahead_s", l.clock_ahead_s ? Json(*l.clock_ahead_s) : Json(nullptr)},
          {"silence_s", l.silence_s},
          {"large_packets_lost", l.large_packets_lost},
          {"path", to_json(path)},
          {"age_steps", l.age_steps},
          {"age_s", l.age_s},
          {"change", c.change},
          {"threshold", c.threshold},
          {"gain", c.gain},
          {"codec", c.codec.id == CodecId::mirror ? Json(nullptr) : Json(to_text(c.codec))},
          {"correction", c.correction},
          {"trust", c.trust},
          {"transfer", c.transfer},
          {"consensus_distance", c.consensus_distance},
          {"turns_spoken", c.turns_spoken},
          {"turns_heard", c.turns_heard},
          {"turns_suppressed", c.turns_suppressed},
          {"deltas_sent", c.deltas_sent},
          {"deltas_applied", c.deltas_applied},
          {"deltas_duplicate", c.deltas_duplicate},
          {"deltas_resent", c.deltas_resent},
          {"deltas_refused", c.refused_total()},
          {"refused", refused_by_reason(c)},
          {"keyframes_sent", c.keyframes_sent},
          {"keyframes_applied", c.keyframes_applied},
          {"bytes_sent", c.bytes_sent},
          {"bytes_received", c.bytes_received},
          {"turn_bytes", c.turn_bytes}};
}

Json to_json(const SessionView& s) {
  return {{"address", to_string(s.address)},
          {"outbound", s.outbound},
          {"age_s", s.age_s},
          {"wire_bytes_sent", s.bytes_sent},
          {"wire_bytes_received", s.bytes_received}};
}

// Null where nodes have data of their own.
Json division_json(const TrainerView& trainer) {
  if (!trainer.division) return nullptr;
  const DivisionStatus& d = *trainer.division;
  const Samples pass = d.samples > 0 ? trainer.data_position / d.samples : 0;
  return {{"mode", "shared"},     {"members", d.members},
          {"buckets", d.buckets}, {"buckets_owned", d.buckets_owned},
          {"samples", d.samples}, {"samples_owned", d.samples_owned},
          {"pass", pass},         {"place", trainer.data_position - pass * d.samples}};
}

double progress_of(const NodeSummary& node) {
  if (node.budget_samples == 0) return 0;
  return std::min(1.0, static_cast<double>(node.cluster_samples_estimate) /
                           static_cast<double>(node.budget_samples));
}

// At the speed of the members that train now; nothing when nobody does.
std::optional<double> time_left_s(const NodeSummary& node) {
  if (node.budget_samples == 0) return std::nullopt;
  if (node.cluster_samples_estimate >= node.budget_samples) return 0;
  const double speed = node.cluster_samples_per_second;
  if (speed <= 0) return std::nullopt;
  return static_cast<double>(node.budget_samples - node.cluster_samples_estimate) / speed;
}

void add_identity(Json& json, const StatusView& v) {
  json["id"] = to_hex(v.node.id);
  json["name"] = v.node.name;
  json["version"] = v.version;
  json["address"] = to_string(v.address);
  json["listening"] = Json::array();
  for (const Endpoint& e : v.listening) json["listening"].push_back(to_string(e));
  json["state_dir"] = v.state_dir;
  json["cluster_id"] = id_or_null(v.node.cluster);
  json["job_hash"] = id_or_null(v.node.job);
  json["job_name"] = v.job_name ? Json(*v.job_name) : Json(nullptr);
  json["schema_hash"] = id_or_null(v.node.schema);
  json["incarnation"] = v.node.incarnation;
  json["uptime_s"] = v.uptime_s;
  json["ran_s"] = v.ran_s;
  json["stall_max_ms"] = seconds(v.stalls.longest) * 1e3;
  json["stalls_beyond_100_ms"] = v.stalls.long_ones;
  json["disk"] = {{"slow", v.disk.slow},
                  {"writing", v.disk.writing.empty() ? Json(nullptr) : Json(v.disk.writing)},
                  {"writing_s", v.disk.writing_s},
                  {"checkpoint_s", v.disk.checkpoint_s},
                  {"slowest_s", v.disk.slowest_s},
                  {"waiting", v.disk.waiting},
                  {"written", v.disk.written},
                  {"replaced", v.disk.replaced},
                  {"failed", v.disk.failed}};
}

void add_condition(Json& json, const StatusView& v) {
  const std::string reason = not_ready_reason(v.node, v.stopping);
  json["phase"] = to_string(v.node.phase);
  json["ready"] = reason.empty();
  json["ready_reason"] = reason;
  json["waiting_for"] = v.node.waiting_for;
  json["isolated"] = v.node.isolated;
  json["reachability"] = to_string(v.node.reachability);
  json["not_reached"] = v.node.not_reached;
  json["claims_refused"] = v.node.claims_refused;
  json["overridden"] = v.node.overridden;
  json["cloned"] = v.node.cloned;
  json["members_alive"] = v.node.members_by_state[raw(MemberState::alive)];
  json["links_open"] = v.node.links_open;
  json["trainer"] = {{"state", v.trainer.state},
                     {"device", v.trainer.device},
                     {"device_note", v.trainer.device_note},
                     {"shard_samples", v.trainer.shard_samples},
                     {"division", division_json(v.trainer)},
                     {"failure", v.trainer.failure}};
}

void add_training(Json& json, const StatusView& v) {
  const NodeSummary& n = v.node;
  json["step"] = n.step;
  json["own_samples"] = n.own_samples;
  json["cluster_samples"] = n.cluster_samples;
  json["cluster_samples_estimate"] = n.cluster_samples_estimate;
  json["forgotten_members"] = n.forgotten;
  json["forgotten_samples"] = n.forgotten_samples;
  json["budget_samples"] = n.budget_samples;
  json["progress"] = progress_of(n);
  json["time_left_s"] = number_or_null(time_left_s(n));
  json["loss"] = n.loss;
  json["steps_taken_back"] = n.steps_taken_back;
  json["trouble"] = n.trouble;
  json["learning_rate"] = n.learning_rate;
  json["samples_per_second"] = n.samples_per_second;
  json["step_ms"] = n.step_seconds * 1e3;
  json["exchange_period_steps"] = v.exchange_period_steps;
  json["batch"] = n.batch;
  json["consensus_distance"] = n.consensus_distance;
  json["accuracy"] = v.evaluation ? number_or_null(v.evaluation->accuracy) : Json(nullptr);
  json["best_accuracy"] = v.best ? number_or_null(v.best->accuracy) : Json(nullptr);
  json["best_evaluation_loss"] = v.best ? Json(v.best->loss) : Json(nullptr);
  json["evaluation"] = v.evaluation ? to_json(*v.evaluation) : Json(nullptr);
}

}  // namespace

void StallView::note(Duration kept) {
  longest = std::max(longest, kept);
  if (kept > stall_long) ++long_ones;
}

std::string not_ready_reason(const NodeSummary& node, bool stopping) {
  if (stopping) return "stopping";
  if (node.phase == Phase::training || node.phase == Phase::finishing ||
      node.phase == Phase::finished || node.phase == Phase::paused ||
      node.phase == Phase::waiting_for_trainer)
    return {};
  std::string reason = to_string(node.phase);
  if (!node.waiting_for.empty()) reason += ": " + node.waiting_for;
  return reason;
}

std::uint64_t dense_baseline_bytes(const StatusView& v) {
  return dense_baseline_bytes(v.node.linked_steps, v.model_floats);
}

std::string progress_words(const StatusView& v) {
  const NodeSummary& n = v.node;
  const std::optional<double> left = time_left_s(n);
  return "event=progress percent=" + decimals(progress_of(n) * 100, 1) +
         (left ? " left_s=" + decimals(*left, 0) : "") + " step=" + std::to_string(n.step) +
         " loss=" + decimals(n.loss, 4) +
         (v.evaluation && v.evaluation->accuracy
              ? " accuracy=" + decimals(*v.evaluation->accuracy, 4)
              : "") +
         " samples_per_second=" + decimals(n.cluster_samples_per_second, 0) +
         " members=" + std::to_string(n.members_by_state[raw(MemberState::alive)]) +
         " bytes_sent=" + std::to_string(v.wire.bytes_sent);
}

std::string status_json(const StatusView& v) {
  Json json = Json::object();
  add_identity(json, v);
  add_condition(json, v);
  add_training(json, v);
  json["model_floats"] = v.model_floats;
  json["linked_steps"] = v.node.linked_steps;
  json["bytes_sent_total"] = v.wire.bytes_sent;
  json["bytes_received_total"] = v.wire.bytes_received;
  json["dense_baseline_bytes"] = dense_baseline_bytes(v);
  json["checkpoints"] = Json::object();
  for (const auto& [which, checkpoint] : v.checkpoints)
    json["checkpoints"][which] = to_json(checkpoint);
  json["checkpoints_failed"] = v.checkpoints_failed;
  json["refusals"] = Json::array();
  for (const Refusal& r : v.node.refusals) json["refusals"].push_back(to_json(r, v.refusals_now_s));
  json["warnings"] = Json::array();
  for (const Warning& w : v.warnings)
    json["warnings"].push_back({{"age_s", w.age_s}, {"text", w.text}});
  return text_of(json);
}

std::string members_json(ClusterId cluster, const std::vector<MemberView>& members) {
  Json json = {{"cluster_id", id_or_null(cluster)}, {"members", Json::array()}};
  for (const MemberView& m : members) json["members"].push_back(to_json(m));
  return text_of(json);
}

std::string links_json(const std::vector<LinkView>& links, const std::vector<SessionView>& sessions,
                       const WireView& wire) {
  Json json = {{"links", Json::array()},
               {"sessions", Json::array()},
               {"wire_bytes_sent", wire.bytes_sent},
               {"wire_bytes_received", wire.bytes_received}};
  for (const LinkView& l : links) {
    const auto session = std::ranges::find(sessions, l.session, &SessionView::id);
    json["links"].push_back(to_json(l, session == sessions.end() ? std::nullopt : session->path));
  }
  for (const SessionView& s : sessions) json["sessions"].push_back(to_json(s));
  return text_of(json);
}

std::string job_json(const JobView& job, const NodeSummary& node) {
  return text_of({{"hash", to_hex(job.hash)},
                  {"number", node.generation},
                  {"name", job.name},
                  {"model_floats", job.model_floats},
                  {"budget_samples", node.budget_samples},
                  {"cluster_samples", node.cluster_samples},
                  {"progress", progress_of(node)},
                  {"document", job.document}});
}

std::string history_json(const History& history, const std::string& name) {
  Json json = {{"name", name}, {"interval_s", history.interval_s()}, {"points", Json::array()}};
  for (const HistoryPoint& p : history.points()) {
    Json point = {{"time_s", p.time_s},
                  {"cluster_samples", p.cluster_samples},
                  {"step", p.step},
                  {"loss", p.loss}};
    if (p.evaluation) point["evaluation_loss"] = p.evaluation->loss;
    if (p.evaluation && p.evaluation->accuracy) point["accuracy"] = *p.evaluation->accuracy;
    if (p.evaluation && p.evaluation->top5_accuracy)
      point["top5_accuracy"] = *p.evaluation->top5_accuracy;
    if (p.evaluation && p.evaluation->perplexity) point["perplexity"] = *p.evaluation->perplexity;
    point["consensus_distance"] = p.consensus_distance;
    point["learning_rate"] = p.learning_rate;
    point["samples_per_second"] = p.samples_per_second;
    point["bytes_sent"] = p.bytes_sent;
    json["points"].push_back(std::move(point));
  }
  return text_of(json);
}

std::string keys_json(const KeysView& v) {
  Json json = {{"keys", Json::array()}, {"retired", Json::array()}};
  for (const KeysView::Key& key : v.keys)
    json["keys"].push_back(
        {{"id", to_hex(key.id)}, {"in_use", key.in_use}, {"sessions", key.sessions}});
  for (const std::uint64_t id : v.retired) json["retired"].push_back(to_hex(id));
  return json.dump() + "\n";
}

std::string checkpoint_json(const CheckpointView& c) {
  return text_of({{"checkpoint", to_json(c)}});
}

std::string ready_json(Phase phase) {
  return text_of({{"ready", true}, {"phase", to_string(phase)}});
}

std::string utc_time(double seconds_since_1970) {
  const auto whole = static_cast<std::time_t>(seconds_since_1970);
  std::tm parts{};
  ::gmtime_r(&whole, &parts);
  char text[32];
  const std::size_t length = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return std::string(text, length);
}

}  // namespace gossipd
