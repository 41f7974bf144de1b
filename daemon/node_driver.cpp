#include "daemon/node_driver.h"

#include <algorithm>
#include <utility>

#include "core/base/figures.h"
#include "core/base/printable.h"
#include "core/node/job_generation.h"
#include "daemon/config/advertise.h"
#include "daemon/log/log.h"
#include "daemon/rest/serve.h"

namespace gossipd {

namespace {

Metadata identity_of(const DaemonConfig& config, NodeId id) {
  return {{"node", config.name}, {"node_id", to_hex(id)}};
}

}  // namespace

NodeDriver::NodeDriver(EventLoop& loop, const DaemonConfig& config, const StateStore& store,
                       TrainerSocket* socket)
    : loop_(loop),
      config_(config),
      store_(store),
      socket_(socket),
      log_(EventLoop::now()),
      events_(static_cast<std::uint64_t>(wall_seconds() * 1e3)),
      disk_(loop, [&store] { return store.check_lock(); }),
      disk_watch_(store.directory().string()),
      finish_watch_(config.membership.finish_cap),
      trial_(loop),
      node_timer_(loop,
                  [this] {
                    const Instant now = begin_event();
                    node_->set_clock(static_cast<std::uint64_t>(wall_seconds() * 1e3), now);
                    node_->on_time(now);
                    after_event();
                  }),
      second_timer_(loop, [this] { on_second(); }),
      stop_timer_(loop, [this] { on_stop_time_up(); }),
      service_(loop, service_environment()) {}

NodeDriver::~NodeDriver() { watch_log({}); }

// ---- start
// ---------------------------------------------------------------------------------------

void NodeDriver::find_own_address(const StartPlan& plan) {
  if (!config_.advertise && is_every_address(plan.listen))
    own_host_ = own_address_towards(config_.join);
}

std::optional<Error> NodeDriver::start(const StartPlan& plan) {
  watch_log([this](Level level, const std::string& words) {
    // who listens has the snapshots
    if (!words.starts_with("event=progress ")) events_.note(level, words, wall_seconds());
  });
  for (const std::string& text : plan.warnings) warn(text);
  if (auto error = restore_history()) return error;
  if (auto error = listen(plan)) return error;
  if (auto error = look_at_seeds(plan)) return error;
  auto rest = serve_rest(loop_, *this, config_, store_.directory(), address_);
  if (!rest) return rest.error();
  rest_ = std::move(*rest);
  auto served = serve_metrics(loop_, *this, config_);
  if (!served) return served.error();
  metrics_ = std::move(*served);
  certificates_ = plan.certificates;
  look_at_certificates();
  keys_.emplace(
      disk_, answers_,
      KeyStore::Start{.keys = plan.keys,
                      .certificates = certificates_.has_value(),
                      .was_member = plan.kind == StartPlan::Kind::rejoin,
                      .path = store_.key_path().string()},
      KeyStore::Events{.on_changed = [this](const Keyring& keys) { transport_->set_keys(keys); },
                       .on_warning = [this](const std::string& text) { warn(text); }});
  choose_first_model(plan);
  own_samples_at_start_ = plan.state.own_samples;
  training_ = std::make_unique<Training>(loop_, config_, store_, socket_, plan.state.id,
                                         identity_of(config_, plan.state.id), training_events());

  log_line(Level::info, "event=start version=" GOSSIPD_VERSION " id=" + to_hex(plan.state.id) +
                            " plan=" + to_string(plan.kind) + " cluster=" +
                            to_hex(plan.state.cluster) + " address=" + to_string(address_) +
                            " state=" + log_quoted(store_.directory().string()) +
                            (plan.keys           ? " peers=tls"
                             : plan.certificates ? " peers=certificates"
                                                 : " peers=plain"));
  if (plan.certificates)
    log_line(Level::info, "event=peer-tls certificate=" + log_quoted(plan.certificates->subject()) +
                              " ca=" + log_quoted(config_.peer_tls.ca));
  if (plan.state.left) log_warning(still_out);
  if (!plan.key_written.empty())
    log_line(Level::info,
             "event=key-written file=" + log_quoted(plan.key_written) + " hint=" +
                 log_quoted(is_loopback(address_)
                                ? only_here(address_) + "; `gossipctl invite` then prints the " +
                                      "line with which they join"
                                : "`gossipctl invite` prints the line with which other "
                                  "boxes join"));
  for (const MemberRecord& member : plan.state.members) transport_->know(member.address.host);
  for (const Endpoint& seed : config_.join) transport_->know(seed.host);
  start_node(plan, EventLoop::now());
  second_timer_.arm_after(std::chrono::seconds(1));
  service_.ready();
  return std::nullopt;
}

// A founder has the job's own initial model, also when it died before it wrote or trained anything,
// and each member has that of a next job, unless it has heard that another has begun to train. A
// node that has trained needs its checkpoint or a member with the model: beginning anew would
// silently lose the work.
void NodeDriver::choose_first_model(const StartPlan& plan) {
  nobody_to_ask_ =
      plan.kind != StartPlan::Kind::join && plan.state.members.empty() && config_.join.empty();
  goes_on_ = plan.state.generation > JobGeneration::founding;
  const bool begins = goes_on_ || plan.state.founder;
  model_at_start_ =
      nobody_to_ask_ ? plan.state.own_samples == 0 : begins && nobody_has_trained(plan.state);
}

std::optional<Error> NodeDriver::listen(const StartPlan& plan) {
  if (plan.certificates)
    transport_ = std::make_unique<PeerTransport>(loop_, *this, *plan.certificates);
  else
    transport_ = std::make_unique<PeerTransport>(loop_, *this, plan.keys);
  const Result<Endpoint> bound = transport_->listen(plan.listen);
  if (!bound) return Error{bound.error().code, "listen: " + bound.error().text};
  address_ = config_.advertise.value_or(choose_advertised(*bound, config_.join, own_host_));
  if (address_.port == 0) address_.port = bound->port;
  return std::nullopt;
}

// One list of seeds serves all nodes, so this one may be in it; but not alone.
std::optional<Error> NodeDriver::look_at_seeds(const StartPlan& plan) {
  std::size_t own = 0;
  for (const Endpoint& seed : config_.join) {
    if (!is_this_node(seed)) continue;
    ++own;
    if (config_.ordinal) continue;  // all have the same list
    if (own < config_.join.size() || plan.kind != StartPlan::Kind::join)
      warn("join: " + to_string(seed) + " is this node itself, so it is no help in joining");
  }
  if (own == 0 || own < config_.join.size() || plan.kind != StartPlan::Kind::join ||
      plan.founds != ClusterId{})
    return std::nullopt;
  return Error{"bad-config",
               "join: " + to_string(config_.join.front()) +
                   " is this node itself, so nobody would ever answer; name another member, "
                   "or found a cluster with --job FILE and without --join"};
}

bool NodeDriver::is_this_node(const Endpoint& there) const {
  return leads_to(there, address_, transport_->listening());
}

void NodeDriver::start_node(const StartPlan& plan, Instant now) {
  NodeConfig node;
  node.name = config_.name;
  node.advertise = address_;
  node.advertise_by_operator = config_.advertise.has_value();
  node.version = GOSSIPD_VERSION;
  node.leads_here = [this](const Endpoint& there) { return is_this_node(there); };
  node.seeds = config_.join;
  if (config_.ordinal)
    std::erase_if(node.seeds, [this](const Endpoint& seed) { return is_this_node(seed); });
  node.founds = founds_ = plan.founds;
  awaits_cluster_ = founds_ != ClusterId{};
  node.random_seed = random_64();
  node.membership = config_.membership;
  node.exchange = config_.exchange;
  node.balance = config_.balance;
  if (const std::size_t threads = worker_threads(config_.exchange_threads); threads > 1)
    workers_ = std::make_unique<WorkerPool>(threads);
  node.workers = workers_.get();
  event_began_ = now;
  node_.emplace(std::move(node), plan.state, now);
  job_ = plan.job;
  if (job_) {
    save_job(job_->document);
    node_->on_job(job_->document, job_->hash, job_->budget_samples, now);
  }
  after_event();
  if (!job_ || awaits_cluster_) return;
  prepare_training();
  after_event();
}

Training::Events NodeDriver::training_events() {
  Training::Events events;
  events.on_ready = [this](Training::Ready ready) { on_training_ready(std::move(ready)); };
  events.on_waiting_for_data = [this](const Error& what) {
    // Nobody else can have the model yet, so nothing is lost by ending, and whoever founds a
    // cluster looks on.
    if (model_at_start_ && !goes_on_) return loop_.post([this, what] { on_training_failed(what); });
    node_->on_waiting_for_data(what.text, begin_event());
    after_event();
  };
  events.on_snapshot = [this](Snapshot snapshot) {
    node_->on_snapshot(std::move(snapshot), begin_event());
    after_event();
  };
  events.on_trainer = [this](bool present, std::string what) {
    node_->on_trainer(present, std::move(what), begin_event());
    after_event();
  };
  events.on_event = [](const std::string& words) { log_line(Level::info, words); };
  events.on_evaluation = [this](const EvaluationView& e) {
    log_line(Level::info,
             "event=evaluation step=" + std::to_string(e.step) +
                 " cluster_samples=" + std::to_string(e.cluster_samples) +
                 (e.accuracy ? " accuracy=" + six_digits(*e.accuracy) : "") +
                 (e.top5_accuracy ? " top5_accuracy=" + six_digits(*e.top5_accuracy) : "") +
                 (e.perplexity ? " perplexity=" + six_digits(*e.perplexity) : "") +
                 " loss=" + six_digits(e.loss));
    record_history(e);
    node_->describe(device(), e.accuracy, begin_event());
    after_event();
  };
  events.on_no_progress = [this](const std::string& why) {
    node_->end_early(why, begin_event());
    after_event();
  };
  events.on_restored = [this](std::vector<float> model) {
    node_->on_restored(std::move(model), begin_event());
    after_event();
  };
  events.on_checkpoint = [](const std::string& which, const CheckpointView& written) {
    log_line(Level::info, "event=checkpoint which=" + which +
                              " step=" + std::to_string(written.step) +
                              " bytes=" + std::to_string(written.bytes));
  };
  events.on_warning = [this](const std::string& text) { warn(text); };
  events.on_failure = [this](const Error& error) { on_training_failed(error); };
  return events;
}

void NodeDriver::on_training_ready(Training::Ready ready) {
  const Instant now = begin_event();
  const bool has_model = has_model_ = ready.restored || model_at_start_;
  if (!has_model && nobody_to_ask_ && ready.unreadable)
    return on_training_failed(
        Error{"io-error", ready.unreadable->text +
                              "; no other member is known to have the model: look for the disk's "
                              "errors in the system's log, then start again"});
  if (!has_model && nobody_to_ask_)
    return on_training_failed(
        Error{"no-checkpoint",
              store_.checkpoint_path("current").string() +
                  ": there is no whole checkpoint, and no other member is known to have the model; "
                  "put one back from a backup, or begin anew with another --state-dir"});
  if (model_at_start_ && !ready.restored && job_->starts_from_file && job_->start_from.empty())
    return on_training_failed(
        Error{"no-weights", "job '" + job_->name +
                                "' starts from weights in a file, and only its job file says "
                                "where; start once more with --job"});
  log_line(Level::info, "event=model-ready floats=" + std::to_string(ready.schema.floats()) +
                            " restored=" + (ready.restored ? "yes" : "no") +
                            " step=" + std::to_string(ready.step) +
                            " own_samples=" + std::to_string(ready.own_samples));
  // A node that trains alone has no neighbour's model to wait for.
  training_->begin(has_model || !config_.exchange.enabled);
  node_->on_model_ready(std::move(ready.schema), std::move(ready.buffers), has_model,
                        ready.own_samples, ready.step, now);
  node_->describe(device(), std::nullopt, now);
  after_event();
}

void NodeDriver::on_training_failed(const Error& error) {
  log_line(Level::error,
           "event=training-failed code=" + error.code + " reason=" + log_quoted(error.text));
  failure_ = error;
  stop("training failed");
}

// ---- the loop of core/node.h
// ---------------------------------------------------------------------

Instant NodeDriver::begin_event() { return event_began_ = EventLoop::now(); }

void NodeDriver::after_event() {
  carry_out_effects();
  look_at_founding();
  // A node that stops does nothing more when its deadline is due, and would be due for ever.
  if (!stopping_) node_timer_.arm_at(node_->next_deadline());
  log_.event_took(EventLoop::now() - event_began_);
  if (!node_->has_work() || work_posted_) return;
  work_posted_ = true;
  loop_.post([this] {
    work_posted_ = false;
    node_->work(begin_event());
    after_event();
  });
}

// In the order in which they come. Nothing that an effect starts calls back before it returns, so
// no event and no effects of its own come between two of these; but a job that has come is told to
// the node again, which brings more.
void NodeDriver::carry_out_effects() {
  GOSSIPD_ASSERT(!std::exchange(carrying_out_, true));
  for (std::vector<Effect> effects = node_->take_effects(); !effects.empty();
       effects = node_->take_effects())
    for (Effect& effect : effects) std::visit([this](auto& e) { carry_out(e); }, effect);
  carrying_out_ = false;
}

void NodeDriver::carry_out(DialEffect& effect) { transport_->dial(effect.endpoint); }

void NodeDriver::carry_out(SendEffect& effect) {
  // Not sent means that the session is closing: the node hears of it by on_session_closed.
  (void)transport_->send(effect.session, effect.lane, std::move(effect.message));
}

void NodeDriver::carry_out(CloseEffect& effect) {
  sessions_.erase(effect.session);  // the node wants to hear no more of it
  transport_->close(effect.session, Error{"closed-by-us", effect.reason});
}

// The disk writer keeps the order of asking, so the document is on disk before a state that names
// the job.
void NodeDriver::carry_out(JobEffect& effect) {
  save_job(effect.document);
  const Result<Job> job = Job::parse(effect.document, "the cluster's job");
  job_ = KnownJob{.document = effect.document,
                  .hash = effect.hash,
                  .budget_samples = job ? job->budget_samples : 0,
                  .name = job ? job->name : std::string(),
                  .file = job ? job->model.content : JobFile{},
                  .file_from = "",
                  .starts_from_file = job && job->start_content.bytes > 0,
                  .start_from = "",
                  .is_external = job && job->model.kind == ModelSpec::Kind::external};
  // What the offer said beside the text, and its hash does not cover, does not count.
  if (job) node_->on_job(effect.document, effect.hash, job_->budget_samples, EventLoop::now());
  prepare_training();
}

void NodeDriver::carry_out(BudgetEffect& effect) {
  training_->set_budget(effect.samples, effect.goes_on);
}

// Who begins to step knows first which part of a shared set is its own.
void NodeDriver::carry_out(UpdateEffect& effect) {
  const bool stepped = std::exchange(trainer_steps_, effect.update.training);
  if (trainer_steps_ && !stepped) divide_data();
  training_->give(std::move(effect.update));
}
void NodeDriver::carry_out(RequestSnapshotEffect&) { training_->recall(); }
void NodeDriver::carry_out(ProgressEffect& effect) {
  training_->set_others_samples(effect.others_samples);
}
void NodeDriver::carry_out(RestoreEffect&) { training_->read_back_model(); }

void NodeDriver::carry_out(RestartEffect&) {
  restart_wanted_ = true;
  const char* const why = next_job_ == JobHash{} ? "starting again under another id"
                                                 : "starting again with the next job";
  if (next_job_ != JobHash{}) answer_job_start(next_job_);
  loop_.post([this, why] {
    if (!stopping_) stop(why);
  });
}

void NodeDriver::carry_out(CheckpointEffect& effect) {
  if (effect.final_model)
    training_->finish();
  else
    training_->write_checkpoint("current", nullptr);
}

void NodeDriver::carry_out(LogEffect& effect) { log_line(effect.level, effect.text); }

// ---- peers
// ---------------------------------------------------------------------------------------

void NodeDriver::on_session_open(SessionId session, const SessionInfo& info) {
  const Endpoint address = info.outbound ? info.dialled : info.remote;
  const Instant now = begin_event();
  sessions_[session] = OpenSession{address, info.outbound, now};
  node_->on_session_open(session, info.outbound, address, now);
  after_event();
}

void NodeDriver::on_session_closed(SessionId session, const Error& reason) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return;
  // What no gossipd sends: a broken one, or somebody else who got this far.
  if (reason.code.starts_with("frame-"))
    log_line(Level::warning, "event=session-broken peer=" + found->second.address.host +
                                 " code=" + reason.code + " reason=" + log_quoted(reason.text));
  sessions_.erase(found);
  node_->on_session_closed(session, reason.text, begin_event());
  after_event();
}

