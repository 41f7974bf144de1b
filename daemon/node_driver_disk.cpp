// What the driver does with the disk: the node's state, the job's file, checkpoints on demand.
// The disk writer or the trainer writes; here is what follows when it is done, or takes too long.
// And what it looks at once a second.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <utility>

#include "daemon/log/log.h"
#include "daemon/node_driver.h"
#include "models/devices/model_files.h"

namespace gossipd {

namespace {

constexpr Duration checkpoint_answer_limit = std::chrono::seconds(15);
constexpr int job_again_after_s = 10;
constexpr Duration command_answer_limit = std::chrono::seconds(5);

std::string whole_seconds(double seconds) {
  return std::to_string(static_cast<std::int64_t>(std::lround(seconds)));
}

}  // namespace

// ---- the state ----------------------------------------------------------------------------------

// The key before a state that names its cluster: without it a restart could not go on there.
void NodeDriver::carry_out(PersistEffect& effect) {
  if (effect.state.cluster != ClusterId{}) keys_->keep();
  const auto state = std::make_shared<const NodeState>(
      std::move(effect.state));  // shared by the writer and its answer
  // Samples whose model no disk has yet: a crash now is one before the first step. With them on
  // disk a node that nobody can give a model to would have to refuse to start.
  const bool is_first = own_samples_at_start_ == 0 && training_ && !training_->is_external() &&
                        !training_->has_been_on_disk();
  disk_.write_newest(
      "node.json",
      [this, state, is_first] {
        if (!is_first || state->own_samples == 0) return store_.save_state(*state);
        NodeState begun = *state;
        begun.own_samples = 0;
        return store_.save_state(begun);
      },
      [this, state](const std::optional<Error>& error) { on_state_written(*state, error); });
}

void NodeDriver::on_state_written(const NodeState& state, const std::optional<Error>& error) {
  state_failed_ = error.has_value();
  if (error) {
    warn(error->text);
    if (state_saved_ || stopping_) return;
    failure_ = Error{"io-error", "the state cannot be written: " + error->text};
    return stop("the state cannot be written");
  }
  state_saved_ = true;
  if (stopping_) return;
  node_->on_persisted(state, begin_event());
  after_event();
}

void NodeDriver::save_job(const std::string& document) {
  disk_.write(
      "job.toml", [this, document] { return store_.save_job(document); },
      [this, document](const std::optional<Error>& error) {
        unsaved_job_.reset();
        if (!error) return;
        warn(error->text);
        unsaved_job_ = document;
        seconds_to_job_ = job_again_after_s;
      });
}

void NodeDriver::look_at_unsaved_job() {
  if (next_job_ != JobHash{} || stopping_) return;
  if (unsaved_job_ && --seconds_to_job_ <= 0) save_job(*std::exchange(unsaved_job_, std::nullopt));
}

// ---- the job's file -----------------------------------------------------------------------------

// With the job's file, which comes from where the job file says, from the last run, or from the
// cluster.
void NodeDriver::prepare_training() {
  const JobFile& file = job_->file;
  if (file.bytes == 0) return training_->prepare(*job_, model_at_start_, own_samples_at_start_);
  const auto held = std::make_shared<bool>(false);  // shared by the writer and its answer
  disk_.write(
      "the job's file",
      [files = store_.files(), file, from = job_->file_from, held]() -> std::optional<Error> {
        const Result<bool> whole = files.holds(file);
        if (!whole) return whole.error();
        *held = *whole;
        if (*held || from.empty()) return std::nullopt;
        const auto error = files.keep(from, file);
        *held = !error;
        return error;
      },
      [this, file, held](const std::optional<Error>& error) {
        if (stopping_) return;
        if (error) return on_training_failed(*error);
        if (*held) return training_->prepare(*job_, model_at_start_, own_samples_at_start_);
        node_->want_file(file, begin_event());
        after_event();
      });
}

void NodeDriver::carry_out(FileReadEffect& effect) {
  const auto read = std::make_shared<Bytes>();  // shared by the reader and its answer
  const bool ours = job_ && effect.file == job_->file;
  disk_.write(
      "the job's file, which a joiner reads",
      [files = store_.files(), asked = effect, ours, read]() -> std::optional<Error> {
        if (ours) *read = files.read(asked.file, asked.offset, asked.bytes);
        return std::nullopt;
      },
      [this, asked = effect, read](const std::optional<Error>&) {
        if (stopping_) return;
        (void)begin_event();
        node_->on_file_read(asked.session, asked.file, asked.offset, *read);
        after_event();
      });
}

// At most a job's file waits here, job_file_bytes_max.
void NodeDriver::carry_out(FilePieceEffect& effect) {
  const auto whole = std::make_shared<Result<bool>>(false);  // shared by the writer and its answer
  const auto piece = std::make_shared<const FilePieceEffect>(std::move(effect));
  disk_.write(
      "the job's file",
      [files = store_.files(), piece, whole]() -> std::optional<Error> {
        *whole = files.add_piece(piece->file, piece->offset, piece->bytes);
        return *whole ? std::nullopt : std::optional<Error>(whole->error());
      },
      [this, piece, whole](const std::optional<Error>&) {
        if (!stopping_) on_piece_written(piece->file, *whole);
      });
}

void NodeDriver::on_piece_written(const JobFile& file, const Result<bool>& whole) {
  if (whole && *whole) return training_->prepare(*job_, model_at_start_, own_samples_at_start_);
  if (whole) return;
  if (whole.error().code != "corrupt-file") return on_training_failed(whole.error());
  warn(whole.error().text);
  node_->want_file(file, begin_event());
  after_event();
}

// ---- once a second ------------------------------------------------------------------------------

// Where none is left, connections wait in the kernel and nobody is told why.
void NodeDriver::look_at_descriptors() {
  const int spare = ::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
  const bool none = spare < 0 && errno == EMFILE;
  if (spare >= 0) ::close(spare);
  if (none && !out_of_descriptors_)
    warn(
        "no file descriptor is left: connections wait and files cannot be opened; raise the limit "
        "(`ulimit -n`, LimitNOFILE of systemd)");
  out_of_descriptors_ = none;
}

void NodeDriver::look_at_memory() {
  const ModelFiles files = model_files();
  if (files.bytes_refused == memory_refused_) return;
  memory_refused_ = files.bytes_refused;
  warn("exchange.memory_dir: " + config_.exchange_memory_dir + ": " + files.why_refused + "; " +
       std::to_string(files.bytes_refused >> 20) +
       " MiB are in main memory instead; make room there and start gossipd again");
}

// Open sessions outlive it, so nothing else would be seen before the next cut.
void NodeDriver::look_at_certificates() {
  if (!certificates_) return;
  std::vector<std::string> now = certificates_->date_warnings();
  for (const std::string& text : now)
    if (std::ranges::find(certificate_warnings_, text) == certificate_warnings_.end())
      log_warning(text);
  certificate_warnings_ = std::move(now);
}

// ---- keys ---------------------------------------------------------------------------------------

void NodeDriver::install_key(const std::string& file, KeysChanged done) {
  keys_->install(file, std::move(done));
}
void NodeDriver::use_key(std::uint64_t id, KeysChanged done) { keys_->use(id, std::move(done)); }
void NodeDriver::retire_key(std::uint64_t id, KeysChanged done) {
  keys_->retire(id, std::move(done));
}

// ---- answers that wait for the disk -------------------------------------------------------------

void NodeDriver::write_checkpoint(std::function<void(Result<CheckpointView>)> done) {
  const Error late{"disk-slow",
                   "the checkpoint is not on disk after " +
                       whole_seconds(seconds(checkpoint_answer_limit)) + " s: the disk of " +
                       store_.directory().string() +
                       " is slow or stuck. It is written as soon as the disk answers; " +
                       "the one before it is whole"};
  training_->write_checkpoint(
      "current", answers_.bounded<Result<CheckpointView>>(
                     std::move(done), late, EventLoop::now() + checkpoint_answer_limit));
}

void NodeDriver::when_on_disk(std::function<void(bool)> done) {
  if (disk_.view(EventLoop::now()).waiting >= DiskWriter::waiting_max) return done(false);
  auto answer =
      answers_.bounded<bool>(std::move(done), false, EventLoop::now() + command_answer_limit);
  disk_.after_all([this, answer = std::move(answer)] { answer(!state_failed_); });
}

// ---- a disk that does not answer ----------------------------------------------------------------

void NodeDriver::look_at_disk() {
  const Instant now = EventLoop::now();
  answers_.expire(now);
  if (const auto warning = disk_watch_.look(disk_view(now), now)) log_.remember(*warning, now);
}

}  // namespace gossipd
