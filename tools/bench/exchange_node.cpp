#include "tools/bench/exchange_node.h"

#include <ctime>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <future>
#include <stdexcept>

#include "core/base/random.h"
#include "core/codec/kernels.h"
#include "models/devices/worker_pool.h"

namespace gossipd::bench {
namespace {

constexpr std::uint64_t budget = std::uint64_t{1} << 50;  // samples: never spent
constexpr std::uint32_t batch = 32;
constexpr double learning_rate = 0.1;
constexpr float weight_scale = 0.1f;
constexpr float step_scale = 0.002f;  // 2 % of the weights: every block is worth saying
constexpr std::size_t moves_floats = std::size_t{1} << 16;
const char* const job_document = "name = \"bench\"\n";
constexpr JobHash job_hash{0xbe7c};
constexpr ClusterId cluster_id{0xbe7c};

float bell(Random& random) {
  return static_cast<float>(random.uniform() + random.uniform() + random.uniform() - 1.5) * 2.0f;
}

// A WorkerPool that knows how long its own threads have worked; the caller has a clock of its own.
class MeasuredWorkers final : public Workers {
 public:
  explicit MeasuredWorkers(std::size_t threads) : pool_(threads) {}
  [[nodiscard]] std::size_t threads() const override { return pool_.threads(); }
  void run(std::size_t count, const std::function<void(std::size_t)>& work) override {
    const auto caller = std::this_thread::get_id();
    pool_.run(count, [&](std::size_t piece) {
      if (std::this_thread::get_id() == caller) return work(piece);
      const double begin = thread_cpu_seconds();
      work(piece);
      nanoseconds_ += static_cast<std::int64_t>(1e9 * (thread_cpu_seconds() - begin));
    });
  }
  [[nodiscard]] double cpu_seconds() const { return 1e-9 * static_cast<double>(nanoseconds_); }

 private:
  std::atomic<std::int64_t> nanoseconds_{0};
  WorkerPool pool_;  // last: its threads use all of this
};

}  // namespace

const char* to_string(Event event) {
  constexpr const char* names[] = {"time",      "work",    "message",  "snapshot",
                                   "bulk sent", "session", "transport"};
  return names[raw(event)];
}

// ---- the trainer --------------------------------------------------------------------------------

SyntheticTrainer::SyntheticTrainer(std::size_t floats, const TrainerOptions& options,
                                   std::function<void(Snapshot)> on_snapshot)
    : options_(options), on_snapshot_(std::move(on_snapshot)), model_(floats) {
  Random weights(1);  // all nodes begin with one model
  std::vector<float> pattern(moves_floats + 1);
  for (float& x : pattern) x = weight_scale * bell(weights);
  for (std::size_t i = 0; i < floats; ++i) model_[i] = pattern[i % pattern.size()];
  Random moves(options.seed);
  moves_.resize(2 * moves_floats);
  for (float& x : moves_) x = step_scale * bell(moves);
  thread_ = std::thread([this] { run(); });
}

SyntheticTrainer::~SyntheticTrainer() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void SyntheticTrainer::give(Update update) {
  const std::lock_guard lock(mutex_);
  given_ = std::move(update);
  recalled_ = false;
  changed_.notify_all();
}

void SyntheticTrainer::recall() {
  const std::lock_guard lock(mutex_);
  recalled_ = true;
  changed_.notify_all();
}

Step SyntheticTrainer::steps() const {
  const std::lock_guard lock(mutex_);
  return steps_;
}

bool SyntheticTrainer::snapshot_is_due() const {
  return recalled_ || !training_ || (options_.pace == Pace::free && steps_ >= snapshot_step_);
}

void SyntheticTrainer::run() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      const auto may_go_on = [this] {
        if (stopping_ || given_) return true;
        if (has_buffer_ && snapshot_is_due()) return true;
        return training_ && options_.pace == Pace::free;
      };
      changed_.wait(lock, may_go_on);
      if (stopping_) return;
      if (!given_ && has_buffer_ && snapshot_is_due()) {
        lock.unlock();
        give_snapshot();
        continue;
      }
    }
    take_update();
    if (training_) step();
  }
}

