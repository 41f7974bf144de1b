// What is said between the daemon and its trainer, and when. The model's half is in
// external_engine.cpp.
#include <poll.h>

#include <algorithm>
#include <cmath>

#include "core/base/printable.h"
#include "core/codec/kernels.h"
#include "models/external/external_engine.h"

namespace gossipd {

namespace {

using attach::FromDaemon;
using attach::Go;

constexpr auto hold_limit = std::chrono::milliseconds(500);
constexpr auto look_interval = std::chrono::seconds(1);
constexpr double silent_after_s = 15;  // our Python package looks every 5 s at least
constexpr double silent_after_steps = 8;
constexpr double done_limit_s = 10;
constexpr double floats_per_s_min = 20e6;  // of adding and copying
constexpr std::uint32_t state_flags = Go::paused | Go::finished | Go::settled;

std::chrono::steady_clock::duration in_seconds(double seconds) {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(seconds));
}

std::uint32_t flags_of(const OutsideSteps::Order& order) {
  if (order.finished) return Go::finished | (order.settled ? Go::settled : 0u);
  return order.training ? 0u : Go::paused;
}

double progress_of(const OutsideSteps::Order& order) {
  if (order.budget == 0) return 0;
  return std::min(1.0,
                  static_cast<double>(order.cluster_samples) / static_cast<double>(order.budget));
}

}  // namespace

ExternalEngine::News ExternalEngine::meet(const Order& given) {
  News news;
  Order order = given;
  if (account_is_from_disk_) {  // an older checkpoint may know of fewer
    order.step = std::max(order.step, account_->node_began.steps);
    order.samples = std::max(order.samples, account_->node_began.samples);
  }
  count_remembered(order);
  if (order.step > given.step || order.samples > given.samples)
    news.step = order.step, news.samples = order.samples;
  if (!session_) let_in(news, order);
  if (session_ && session_->to_answer) answer(order);
  if (copy_to_.empty() || is_at_work()) wait(order);
  read_packets(news, order);
  look_at_limits();
  if (!copy_to_.empty() && !is_at_work()) copy_from_mirror();
  news.present = is_at_work();
  news.events = std::exchange(events_, {});
  return news;
}

// ---- who trains ----

void ExternalEngine::let_in(News& news, const Order& order) {
  std::optional<TrainerSocket::Guest> guest = socket_.take();
  if (!guest) return;
  if (memory_is_known_) {
    Result<std::unique_ptr<SharedModel>> fresh = SharedModel::create(schema_);
    if (!fresh) return refuse_guest(*guest, fresh.error());
    std::ranges::copy(base(), (*fresh)->snapshot(0).begin());
    memory_ = std::move(*fresh);
    slot_ = 0;
  }
  const attach::RunToken run = guest->attach.run;
  const bool known = account_ && account_->run == run;
  const bool goes_on = known && account_is_from_disk_;
  const attach::Attached words{.memory_bytes = memory_->bytes(),
                               .schema = schema_.hash(),
                               .node_samples = order.samples,
                               .budget = order.budget,
                               .node = options_.node,
                               .known_run = goes_on};
  if (guest->socket.send(attach::encode(FromDaemon(words)), memory_->descriptor()) !=
      PacketSocket::Sent::yes)
    return socket_.vacate();
  memory_is_known_ = true;
  account_is_from_disk_ = false;
  events_.push_back("event=trainer-attached pid=" + std::to_string(guest->peer.id) +
                    " run=" + (goes_on ? "known" : "new"));
  session_.emplace(Session{.guest = std::move(*guest)});
  session_->heard_at = WallClock::now();
  has_trainer_.store(true);
  if (goes_on || (first_model_wanted_ && !has_model_))
    copy_wanted_ = true;
  else if (has_model_)
    replace_by_mirror();
  // It may die before it says a word more, and what it told a daemon before may not have been read.
  if (!known) return;
  if (const auto error = count(session_->guest.attach.counters, news, order))
    return end_refused(*error);
  // All that it has ever told is in that, so what the node counts beyond is of runs before it.
  const attach::Counters own{.steps = *news.step, .samples = news.samples};
  const attach::Counters all{.steps = std::max(own.steps, order.step),
                             .samples = std::max(own.samples, order.samples)};
  if (shift_account(all - own)) count_from_ = all;
  news.step = all.steps;
  news.samples = all.samples;
}

