#include "daemon/rest/metrics.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <cmath>

#include "core/base/printable.h"

namespace gossipd {

namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<std::pair<std::string, std::string>>;

// Collects families in the order of the code; samples of one name stay together.
class Families {
 public:
  void gauge(const std::string& name, const std::string& help, double value,
             const Labels& labels = {}) {
    add(MetricType::Gauge, name, help, value, labels);
  }
  void counter(const std::string& name, const std::string& help, double value,
               const Labels& labels = {}) {
    add(MetricType::Counter, name, help, value, labels);
  }
  [[nodiscard]] const std::vector<MetricFamily>& all() const { return families_; }

 private:
  void add(MetricType type, const std::string& name, const std::string& help, double value,
           const Labels& labels) {
    const std::string full_name = "gossipd_" + name;
    MetricFamily* family = nullptr;
    for (MetricFamily& f : families_)
      if (f.name == full_name) family = &f;
    if (family == nullptr) {
      families_.push_back({full_name, help, type, {}});
      family = &families_.back();
    }
    ClientMetric metric;
    // Names come from peers, and one byte that is no UTF-8 spoils the whole page for a scraper.
    for (const auto& [label, text] : labels) metric.label.push_back({label, printable(text)});
    (type == MetricType::Gauge ? metric.gauge.value : metric.counter.value) = value;
    family->metric.push_back(std::move(metric));
  }

