// What the driver shows: slices of the node, the trainer, the disk and the wire.
#include "daemon/node_driver.h"

#include <unistd.h>
#include "daemon/log/log.h"
#include "daemon/rest/live.h"

namespace gossipd {

namespace {
constexpr int progress_interval_s = 10;
}

NodeSummary NodeDriver::node() const {
  NodeSummary node = node_->summary(EventLoop::now());
  // A node that has left is not cut off from anything.
  if (node.phase == Phase::left) node.isolated = false;
  if (node.phase == Phase::finished && node.waiting_for.empty() && training_)
    node.waiting_for = training_->final_model_waits_for();
  if (node.phase == Phase::finished && !node.trouble.empty())
    node.trouble +=
        "; or start that job here, since this one is finished: `gossipctl job start FILE`";
  if (tried_job_ && !job_start_ && node.waiting_for.empty())
    node.waiting_for = "the trial of job '" + *tried_job_ + "', which is to follow";
  return node;
}

StatusView NodeDriver::status() const {
  const Instant now = EventLoop::now();
  StatusView view;
  view.node = node();
  view.version = GOSSIPD_VERSION;
  view.address = address_;
  view.listening = transport_->listening();
  view.state_dir = store_.directory().string();
  view.disk = disk_view(now);
  view.wire = wire();
  view.exchange_period_steps = config_.exchange.period_steps;
  view.stopping = stopping_;
  if (job_) view.job_name = job_->name;
  training_->describe(view, now);
  log_.describe(view, now);
  if (view.node.phase == Phase::left) view.warnings.push_back({0, still_out});
  for (const std::string& text : certificate_warnings_) view.warnings.push_back({0, text});
  for (const LinkView& link : node_->links(now))
    if (link.large_packets_lost)
      view.warnings.push_back(
          {0, "the path to " + link.name + " (" + to_string(link.address) +
                  ") swallows large packets: lower the MTU of this "
                  "interface, or set net.ipv4.tcp_mtu_probing=1, on both ends"});
  if (const std::string hint = reachability_hint(view.node.reachability, address_); !hint.empty())
    view.warnings.push_back({0, "this node is not to be found at " + to_string(address_) + " (" +
                                    view.node.not_reached + "): " + hint});
  return view;
}

std::string NodeDriver::device() const {
  StatusView view;
  training_->describe(view, EventLoop::now());
  return view.trainer.device;
}

std::vector<MemberView> NodeDriver::members() const { return node_->members(EventLoop::now()); }

std::vector<LinkView> NodeDriver::links() const { return node_->links(EventLoop::now()); }

std::vector<SessionView> NodeDriver::sessions() const {
  const Instant now = EventLoop::now();
  std::vector<SessionView> open;
  for (const auto& [id, session] : sessions_)
    if (const std::optional<SessionCounters> own = transport_->counters(id))
      open.push_back({.id = id,
                      .address = session.address,
                      .outbound = session.outbound,
                      .age_s = seconds(now - session.opened),
                      .bytes_sent = own->wire.out,
                      .bytes_received = own->wire.in,
                      .path = transport_->path(id)});
  return open;
}

WireView NodeDriver::wire() const {
  const PeerCounters& counters = transport_->counters();
  WireView view;
  view.bytes_sent = counters.total.wire.out;
  view.bytes_received = counters.total.wire.in;
  view.sessions_opened = counters.sessions_opened;
  view.sessions_closed = counters.sessions_closed;
  view.dials_failed = counters.dials_failed;
  view.inbound_rejected = counters.inbound_rejected;
  for (const auto& [id, session] : sessions_) view.sessions += transport_->counters(id).has_value();
  return view;
}

std::optional<JobView> NodeDriver::job() const {
  if (!job_) return std::nullopt;
  return JobView{job_->hash, job_->name, job_->document, training_->model_floats()};
}

Result<KeysView> NodeDriver::keys() const { return keys_->view(transport_->sessions_by_key()); }

DiskView NodeDriver::disk_view(Instant now) const {
  DiskView view = disk_.view(now);
  view.checkpoint_s = training_->checkpoint_seconds(now);
  view.slow = disk_watch_.slow();
  return view;
}

void NodeDriver::tell_live() {
  const Instant now = EventLoop::now();
  if (log_.members_due(now)) log_.record_members(members(), now);
  if (events_.listeners() == 0) return;
  std::size_t members = 0;
  for (const std::uint32_t of_one_state : node_->summary(now).members_by_state)
    members += of_one_state;
  if (events_.snapshot_due(now, members)) events_.tell_snapshot(snapshot_json(*this));
}

// For a person who watches the log; files and journals have curves and metrics instead.
void NodeDriver::log_progress() {
  if (!config_.log_file.empty() || ::isatty(STDERR_FILENO) != 1) return;
  if (++seconds_unsaid_ < progress_interval_s) return;
  seconds_unsaid_ = 0;
  const StatusView view = status();
  if (view.node.phase == Phase::training) log_line(Level::info, progress_words(view));
}

void NodeDriver::warn(const std::string& text) { log_.warn(text, EventLoop::now()); }

}  // namespace gossipd
