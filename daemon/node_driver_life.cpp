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

// What `systemctl status` shows.
std::string words_of(const NodeSummary& node) {
  std::string words = to_string(node.phase);
  if (!node.waiting_for.empty()) return words + ", waiting for " + node.waiting_for;
  if (node.budget_samples > 0)
    words += ", " + std::to_string(node.cluster_samples) + " of " +
             std::to_string(node.budget_samples) + " samples";
  return words + ", " + std::to_string(node.links_open) + " links";
}

}  // namespace

// ---- founding -----------------------------------------------------------------------------------

bool has_founded_untrained(const NodeState& founded) {
  return founded.founder && std::ranges::all_of(founded.members, [](const MemberRecord& member) {
           return member.samples == 0;
         });
}

void NodeDriver::look_at_founding() {
  if (!awaits_cluster_ || node_->cluster() == ClusterId{}) return;
  awaits_cluster_ = false;
  model_at_start_ = node_->cluster() == founds_;
  prepare_training();
}

// ---- every second -------------------------------------------------------------------------------

void NodeDriver::look_at_life() {
  look_at_end();
  if (--seconds_to_history_ < 0) save_history();
  if (!stopping_) service_.status(words_of(node()));
}

// ---- the history --------------------------------------------------------------------------------

void NodeDriver::restore_history() {
  StoredHistory stored = load_history(store_.directory());
  if (!stored.warning.empty()) warn(stored.warning);
  if (stored.interval_s > 0)
    log_.restore_history(stored.interval_s, std::move(stored.points), stored.whole);
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
  const FinishedMark mark{node.job, node.budget_samples};
  disk_.write(
      "finished.json", [this, mark] { return write_finished_mark(store_.directory(), mark); },
      [this](const std::optional<Error>& error) {
        if (error) warn(error->text + "; a restart finds out anew that the job is finished");
      });
  stop("the job is finished");
}

}  // namespace gossipd