  std::vector<MetricFamily> families_;
};

template <typename T>
double number(T value) {
  return static_cast<double>(value);
}

void add_node(Families& out, const StatusView& v) {
  const NodeSummary& n = v.node;
  out.gauge("info", "Always 1; the labels say which node this is", 1,
            {{"version", v.version},
             {"node", n.name},
             {"id", to_hex(n.id)},
             {"cluster_id", to_hex(n.cluster)},
             {"job_hash", to_hex(n.job)}});
  for (int i = 0; i <= static_cast<int>(Phase::waiting_for_trainer); ++i) {
    const Phase phase = static_cast<Phase>(i);
    out.gauge("phase", "1 for the phase that the node is in", phase == n.phase,
              {{"phase", to_string(phase)}});
  }
  out.gauge("ready", "1 if /readyz answers 200", not_ready_reason(v.node, v.stopping).empty());
  out.gauge("isolated", "1 if members are known and none is linked", n.isolated);
  out.gauge("uptime_seconds", "Since this process started", v.uptime_s);
  out.gauge("stall_seconds_max",
            "The longest that one event or piece of work has kept the protocol thread",
            seconds(v.stalls.longest));
  out.counter("stalls_total",
              "Events and pieces of work that kept the protocol thread for more than 0.1 s",
              number(v.stalls.long_ones));
  out.counter("claims_refused_total", "Of what members said of each other: what cannot be",
              number(n.claims_refused));
  out.gauge("disk_slow", "1 if a write takes long, or did within the last half minute",
            v.disk.slow);
  out.gauge("disk_writing_seconds",
            "For so long the state, the keys or the job are being written; 0: nothing is",
            v.disk.writing_s);
  out.gauge("disk_write_seconds_max", "The longest such write so far", v.disk.slowest_s);
  out.counter("disk_writes_total",
              "Writes of the state, the keys and the job, and reads of the job's file for joiners",
              number(v.disk.written), {{"result", "done"}});
  out.counter("disk_writes_total",
              "Writes of the state, the keys and the job, and reads of the job's file for joiners",
              number(v.disk.failed), {{"result", "failed"}});
  out.counter("disk_writes_total",
              "Writes of the state, the keys and the job, and reads of the job's file for joiners",
              number(v.disk.replaced), {{"result", "replaced"}});
  out.gauge("incarnation", "Raised at every start and to refute a suspicion",
            number(n.incarnation));
}

void add_training(Families& out, const StatusView& v) {
  const NodeSummary& n = v.node;
  out.counter("steps_total", "Optimiser steps of this node", number(n.step));
  out.counter("own_samples_total", "Samples that this node has trained on", number(n.own_samples));
  out.counter("cluster_samples_total", "Samples that the whole cluster has trained on",
              number(n.cluster_samples));
  out.gauge("budget_samples", "The job ends when the cluster has trained on so many",
            number(n.budget_samples));
  out.gauge("samples_per_second", "Training speed of this node", n.samples_per_second);
  out.gauge("step_seconds", "Smoothed duration of one step", n.step_seconds);
  out.gauge("batch_samples", "Samples per step", n.batch);
  out.gauge("loss", "Smoothed training loss", n.loss);
  out.counter("steps_taken_back_total", "Looks at the own model that had jumped",
              number(n.steps_taken_back));
  out.gauge("trouble", "1 if the own steps suffer from what /v1/status names", !n.trouble.empty());
  out.gauge("learning_rate", "Of the next step", n.learning_rate);
  out.gauge("consensus_distance_ratio",
            "Largest relative distance to a neighbour's published model", n.consensus_distance);
  out.gauge("model_floats", "Parameters and statistics of the model", number(v.model_floats));
  if (v.evaluation) {
    if (v.evaluation->accuracy)
      out.gauge("accuracy_ratio", "On the held-out set, at the last evaluation",
                *v.evaluation->accuracy);
    if (v.evaluation->top5_accuracy)
      out.gauge("top5_accuracy_ratio", "On the held-out set, at the last evaluation",
                *v.evaluation->top5_accuracy);
    if (v.evaluation->perplexity)
      out.gauge("perplexity", "On the held-out set, at the last evaluation",
                *v.evaluation->perplexity);
    out.gauge("evaluation_loss", "On the held-out set, at the last evaluation", v.evaluation->loss);
    out.gauge("evaluation_age_seconds", "Since the last evaluation", v.evaluation->age_s);
  }
  for (const auto& [which, c] : v.checkpoints)
    out.gauge("checkpoint_timestamp_seconds", "When the checkpoint was written", c.written_at_s,
              {{"checkpoint", which}});
  out.counter("checkpoints_failed_total", "Checkpoints that could not be written",
              number(v.checkpoints_failed));
}

void add_members(Families& out, const StatusView& v) {
  const auto& count = v.node.members_by_state;
  for (std::size_t i = 0; i < count.size(); ++i)
    out.gauge("members", "Known members, this node included", count[i],
              {{"state", to_string(static_cast<MemberState>(i))}});
}

void add_wire(Families& out, const StatusView& v) {
  const char* help = "On the wire, everything included";
  out.counter("wire_bytes_total", help, number(v.wire.bytes_sent), {{"direction", "sent"}});
  out.counter("wire_bytes_total", help, number(v.wire.bytes_received), {{"direction", "received"}});
  out.counter("dense_baseline_bytes_total",
              "What an fp32 all-reduce at every step with a link open would have sent",
              number(dense_baseline_bytes(v)));
  out.gauge("sessions", "Open connections", number(v.wire.sessions));
  out.counter("sessions_opened_total", "Connections that were opened",
              number(v.wire.sessions_opened));
  for (const auto& [reason, n] : v.wire.sessions_closed)
    out.counter("sessions_closed_total", "Connections that ended", number(n), {{"reason", reason}});
  for (const auto& [reason, n] : v.wire.dials_failed)
    out.counter("dials_failed_total", "Attempts to connect that came to nothing", number(n),
                {{"reason", reason}});
  for (const auto& [reason, n] : v.wire.inbound_rejected)
    out.counter("inbound_rejected_total", "Connections that did not become a session", number(n),
                {{"reason", reason}});
}

void add_link(Families& out, const LinkView& l) {
  const ExchangeCounters& c = l.counters;
  const Labels who = {{"peer", l.name}, {"peer_id", to_hex(l.peer)}};
  const auto with = [&who](const std::string& label, const std::string& value) {
    Labels labels = who;
    labels.emplace_back(label, value);
    return labels;
  };
  out.gauge("link_up", "1 if the link is open", l.state == "open", who);
  out.gauge("link_quarantine_seconds", "Left of the link's quarantine; 0: there is none",
            l.quarantine_s, who);
  out.gauge("link_rtt_seconds", "Round trip", l.rtt_ms / 1e3, who);
  out.gauge("link_silence_seconds", "Since the last byte", l.silence_s, who);
  out.gauge("link_age_steps", "Of what the peer published, in its steps", l.age_steps, who);
  out.gauge("link_age_seconds", "Of what the peer published", l.age_s, who);
  out.gauge("link_change_ratio", "Relative change of the own model since it was published",
            c.change, who);
  out.gauge("link_threshold_ratio", "What the change is held against", c.threshold, who);
  out.gauge("link_gain_ratio", "Gain applied in the last turn", c.gain, who);
  out.gauge("link_correction_ratio",
            "Norm of the future-position correction, relative to the model", c.correction, who);
  out.gauge("link_trust_ratio", "Factor on the peer's weight, by its forecast loss", c.trust, who);
  out.gauge("link_consensus_distance_ratio", "Relative distance between what both ends published",
            c.consensus_distance, who);
  const char* turns = "Turns of the conversation about the model";
  out.counter("link_turns_total", turns, number(c.turns_spoken), with("kind", "spoken"));
  out.counter("link_turns_total", turns, number(c.turns_heard), with("kind", "heard"));
  out.counter("link_turns_total", turns, number(c.turns_suppressed), with("kind", "suppressed"));
  const char* judged = "Exchanges of which this node has not taken all";
  out.counter("link_transfers_cut_total", judged, number(c.transfers_clipped), with("why", "norm"));
  out.counter("link_transfers_cut_total", judged, number(c.transfers_distrusted),
              with("why", "loss"));
  const char* deltas = "Blocks sent as differences";
  out.counter("link_deltas_total", deltas, number(c.deltas_sent), with("kind", "sent"));
  out.counter("link_deltas_total", deltas, number(c.deltas_applied), with("kind", "applied"));
  out.counter("link_deltas_total", deltas, number(c.deltas_duplicate), with("kind", "duplicate"));
  out.counter("link_deltas_total", deltas, number(c.deltas_resent), with("kind", "resent"));
  out.counter("link_keyframes_total", "Blocks sent whole", number(c.keyframes_sent),
              with("kind", "sent"));
  out.counter("link_keyframes_total", "Blocks sent whole", number(c.keyframes_applied),
              with("kind", "applied"));
  out.counter("link_bytes_total", "Messages, before framing and TLS", number(c.bytes_sent),
              with("direction", "sent"));
  out.counter("link_bytes_total", "Messages, before framing and TLS", number(c.bytes_received),
              with("direction", "received"));
  for (std::size_t i = 0; i < static_cast<std::size_t>(Reject::count_); ++i)
    out.counter("link_refused_total", "Messages and blocks that changed nothing",
                number(c.refused[i]), with("reason", to_string(static_cast<Reject>(i))));
}

}  // namespace

std::string metrics_text(const StatusView& view, const std::vector<LinkView>& links) {
  Families families;
  add_node(families, view);
  add_training(families, view);
  add_members(families, view);
  add_wire(families, view);
  for (const LinkView& link : links) add_link(families, link);
  return prometheus::TextSerializer().Serialize(families.all());
}

}  // namespace gossipd