// What members remember of this node was done before this process, by runs that are lost: what has
// been done since comes on top of it.
void ExternalEngine::count_remembered(Order& order) {
  const attach::Counters now{.steps = order.step, .samples = order.samples};
  if (!count_from_) count_from_ = now;
  const attach::Counters remembered{
      .steps = std::max(order.remembered_step, count_from_->steps),
      .samples = std::max(order.remembered_samples, count_from_->samples)};
  const attach::Counters lost = remembered - *count_from_;
  if (lost == attach::Counters{} || (!account_is_from_disk_ && !shift_account(lost))) return;
  count_from_ = remembered;
  order.step += lost.steps;
  order.samples += lost.samples;
}

// The present run, or the last one, began so much later.
bool ExternalEngine::shift_account(const attach::Counters& by) {
  if (!account_ || by == attach::Counters{}) return true;
  RunAccount shifted = *account_;
  shifted.node_began.steps += by.steps;
  shifted.node_began.samples += by.samples;
  return keep_or_say(shifted);
}

// On disk, and then in force.
std::optional<Error> ExternalEngine::keep(const RunAccount& account) {
  if (options_.keep)
    if (auto error = options_.keep(account)) return error;
  account_ = account;
  return std::nullopt;
}

bool ExternalEngine::keep_or_say(const RunAccount& account) {
  const std::optional<Error> error = keep(account);
  if (error) events_.push_back("event=trainer-run-not-written reason=" + log_quoted(error->text));
  return !error;
}

void ExternalEngine::refuse_guest(const TrainerSocket::Guest& guest, const Error& error) {
  (void)guest.socket.send(attach::encode(
      FromDaemon(attach::Notice{.refused = true, .code = error.code, .text = error.text})));
  events_.push_back("event=trainer-refused code=" + error.code +
                    " reason=" + log_quoted(error.text));
  socket_.vacate();
}

// A daemon that dies before its next checkpoint, and before another run has made a step, would
// know of what this run has done from the others only, who may die as well.
void ExternalEngine::keep_counters() {
  if (!account_ || !session_->counters) return;
  const RunAccount now{.run = account_->run,
                       .run_began = *session_->counters,
                       .node_began = account_->of_node(*session_->counters)};
  if (now != *account_) keep_or_say(now);
}

void ExternalEngine::end_session(const std::string& why) {
  keep_counters();
  has_trainer_.store(false);
  fold();
  socket_.vacate();
  session_.reset();  // after that, since who sees it close may attach at once
  events_.push_back("event=trainer-gone why=" + log_quoted(why));
}

// While its answer is due, or what it was told to do, a trainer is not silent.
bool ExternalEngine::is_silent() const {
  if (session_->to_answer || session_->in_flight) return false;
  const double limit = std::max(silent_after_s, silent_after_steps * session_->step_seconds);
  return WallClock::now() - session_->heard_at > in_seconds(limit);
}

void ExternalEngine::look_at_limits() {
  if (!session_ || !session_->in_flight || WallClock::now() < session_->in_flight->until) return;
  end_session("what it was told was not done in time; it may attach again");
}

// ---- to the trainer ----

// One that is told nothing new, and has done nothing new, need not ask all the time.
bool ExternalEngine::may_hold(std::uint32_t flags) const {
  return session_->idle && flags != 0 && flags == session_->told_flags &&
         pending_ != Pending::unsent && !copy_wanted_ &&
         WallClock::now() < session_->asked_at + hold_limit;
}

void ExternalEngine::answer(const Order& order) {
  const std::uint32_t flags = flags_of(order);
  if (may_hold(flags)) return;
  const Go go = make_go(order, flags);
  const PacketSocket::Sent sent = session_->guest.socket.send(attach::encode(FromDaemon(go)));
  if (sent != PacketSocket::Sent::yes)
    return end_session(sent == PacketSocket::Sent::full ? "it does not read" : "it has closed");
  session_->to_answer.reset();
  session_->answered_at = WallClock::now();
  session_->told_flags = flags & state_flags;
  if (!go.wants_done()) return;
  const double limit = done_limit_s + static_cast<double>(schema_.floats()) / floats_per_s_min;
  session_->in_flight = InFlight{.sequence = go.sequence,
                                 .updates = (go.flags & (Go::add | Go::replace)) != 0,
                                 .copies = (go.flags & Go::copy) != 0,
                                 .until = WallClock::now() + in_seconds(limit)};
  if (session_->in_flight->updates) pending_ = Pending::in_flight;
}