// Adds what the core has mixed, at the step's boundary.
void SyntheticTrainer::take_update() {
  std::optional<Update> update;
  {
    const std::lock_guard lock(mutex_);
    update = std::exchange(given_, std::nullopt);
    if (!update) return;
    training_ = update->training;
  }
  if (update->replace)
    std::ranges::copy(update->values, model_.begin());
  else
    (void)kernels().axpy(model_, update->values, 1.0f);
  buffer_ = std::move(update->values);
  has_buffer_ = true;
  snapshot_step_ = update->snapshot_step;
}

void SyntheticTrainer::step() {
  const auto begin = std::chrono::steady_clock::now();
  const std::size_t place = (steps() * 4099) % moves_floats;
  for (std::size_t first = 0; first < model_.size(); first += moves_floats) {
    const std::size_t size = std::min(moves_floats, model_.size() - first);
    (void)kernels().axpy(std::span(model_).subspan(first, size),
                         std::span(moves_).subspan(place, size), 1.0f);
  }
  const auto end = begin + std::chrono::duration<double>(options_.step_seconds);
  if (options_.pace == Pace::free && options_.busy) {
    while (std::chrono::steady_clock::now() < end) {
    }
  } else if (options_.pace == Pace::free) {
    std::this_thread::sleep_until(end);
  }
  const std::lock_guard lock(mutex_);
  ++steps_;
}

void SyntheticTrainer::give_snapshot() {
  Snapshot snapshot;
  std::ranges::copy(model_, buffer_.begin());
  snapshot.model = std::exchange(buffer_, {});
  has_buffer_ = false;
  {
    const std::lock_guard lock(mutex_);
    recalled_ = false;
    snapshot.step = steps_;
  }
  snapshot.samples = batch * snapshot.step;
  snapshot.loss = 1;
  snapshot.learning_rate = snapshot.learning_rate_peak = learning_rate;
  snapshot.step_seconds = std::max(options_.step_seconds, 1e-4);
  snapshot.batch = batch;
  on_snapshot_(std::move(snapshot));
}

// ---- the node -----------------------------------------------------------------------------------

class ExchangeNode::Driver final : public PeerHandler {
 public:
  explicit Driver(const ExchangeNodeOptions& options)
      : options_(options), transport_(loop_, *this, options.keys), timer_(loop_, [this] {
          event(Event::time, [this](Instant now) { node_->on_time(now); });
        }) {
    const Result<Endpoint> bound = transport_.listen({"127.0.0.1", 0});
    if (!bound) throw std::runtime_error(bound.error().text);
    address_ = *bound;
    thread_ = std::thread([this] {
      start();
      loop_.run();
    });
  }

  ~Driver() override {
    loop_.post([this] {
      stopped_ = true;
      trainer_.reset();
      transport_.stop([this] { loop_.stop(); });
    });
    thread_.join();
  }

  [[nodiscard]] const Endpoint& address() const { return address_; }

  // On the loop's thread, when it comes to it.
  template <typename F>
  auto ask(F f) {
    std::promise<decltype(f())> answer;
    auto future = answer.get_future();
    loop_.post([&] { answer.set_value(f()); });
    return future.get();
  }

  NodeFigures figures() {
    return ask([this] {
      NodeFigures figures = figures_;
      const LinkCounts now = counts();
      figures.protocol_cpu_seconds = thread_cpu_seconds() - cpu_at_reset_;
      figures.worker_cpu_seconds = worker_cpu_seconds() - worker_cpu_at_reset_;
      figures.steps = trainer_->steps() - steps_at_reset_;
      figures.turns = now.spoken + now.heard - at_reset_.spoken - at_reset_.heard;
      figures.bytes_sent = now.bytes_sent - at_reset_.bytes_sent;
      figures.linked = now.open;
      return figures;
    });
  }

  void stop() {
    (void)ask([this] { return stopped_ = true; });
  }

  void reset_figures() {
    (void)ask([this] {
      figures_ = {};
      at_reset_ = counts();
      steps_at_reset_ = trainer_->steps();
      last_event_cpu_ = cpu_at_reset_ = thread_cpu_seconds();
      worker_cpu_at_reset_ = worker_cpu_seconds();
      return true;
    });
  }

