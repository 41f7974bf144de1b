// What the driver does with the disk: the node's state, the job's file, the keys, checkpoints on
// demand. All is written by the disk writer or the trainer; here is what follows when it is there,
// or does not come to be there.
#include <cmath>
#include <utility>

#include "daemon/log/log.h"
#include "daemon/node_driver.h"

namespace gossipd {

namespace {

constexpr Duration checkpoint_answer_limit = std::chrono::seconds(15);
constexpr Duration command_answer_limit = std::chrono::seconds(5);
constexpr Duration disk_well_after = std::chrono::seconds(30);  // without a slow write

std::string whole_seconds(double seconds) {
  return std::to_string(static_cast<std::int64_t>(std::lround(seconds)));
}

}  // namespace

// ---- the state ----------------------------------------------------------------------------------

void NodeDriver::carry_out(PersistEffect& effect) {
  const auto state = std::make_shared<const NodeState>(
      std::move(effect.state));  // shared by the writer and its answer
  disk_.write_newest(
      "node.json", [this, state] { return store_.save_state(*state); },
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
  keep_keys(state);
  if (stopping_) return;
  node_->on_persisted(state, begin_event());
  after_event();
}

void NodeDriver::save_job(const std::string& document) {
  disk_.write(
      "job.toml", [this, document] { return store_.save_job(document); },
      [this](const std::optional<Error>& error) {
        if (error) warn(error->text);
      });
}

// ---- the job's file -----------------------------------------------------------------------------

// With the job's file, which comes from where the job file says, from the last run, or from the
// cluster.
void NodeDriver::prepare_training() {
  const JobFile& file = job_->file;
  if (file.bytes == 0) return training_->prepare(*job_);
  const auto held = std::make_shared<bool>(false);  // shared by the writer and its answer
  disk_.write(
      "the job's file",
      [files = store_.files(), file, from = job_->file_from, held]() -> std::optional<Error> {
        *held = files.holds(file);
        if (*held || from.empty()) return std::nullopt;
        const auto error = files.keep(from, file);
        *held = !error;
        return error;
      },
      [this, file, held](const std::optional<Error>& error) {
        if (stopping_) return;
        if (error) return on_training_failed(*error);
        if (*held) return training_->prepare(*job_);
        node_->want_file(file, begin_event());
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
  if (whole && *whole) return training_->prepare(*job_);
  if (whole) return;
  if (whole.error().code != "corrupt-file") return on_training_failed(whole.error());
  warn(whole.error().text);
  node_->want_file(file, begin_event());
  after_event();
}

// ---- keys ---------------------------------------------------------------------------------------

// Keys are kept for restarts once they are known to work: at founding, or when a cluster has
// answered.
void NodeDriver::keep_keys(const NodeState& state) {
  if (keys_are_kept_ || !keys_ || state.cluster == ClusterId{}) return;
  keys_are_kept_ = true;
  disk_.write(
      "cluster.key",
      [path = store_.key_path().string(), keys = *keys_,
       was_member = was_member_at_start_]() -> std::optional<Error> {
        const Result<Keyring> kept = read_keyring(path);
        if (kept && *kept == keys) return std::nullopt;
        if (was_member && kept)
          return std::nullopt;  // whoever was given another key for one run keeps the old one
        return write_keyring(path, keys);
      },
      [this](const std::optional<Error>& error) {
        if (error) warn("the key is not kept for the next start: " + error->text);
      });
}

// On disk before it is in force: a restart must not know less than the peers do.
void NodeDriver::change_keys(const char* what, std::uint64_t id,
                             const std::function<std::optional<Error>(Keyring&)>& change,
                             KeysChanged done) {
  if (!keys_) return done(no_key());
  if (keys_change_)
    return done(Error{"disk-slow", "the change before is not on disk yet; try again when it is"});
  const auto changed = std::make_shared<Keyring>(*keys_);  // shared by the writer and its answer
  if (auto error = change(*changed)) return done(error);
  keys_change_ = true;
  const Error late{"disk-slow", "the keys are not on disk after " +
                                    whole_seconds(seconds(command_answer_limit)) +
                                    " s; they come into force when they are"};
  auto answer = answers_.bounded<std::optional<Error>>(std::move(done), late,
                                                       EventLoop::now() + command_answer_limit);
  disk_.write(
      "cluster.key",
      [path = store_.key_path().string(), changed] { return write_keyring(path, *changed); },
      [this, what, id, changed, answer = std::move(answer)](const std::optional<Error>& error) {
        keys_change_ = false;
        if (error) return answer(error);
        keys_are_kept_ = true;
        keys_ = *changed;
        transport_->set_keys(*keys_);
        log_line(Level::info, std::string("event=key-") + what + " key=" + to_hex(id) +
                                  " in_use=" + to_hex(keys_->in_use().id));
        answer(std::nullopt);
      });
}

Error NodeDriver::no_key() const {
  if (uses_certificates_)
    return Error{"certificates",
                 "this cluster uses certificates (peer_tls.*), not a key: renew them in their "
                 "files, then send SIGHUP to gossipd or start it again"};
  return Error{"no-key",
               "this node was started without a key (--key-file none), so its cluster has none"};
}

Result<KeysView> NodeDriver::keys() const {
  if (!keys_) return no_key();
  const std::map<std::uint64_t, std::size_t> sessions = transport_->sessions_by_key();
  KeysView view;
  for (const ClusterKey& key : keys_->keys()) {
    const auto found = sessions.find(key.id);
    view.keys.push_back(
        {key.id, key.id == keys_->in_use().id, found == sessions.end() ? 0 : found->second});
  }
  view.retired = keys_->retired();
  return view;
}

void NodeDriver::install_key(const std::string& file, KeysChanged done) {
  const Result<ClusterKey> key = read_cluster_key(file);
  if (!key) return done(key.error());
  change_keys(
      "installed", key->id, [&key](Keyring& ring) { return ring.install(*key); }, std::move(done));
}

void NodeDriver::use_key(std::uint64_t id, KeysChanged done) {
  change_keys(
      "used", id, [id](Keyring& ring) { return ring.use(id); }, std::move(done));
}

void NodeDriver::retire_key(std::uint64_t id, KeysChanged done) {
  change_keys(
      "retired", id, [id](Keyring& ring) { return ring.retire(id); }, std::move(done));
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

DiskView NodeDriver::disk_view(Instant now) const {
  DiskView view = disk_.view(now);
  view.checkpoint_s = training_->checkpoint_seconds(now);
  view.slow = disk_slow_at_.has_value();
  return view;
}

void NodeDriver::watch_disk() {
  const Instant now = EventLoop::now();
  answers_.expire(now);
  const DiskView disk = disk_view(now);
  if (takes_long(disk)) {
    if (!std::exchange(disk_slow_at_, now)) {
      const std::string waited = whole_seconds(std::max(disk.writing_s, disk.checkpoint_s));
      const std::string what = disk.writing.empty() ? "a checkpoint" : disk.writing;
      log_line(Level::warning,
               "event=disk-slow seconds=" + waited + " writing=\"" + what + "\" directory=\"" +
                   store_.directory().string() +
                   "\" hint=\"training goes on; a restart may know less than this node says now\"");
      remember_warning("the disk of " + store_.directory().string() + " is slow: " + what +
                       " has been written for " + waited +
                       " s; look for its errors in the system's log");
    }
  } else if (disk_slow_at_ && now - *disk_slow_at_ >= disk_well_after) {
    disk_slow_at_.reset();
    log_line(Level::info, "event=disk-well slowest_s=" + whole_seconds(disk.slowest_s));
  }
}

Error NodeDriver::stopped_too_late() const {
  const DiskView disk = disk_view(EventLoop::now());
  if (disk.writing.empty() && disk.checkpoint_s == 0)
    return Error{
        "stop-too-slow",
        "stopping took too long; the last checkpoint may be missing, the one before it is whole"};
  const bool small = !disk.writing.empty();
  return Error{
      "stop-too-slow",
      "the disk of " + store_.directory().string() + " has been writing " +
          (small ? disk.writing : "a checkpoint") + " for " +
          whole_seconds(small ? disk.writing_s : disk.checkpoint_s) +
          " s; this node stops without waiting any longer. " +
          "What lay there before is whole; look for the disk's errors in the system's log"};
}

}  // namespace gossipd