attach::Go ExternalEngine::make_go(const Order& order, std::uint32_t flags) {
  Go go{.sequence = ++session_->sequence,
        .answers = *session_->to_answer,
        .flags = flags,
        .progress = progress_of(order),
        .cluster_samples = order.cluster_samples,
        .budget = order.budget,
        .rate_factor = order.rate_factor,
        .trainers = static_cast<std::uint32_t>(std::max<std::size_t>(1, order.trainers.size())),
        .snapshot = 1 - slot_,
        .members = order.members,
        .node_samples = order.samples,
        .ranges = {}};
  const auto place = std::ranges::lower_bound(order.trainers, options_.node);
  if (place != order.trainers.end() && *place == options_.node)
    go.place = static_cast<std::uint32_t>(place - order.trainers.begin());
  if (copy_wanted_) go.flags |= Go::copy;
  if (pending_ != Pending::unsent) return go;
  go.flags |= pending_replaces_ ? Go::replace : Go::add;
  for (std::size_t i = 0; i < chunks_.size(); ++i) {
    if (!touched_[i]) continue;
    const attach::Range& chunk = chunks_[i];
    if (!go.ranges.empty() && go.ranges.back().first + go.ranges.back().floats == chunk.first)
      go.ranges.back().floats += chunk.floats;
    else
      go.ranges.push_back(chunk);
  }
  return go;
}

// ---- from the trainer ----

ExternalEngine::WallClock::time_point ExternalEngine::deadline() const {
  auto until = WallClock::now() + look_interval;
  if (session_ && session_->to_answer) until = std::min(until, session_->asked_at + hold_limit);
  if (session_ && session_->in_flight) until = std::min(until, session_->in_flight->until);
  return until;
}

void ExternalEngine::wait(const Order&) {
  pollfd on[3] = {{alarm_.number(), POLLIN, 0}, {-1, POLLIN, 0}, {-1, POLLIN, 0}};
  if (session_) on[1].fd = session_->guest.socket.number();
  if (session_) on[2].fd = session_->guest.peer.process.number();
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline() - WallClock::now());
  (void)::poll(on, 3, static_cast<int>(std::max<std::int64_t>(0, left.count())));
  if (on[0].revents != 0) alarm_.silence();
  // What it has sent before is still read; a child of its own may keep the connection open.
  if (session_ && on[2].revents != 0) session_->process_ended = true;
}

void ExternalEngine::read_packets(News& news, const Order& order) {
  while (session_) {
    const PacketSocket::Received received = session_->guest.socket.receive(buffer_);
    if (received.kind == PacketSocket::Received::Kind::closed)
      return end_session("it has closed the connection");
    if (received.kind == PacketSocket::Received::Kind::nothing) {
      if (session_->process_ended) end_session("its process has ended");
      return;
    }
    session_->heard_at = WallClock::now();
    const Result<attach::FromTrainer> packet = attach::decode_from_trainer(received.packet);
    const std::optional<Error> refused =
        packet ? take_in(*packet, news, order) : std::optional<Error>(packet.error());
    if (refused) end_refused(*refused);
  }
}

void ExternalEngine::end_refused(const Error& error) {
  (void)session_->guest.socket.send(attach::encode(
      FromDaemon(attach::Notice{.refused = true, .code = error.code, .text = error.text})));
  end_session(error.text);
}