  // PeerHandler
  void on_session_open(SessionId session, const SessionInfo& info) override {
    event(Event::session, [&](Instant now) {
      node_->on_session_open(session, info.outbound, info.outbound ? info.dialled : info.remote,
                             now);
    });
  }
  void on_session_closed(SessionId session, const Error& reason) override {
    event(Event::session,
          [&](Instant now) { node_->on_session_closed(session, reason.text, now); });
  }
  void on_dial_failed(const Endpoint& dialled, const Error& reason) override {
    event(Event::session, [&](Instant now) { node_->on_dial_failed(dialled, reason.text, now); });
  }
  void on_message(SessionId session, Lane lane, std::span<const std::byte> message) override {
    event(Event::message, [&](Instant now) { node_->on_message(session, lane, message, now); });
  }
  void on_bytes(SessionId session) override {
    if (!stopped_) node_->on_bytes(session, EventLoop::now());
  }
  void on_bulk_sent(SessionId session, std::size_t bytes) override {
    event(Event::bulk_sent, [&](Instant now) { node_->on_bulk_sent(session, bytes, now); });
  }
  void on_rejected_inbound(const Endpoint&, const Error&) override {}

 private:
  struct LinkCounts {
    std::uint64_t spoken = 0, heard = 0, bytes_sent = 0;
    bool open = false;
  };

  void start() {
    NodeConfig config;
    config.name = "bench" + std::to_string(raw(options_.id));
    config.advertise = address_;
    if (options_.seed) config.seeds = {*options_.seed};
    config.random_seed = raw(options_.id);
    config.exchange = options_.exchange;
    if (options_.threads > 1) workers_ = std::make_unique<MeasuredWorkers>(options_.threads);
    config.workers = workers_.get();
    NodeState state;
    state.id = options_.id;
    state.cluster = cluster_id;
    const Instant now = EventLoop::now();
    node_.emplace(std::move(config), std::move(state), now);
    trainer_ = std::make_unique<SyntheticTrainer>(
        options_.schema.floats(), options_.trainer, [this](Snapshot snapshot) {
          const auto shared = std::make_shared<Snapshot>(std::move(snapshot));
          loop_.post([this, shared] {
            begin_measuring_exchange();
            event(Event::snapshot, [&](Instant at) { node_->on_snapshot(std::move(*shared), at); });
          });
        });
    node_->on_job(job_document, job_hash, budget, now);
    node_->on_model_ready(options_.schema, make_round_buffers(options_.schema.floats()), true, 0, 0,
                          now);
    last_event_cpu_ = cpu_at_reset_ = thread_cpu_seconds();
    after_event();
  }

  // One event of the loop of core/node.h, and how long it took.
  template <typename F>
  void event(Event kind, F f) {
    if (stopped_) return;
    const double cpu = thread_cpu_seconds();
    Stall& between = figures_.stalls[raw(Event::transport)];
    between.cpu_seconds = std::max(between.cpu_seconds, cpu - last_event_cpu_);
    const Instant begin = EventLoop::now();
    f(begin);
    after_event();
    last_event_cpu_ = thread_cpu_seconds();
    Stall& stall = figures_.stalls[raw(kind)];
    stall.wall_seconds = std::max(stall.wall_seconds, seconds(EventLoop::now() - begin));
    stall.cpu_seconds = std::max(stall.cpu_seconds, last_event_cpu_ - cpu);
  }

  [[nodiscard]] double worker_cpu_seconds() const { return workers_ ? workers_->cpu_seconds() : 0; }

  void after_event() {
    for (std::vector<Effect> effects = node_->take_effects(); !effects.empty();
         effects = node_->take_effects())
      for (Effect& effect : effects) std::visit([this](auto& e) { carry_out(e); }, effect);
    timer_.arm_at(node_->next_deadline());
    if (!node_->has_work() || work_posted_) return;
    work_posted_ = true;
    loop_.post([this] {
      work_posted_ = false;
      event(Event::work, [this](Instant now) { node_->work(now); });
    });
  }

