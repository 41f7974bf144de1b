// The driver over the life of a node: whether it founds its cluster, its history over restarts, the
// end of its job, and what the service manager is told.
#include <algorithm>

#include "core/base/printable.h"
#include "daemon/disk/finished_mark.h"
#include "daemon/log/log.h"
#include "daemon/node_driver.h"
#include "daemon/rest/history_file.h"

namespace gossipd {

namespace {

constexpr int history_every_s = 10;
constexpr Duration stop_limit = std::chrono::seconds(20);
constexpr Duration stop_limit_stuck = std::chrono::seconds(5);
constexpr Duration stood_still_from = std::chrono::seconds(2);  // after the timer was due
constexpr const char* part_peers = "connections to other nodes";
constexpr const char* part_trainer = "the trainer";
constexpr const char* part_disk = "the disk";
constexpr const char* part_trial = "the trial of the next job";
constexpr const char* part_rest = "REST requests under way";
constexpr const char* part_metrics = "requests of metrics under way";

// What `systemctl status` shows.
std::string words_of(const NodeSummary& node) {
  std::string words = to_string(node.phase);
  if (!node.waiting_for.empty()) return words + ", waiting for " + node.waiting_for;
  if (node.budget_samples > 0)
    words += ", " + std::to_string(node.cluster_samples) + " of " +
             std::to_string(node.budget_samples) + " samples";
  return words + ", " + std::to_string(node.links_open) + " links";
}

// The members that are gone are the ones to bring back.
std::string nobody_has_a_model(const std::vector<MemberView>& known) {
  constexpr std::size_t named_max = 4;
  std::string gone;
  std::size_t count = 0;
  for (const MemberView& member : known) {
    if (member.record.state == MemberState::alive || ++count > named_max) continue;
    gone +=
        (gone.empty() ? "" : ", ") + member.record.name + " at " + to_string(member.record.address);
  }
  if (count > named_max) gone += " and " + std::to_string(count - named_max) + " more";
  const std::string begin_anew =
      "found the cluster anew: stop all nodes, then `gossipd --job FILE` on one of them and "
      "--join on the others, each with a new --state-dir";
  if (gone.empty())
    return "no living member has a model, and none makes one, so this node would wait for ever; " +
           begin_anew;
  return "no living member has a model, and none makes one; this node waits for " + gone +
         ". Start it again with its state directory; if that is lost, " + begin_anew;
}

}  // namespace

// ---- founding -----------------------------------------------------------------------------------

void NodeDriver::look_at_founding() {
  if (!awaits_cluster_ || node_->cluster() == ClusterId{}) return;
  awaits_cluster_ = false;
  model_at_start_ = node_->cluster() == founds_;
  prepare_training();
}

// Whoever lives has no model, and nobody makes one: what would end that is not in sight, so it is
// said. A founder that died before it had one is the usual cause.
void NodeDriver::look_for_a_model() {
  const Phase phase = node_->phase();
  const bool waits = (phase == Phase::joining || phase == Phase::syncing) && !has_model_ && job_;
  if (!waits || stopping_) {
    seconds_without_model_ = 0;
    return;
  }
  const std::vector<MemberView> known = members();
  const NodeId own = node().id;
  const bool somebody_may_have_one =
      known.size() < 2 || std::ranges::any_of(known, [own](const MemberView& member) {
        return member.record.id != own && member.record.state == MemberState::alive &&
               member.record.phase != Phase::joining && member.record.phase != Phase::syncing;
      });
  if (somebody_may_have_one) seconds_without_model_ = 0;
  const auto soon = std::chrono::ceil<std::chrono::seconds>(3 * config_.membership.isolation_grace);
  if (!somebody_may_have_one && ++seconds_without_model_ == soon.count())
    warn(nobody_has_a_model(known));
}

// ---- every second -------------------------------------------------------------------------------

void NodeDriver::look_at_life() {
  look_at_end();
  look_for_a_model();
  if (--seconds_to_history_ < 0) save_history();
  if (!stopping_) service_.status(words_of(node()));
}

// ---- the history --------------------------------------------------------------------------------

std::optional<Error> NodeDriver::restore_history() {
  Result<StoredHistory> stored = load_history(store_.directory());
  if (!stored) return stored.error();
  if (!stored->warning.empty()) warn(stored->warning);
  if (stored->interval_s > 0)
    log_.restore_history(stored->interval_s, std::move(stored->points), stored->whole);
  return std::nullopt;
}

// One write at a time, so that a disk that is stuck lets nothing grow.
void NodeDriver::save_history() {
  seconds_to_history_ = history_every_s;
  if (history_writing_) return;
  const auto unsaved = std::make_shared<const History::Unsaved>(log_.history().take_unsaved());
  if (!unsaved->whole && unsaved->points.empty()) return;
  history_writing_ = true;
  disk_.write(
      "history.jsonl",
      [this, unsaved] {  // shared, since the writer copies its tasks
        return gossipd::save_history(store_.directory(), *unsaved);
      },
      [this](const std::optional<Error>& error) {
        history_writing_ = false;
        if (!error && stopping_) return save_history();  // the last point came meanwhile
        if (!error) return;
        log_.history().not_saved();
        warn(error->text);
      });
}

// ---- the end of the job -------------------------------------------------------------------------

void NodeDriver::look_at_end() {
  if (config_.until != "finished" || stopping_) return;
  const NodeSummary node = node_->summary(EventLoop::now());
  const auto end = finish_watch_.look(node.phase, node.step, training_->final_model(), members(),
                                      EventLoop::now());
  if (!end) return;
  log_line(end->failed ? Level::error : Level::info,
           std::string("event=") + (end->failed ? "job-failed" : "job-finished") +
               " why=" + log_quoted(end->why));
  if (end->failed) {
    failure_ = Error{"job-failed", end->why +
                                       "; the log says what broke it, mostly a learning "
                                       "rate that is too high"};
    return stop("the job has failed");
  }
  job_finished_ = true;
  const FinishedMark mark{node.job, node.budget_samples};
  disk_.write(
      "finished.json", [this, mark] { return write_finished_mark(store_.directory(), mark); },
      [this](const std::optional<Error>& error) {
        if (error) warn(error->text + "; a restart finds out anew that the job is finished");
      });
  stop("the job is finished");
}

// ---- stop ---------------------------------------------------------------------------------------

void NodeDriver::stop(const std::string& why) {
  if (stopping_) {
    if (!restart_wanted_) return;
    service_.stopping();
    log_line(Level::info, "event=stopping why=" + log_quoted(why) +
                              " hint=\"it does not start again by itself\"");
    return;
  }
  stopping_ = true;
  log_line(Level::info, "event=stopping why=" + log_quoted(why));
  // A write that has not ended in all that time will not: nothing is gained by waiting as long
  // again.
  const bool stuck = disk_view(EventLoop::now()).writing_s > seconds(stop_limit);
  stop_due_ = EventLoop::now() + (stuck ? stop_limit_stuck : stop_limit);
  stop_timer_.arm_at(stop_due_);
  const bool model_stands = node_->phase() == Phase::finished;
  node_->stop(EventLoop::now());
  after_event();
  record_history(std::nullopt, /*last=*/true);
  save_history();
  if (restart_wanted_)
    service_.starting_again();
  else
    service_.stopping();
  // No event brings this answer any more, and REST would wait for it.
  if (next_job_ != JobHash{})
    answer_job_start(next_job_);
  else
    answer_job_start(Error{"stopping",
                           "this node stops; gossipctl status says after a restart whether the "
                           "cluster has gone on to the job"});
  parts_running_ = {part_peers, part_trainer, part_disk, part_trial};
  if (rest_) parts_running_.insert(part_rest);
  if (metrics_) parts_running_.insert(part_metrics);
  transport_->stop([this] { stopped(part_peers); });
  training_->stop(model_stands, [this] { stopped(part_trainer); });
  wait_for_disk();
  trial_.stop([this] { stopped(part_trial); });
  if (rest_) rest_->stop([this] { stopped(part_rest); });
  if (metrics_) metrics_->stop([this] { stopped(part_metrics); });
}

void NodeDriver::wait_for_disk() {
  disk_.after_all([this] {
    if (history_writing_) return wait_for_disk();  // a second time, with the last point
    stopped(part_disk);
  });
}

void NodeDriver::stopped(const char* part) {
  parts_running_.erase(part);
  if (parts_running_.empty()) finish_stopping();
}

// A process that stood still (SIGSTOP, a machine that slept) has not waited for its parts.
void NodeDriver::on_stop_time_up() {
  const Instant now = EventLoop::now();
  if (now - stop_due_ >= stood_still_from) {
    log_line(Level::warning,
             "event=stood-still seconds=" +
                 std::to_string(static_cast<int>(seconds(now - stop_due_ + stop_limit))) +
                 " why=\"the process was stopped, or the machine slept\"");
    stop_due_ = now + stop_limit;
    return stop_timer_.arm_at(stop_due_);
  }
  if (!failure_)
    failure_ = stopped_too_late(disk_view(now), store_.directory().string(), parts_running_);
  finish_stopping();
}

// What a restart will miss.
std::optional<Error> NodeDriver::missing_on_disk() const {
  const bool model = training_ && training_->is_unwritten();
  if (!state_failed_ && !model) return std::nullopt;
  const std::string what = !model           ? "state"
                           : !state_failed_ ? "checkpoint"
                                            : "state and checkpoint";
  return Error{"io-error", store_.directory().string() + ": the last " + what +
                               " could not be written, as the warnings in the log say; a restart "
                               "goes on from what was written before"};
}

void NodeDriver::finish_stopping() {
  if (!failure_) failure_ = missing_on_disk();
  log_line(failure_ ? Level::error : Level::info,
           "event=stopped" + (failure_ ? " code=" + failure_->code : std::string()));
  flush_log();
  node_timer_.cancel();
  second_timer_.cancel();
  loop_.stop();
}

}  // namespace gossipd