std::optional<Error> ExternalEngine::take_in(const attach::FromTrainer& packet, News& news,
                                             const Order& order) {
  if (const auto* step = std::get_if<attach::StepDone>(&packet)) return on_step(*step, news, order);
  if (const auto* done = std::get_if<attach::Done>(&packet)) return on_done(*done, news, order);
  if (const auto* report = std::get_if<attach::Report>(&packet)) {
    Reported& out = news.report.emplace();
    out.loss = report->loss;
    out.accuracy = report->accuracy;
    out.seconds = report->seconds;
    out.step = account_ ? account_->of_node({.steps = report->step, .samples = 0}).steps : 0;
    return std::nullopt;
  }
  if (std::holds_alternative<attach::Detach>(packet)) {
    end_session("it has detached");
    return std::nullopt;
  }
  return Error{"bad-packet", "ATTACH and SEGMENTS are for a new connection"};
}

std::optional<Error> ExternalEngine::on_step(const attach::StepDone& step, News& news,
                                             const Order& order) {
  if (session_->in_flight || session_->to_answer)
    return Error{"bad-packet", "a STEP came before the GO to the one before it, or its DONE"};
  if (step.sequence != session_->last_step + 1)
    return Error{"bad-packet", "STEP " + std::to_string(step.sequence) + " came after STEP " +
                                   std::to_string(session_->last_step)};
  session_->idle = session_->counters == step.counters;
  const Step before = session_->counters.value_or(step.counters).steps;
  if (auto error = count(step.counters, news, order)) return error;
  session_->last_step = step.sequence;
  session_->to_answer = step.sequence;
  session_->step_seconds =
      step.seconds > 0 ? step.seconds : measured_step(step.counters.steps - before);
  session_->asked_at = WallClock::now();
  news.loss = step.loss;
  news.learning_rate = step.learning_rate;
  news.step_seconds = session_->step_seconds;
  news.finite = step.finite;
  return std::nullopt;
}

// Of a trainer that does not say how long its steps take. A node without a speed could judge no
// other's claims, so these would count for nothing.
double ExternalEngine::measured_step(Step more) const {
  if (more == 0 || session_->answered_at == WallClock::time_point{}) return session_->step_seconds;
  const std::chrono::duration<double> since = WallClock::now() - session_->answered_at;
  return since.count() / static_cast<double>(more);
}

std::optional<Error> ExternalEngine::on_done(const attach::Done& done, News& news,
                                             const Order& order) {
  if (!session_->in_flight || done.sequence != session_->in_flight->sequence)
    return Error{"bad-packet",
                 "DONE " + std::to_string(done.sequence) + " is of no GO that something is due of"};
  if (auto error = count(done.counters, news, order)) return error;
  const InFlight did = *std::exchange(session_->in_flight, std::nullopt);
  if (did.updates) pending_ = Pending::applied;
  if (!did.copies) return std::nullopt;
  if (auto error = why_not_first(memory_->snapshot(1 - slot_))) return error;
  slot_ = 1 - slot_;
  has_model_ = true;
  pending_ = Pending::none;
  pending_replaces_ = false;
  touched_.assign(touched_.size(), false);
  copy_wanted_ = false;
  if (!copy_to_.empty()) copy_from_mirror();
  return std::nullopt;
}

// No neighbour could repair a cluster that begins with such values.
std::optional<Error> ExternalEngine::why_not_first(std::span<const float> model) const {
  if (!first_model_wanted_ || has_model_) return std::nullopt;
  for (const Segment& segment : schema_.segments())
    if (segment.kind != SegmentKind::local &&
        !kernels().all_finite(model.subspan(segment.offset, segment.size)))
      return Error{
          "not-finite",
          "the cluster would begin with this trainer's model, but NaN or infinity is in '" +
              segment.name + "'; give it finite values, and attach again"};
  return std::nullopt;
}

std::optional<Error> ExternalEngine::count(const attach::Counters& now, News& news,
                                           const Order& order) {
  const attach::RunToken run = session_->guest.attach.run;
  if (!account_ || account_->run != run) {
    const RunAccount fresh{.run = run,
                           .run_began = now,
                           .node_began = {.steps = order.step, .samples = order.samples}};
    if (auto error = keep(fresh)) return error;
  }
  const attach::Counters before = session_->counters.value_or(account_->run_began);
  if (now.steps < before.steps || now.samples < before.samples)
    return Error{"bad-packet", "steps or samples of the run have become fewer"};
  session_->counters = now;
  const attach::Counters node = account_->of_node(now);
  news.step = node.steps;
  news.samples = node.samples;
  return std::nullopt;
}

}  // namespace gossipd