  void carry_out(DialEffect& e) { transport_.dial(e.endpoint); }
  void carry_out(SendEffect& e) { (void)transport_.send(e.session, e.lane, std::move(e.message)); }
  void carry_out(CloseEffect& e) { transport_.close(e.session, Error{"closed-by-us", e.reason}); }
  void carry_out(PersistEffect& e) {  // as a disk that is never slow
    const auto state = std::make_shared<NodeState>(std::move(e.state));
    loop_.post([this, state] {
      event(Event::session, [&](Instant now) { node_->on_persisted(*state, now); });
    });
  }
  void carry_out(UpdateEffect& e) {
    trainer_->give(std::move(e.update));
    finish_measuring_exchange();
  }
  void carry_out(RequestSnapshotEffect&) { trainer_->recall(); }
  void carry_out(JobEffect&) {}
  void carry_out(FileReadEffect&) {}
  void carry_out(FilePieceEffect&) {}
  void carry_out(BudgetEffect&) {}
  void carry_out(ProgressEffect&) {}
  void carry_out(CheckpointEffect&) {}
  void carry_out(RestoreEffect&) {}
  void carry_out(RestartEffect&) {}
  void carry_out(NextJobEffect&) {}
  void carry_out(LogEffect& e) {
    if (e.level < Level::warning) return;
    std::fprintf(stderr, "gossip-bench exchange: node %llu: %s\n",
                 static_cast<unsigned long long>(raw(options_.id)), e.text.c_str());
  }

  [[nodiscard]] LinkCounts counts() const {
    LinkCounts sum;
    for (const LinkView& link : node_->links(EventLoop::now())) {
      sum.spoken += link.counters.turns_spoken;
      sum.heard += link.counters.turns_heard;
      sum.bytes_sent += link.counters.bytes_sent;
      sum.open = sum.open || link.state == "open";
    }
    return sum;
  }

  // An exchange lasts from the snapshot that opens it until this node's half is on its way to the
  // trainer. Of two nodes that have a model the one that founded has the first turn, so it opens
  // all exchanges, and the other answers.
  void begin_measuring_exchange() {
    round_began_ = EventLoop::now();
    at_snapshot_ = counts();
  }
  void finish_measuring_exchange() {
    const LinkCounts now = counts();
    if (opened_at_ && at_snapshot_.heard > heard_at_opening_) {
      figures_.exchange_seconds.push_back(seconds(EventLoop::now() - *opened_at_));
      ++figures_.exchanges;
      opened_at_.reset();
    }
    if (options_.seed) {
      // An answer whose way out was full goes on with the next snapshot.
      if (now.heard > now.spoken && options_.trainer.pace == Pace::exchange) trainer_->recall();
      return;
    }
    if (!opened_at_ && now.spoken > at_snapshot_.spoken) {
      opened_at_ = round_began_;
      heard_at_opening_ = at_snapshot_.heard;
    }
    if (!opened_at_ && options_.trainer.pace == Pace::exchange) trainer_->recall();
  }

  const ExchangeNodeOptions options_;
  EventLoop loop_;
  PeerTransport transport_;
  Timer timer_;
  Endpoint address_;
  std::unique_ptr<MeasuredWorkers> workers_;
  std::optional<Node> node_;
  std::unique_ptr<SyntheticTrainer> trainer_;
  bool work_posted_ = false;
  bool stopped_ = false;

  NodeFigures figures_;
  LinkCounts at_reset_, at_snapshot_;
  Step steps_at_reset_ = 0;
  double cpu_at_reset_ = 0, last_event_cpu_ = 0, worker_cpu_at_reset_ = 0;
  Instant round_began_{};
  std::optional<Instant> opened_at_;
  std::uint64_t heard_at_opening_ = 0;
  std::thread thread_;  // last: it uses all of this
};

ExchangeNode::ExchangeNode(const ExchangeNodeOptions& options)
    : driver_(std::make_unique<Driver>(options)) {}
ExchangeNode::~ExchangeNode() = default;
const Endpoint& ExchangeNode::address() const { return driver_->address(); }
NodeFigures ExchangeNode::figures() { return driver_->figures(); }
void ExchangeNode::reset_figures() { driver_->reset_figures(); }
void ExchangeNode::stop() { driver_->stop(); }

}  // namespace gossipd::bench