void NodeDriver::on_dial_failed(const Endpoint& dialled, const Error& reason) {
  node_->on_dial_failed(dialled, reason.text, begin_event(), is_own_shortage(reason));
  after_event();
}

void NodeDriver::on_message(SessionId session, Lane lane, std::span<const std::byte> message) {
  if (!sessions_.contains(session)) return;
  node_->on_message(session, lane, message, begin_event());
  after_event();
}

void NodeDriver::on_bytes(SessionId session) {
  if (sessions_.contains(session)) node_->on_bytes(session, EventLoop::now());
}

void NodeDriver::on_bulk_sent(SessionId session, std::size_t bytes) {
  if (!sessions_.contains(session)) return;
  node_->on_bulk_sent(session, bytes, begin_event());
  after_event();
}

// For example a node with another key: the other side sees the same reason from its dial.
void NodeDriver::on_rejected_inbound(const Endpoint& remote, const Error& reason) {
  log_.turned_away(remote.host, reason, EventLoop::now());
}

// ---- every second
// ---------------------------------------------------------------------------------------------

void NodeDriver::record_history(std::optional<Figures> evaluation, bool last) {
  const Instant now = EventLoop::now();
  log_.record(node_->summary(now), evaluation, wire(), now, last);
}

void NodeDriver::on_second() {
  second_timer_.arm_after(std::chrono::seconds(1));
  const NodeSummary known = node();
  training_->set_remembered(known.remembered_samples, known.remembered_step);
  log_left_out(EventLoop::now());
  record_history(std::nullopt);
  divide_data();
  tell_live();
  log_progress();
  look_at_disk();
  look_at_unsaved_job();
  look_at_descriptors();
  look_at_memory();
  look_at_certificates();
  look_at_life();
  look_at_next_job();
}

void NodeDriver::divide_data() {
  if (!training_->divides_data() || stopping_) return;
  training_->divide(node_->who_divides());
  const NodeSummary now = node_->summary(EventLoop::now());
  const std::size_t itself = now.phase == Phase::left ? 1 : 0;  // alive or not, it is there
  training_->set_members(now.members_by_state[raw(MemberState::alive)] + itself);
}

}  // namespace gossipd
