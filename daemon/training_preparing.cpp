// How a job becomes a trainer that stands: on a thread beside the loop, since it takes seconds.
#include <algorithm>
#include <chrono>
#include <cmath>

#include "core/base/printable.h"
#include "core/codec/kernels.h"
#include "daemon/config/check_whole.h"
#include "daemon/disk/durable_file.h"
#include "daemon/disk/run_account.h"
#include "daemon/training.h"
#include "models/devices/runtime.h"
#include "models/external/segment_list.h"
#include "models/files/data_file.h"

namespace gossipd {

namespace {

constexpr Duration data_retry = std::chrono::seconds(5);

// Decoding images is work for several cores, everything else is copying.
int loader_threads_for(const Job& job) {
  return job.data.kind == DataSpec::Kind::images
             ? static_cast<int>(std::clamp(std::thread::hardware_concurrency() / 2, 1u, 8u))
             : 1;
}

TrainerOptions options_from(const DaemonConfig& config, const Job& job, NodeId id) {
  TrainerOptions options;
  options.data_dir = config.data_dir;
  options.device = config.device;
  options.threads = static_cast<int>(
      config.threads != 0 ? config.threads : std::max(1u, std::thread::hardware_concurrency()));
  options.min_step_ms = config.min_step_ms;
  const bool automatic = config.shard_count == 0;
  options.shard_index = automatic ? 0 : config.shard_index;
  options.shard_count = automatic ? 1 : config.shard_count;
  const bool shared = job.data.division == DataSpec::Division::shared;
  options.walker = automatic && !shared ? static_cast<std::uint64_t>(id) : 0;
  options.node = id;
  options.nice = static_cast<int>(config.nice);
  options.loader_threads = config.loader_threads != 0 ? static_cast<int>(config.loader_threads)
                                                      : loader_threads_for(job);
  options.image_cache_bytes = std::uint64_t{config.image_cache_mb} << 20;
  return options;
}

std::string data_wanted(const Job& job) {
  return "the data of job '" + job.name + "'; start with --data DIR, where DIR holds " +
         files_wanted(job.data);
}

bool is_about_data(const Error& error) {
  return error.code == "no-data" || error.code == "bad-data" || error.code == data_unreadable;
}

std::optional<double> number_in(const Metadata& metadata, const std::string& key) {
  const auto found = metadata.find(key);
  if (found == metadata.end()) return std::nullopt;
  char* end = nullptr;
  const double value = std::strtod(found->second.c_str(), &end);
  if (end == found->second.c_str()) return std::nullopt;
  return value;
}

std::optional<CheckpointView> look_at(const std::filesystem::path& path) {
  const Result<Metadata> metadata = read_checkpoint_metadata(path);
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  const auto written = std::filesystem::last_write_time(path, error);
  if (!metadata || error) return std::nullopt;
  CheckpointView view;
  view.path = path.string();
  view.bytes = size;
  view.written_at_s =
      std::chrono::duration<double>(std::chrono::file_clock::to_sys(written).time_since_epoch())
          .count();
  view.step = static_cast<Step>(number_in(*metadata, "step").value_or(0));
  view.own_samples = static_cast<Samples>(number_in(*metadata, "samples").value_or(0));
  view.accuracy = number_in(*metadata, "accuracy");
  view.evaluation_loss = number_in(*metadata, "evaluation_loss");
  return view;
}

}  // namespace

// What comes back from preparing. Shared on its way through the loop, which copies its tasks.
struct Training::Prepared {
  std::unique_ptr<Trainer> trainer;
  RoundBuffers buffers;
  bool restored = false;
  std::optional<Error> unreadable;  // the checkpoint, for the moment
  std::vector<std::string> warnings;
  std::string left_out;  // of the data
  std::map<std::string, CheckpointView> checkpoints;
  std::optional<Error> error;
};

void Training::prepare(const KnownJob& known, bool founds, Samples own_samples) {
  founds_ = founds;
  known_samples_ = own_samples;
  const Result<Job> job = Job::parse(known.document, "the cluster's job");
  if (!job || job->hash() != known.hash) {
    failed_ = true;
    failure_ = job ? "the job's hash is not " + to_hex(known.hash) +
                         " here; run the same gossipd version on every node"
                   : job.error().text;
    return loop_.post([this] { events_.on_failure(Error{"bad-job", failure_}); });
  }
  job_ = *job;
  patience_ = Patience(job_->training.patience);
  job_hash_ = known.hash;
  if (const auto wrong = check_shard(*job_, config_)) {
    failed_ = true;
    failure_ = wrong->text;
    return loop_.post([this, wrong] { events_.on_failure(*wrong); });
  }
  start_from_ = known.start_from;
  if (socket_ && is_external())
    socket_->wait("preparing", "the daemon prepares the model of job '" + job_->name + "'");
  else if (socket_)
    socket_->close("not-external",
                   "this daemon trains job '" + job_->name +
                       "' itself; a trainer attaches to a job with kind = \"external\" under "
                       "[model]");
  start_preparing();
}

// ---- on the thread aside

Result<std::unique_ptr<Trainer>> Training::make_trainer(std::string& left_out) {
  TrainerOptions options = options_from(config_, *job_, id_);
  if (is_external()) return make_external(std::move(options));
  options.start_from = start_from_;
  if (job_->model.content.bytes > 0)
    options.model_file = store_.files().path(job_->model.content).string();
  return Trainer::create(*job_, options, &left_out);
}

Result<std::unique_ptr<Trainer>> Training::make_external(TrainerOptions options) {
  if (!socket_)
    return Error{"bad-config", "trainer.socket is none, but job '" + job_->name +
                                   "' is trained by a process that attaches there; leave "
                                   "trainer.socket out"};
  const Result<std::string> list =
      read_whole(store_.files().path(job_->model.content), segment_list_bytes_max);
  if (!list) return list.error();
  const Result<Schema> schema = parse_segment_list(*list);
  if (!schema) return Error{"bad-job", "the job's list of segments: " + schema.error().text};
  const std::filesystem::path path = store_.directory() / "trainer-run.json";
  Result<std::unique_ptr<ExternalEngine>> engine =
      ExternalEngine::create(*schema, *socket_,
                             {.node = id_,
                              .account = read_run_account(path),
                              .keep = [this, path](const RunAccount& account) {
                                const auto gone = store_.check_lock();
                                return gone ? gone : write_run_account(path, account);
                              }});
  if (!engine) return engine.error();
  external_.store(engine->get());
  return Trainer::with_engine(*job_, options, std::move(*engine));
}

void Training::restore(Prepared& prepared) {
  prepared.buffers = make_round_buffers(prepared.trainer->schema().floats());
  const Result<LoadedCheckpoint> loaded =
      load_checkpoint(store_.checkpoint_path("current"), prepared.trainer->schema(), job_hash_);
  if (loaded && !loaded->fallback_reason.empty())
    prepared.warnings.push_back(loaded->fallback_reason +
                                "; the previous checkpoint is used: " + loaded->path.string());
  if (!loaded && loaded.error().code != "not-found")
    prepared.warnings.push_back(loaded.error().text + "; no checkpoint is used");
  if (!loaded && loaded.error().code == "io-error") prepared.unreadable = loaded.error();
  if (loaded) {
    const auto refused = prepared.trainer->restore(loaded->checkpoint);
    if (refused) prepared.warnings.push_back(refused->text + "; no checkpoint is used");
    prepared.restored = !refused;
  }
  if (!prepared.restored && !is_external()) {
    prepared.buffers.initial = large_zeros(prepared.trainer->schema().floats());
    prepared.trainer->copy_model(prepared.buffers.initial);
    prepared.buffers.initial_hash = kernels().hash(prepared.buffers.initial);
  }
  for (const char* which : {"current", "best", "final"})
    if (auto old = look_at(store_.checkpoint_path(which))) prepared.checkpoints[which] = *old;
}

void Training::warn_of_unused_settings(Prepared& prepared) const {
  std::string list;
  for (const std::string& key : settings_of_own_training(config_))
    list += (list.empty() ? "" : ", ") + key;
  if (list.empty()) return;
  prepared.warnings.push_back("without effect in job '" + job_->name + "': " + list +
                              "; the process that trains it goes by its own settings: set it "
                              "there, or leave it out here");
}

void Training::start_preparing() {
  if (stopped_ || busy_) return;
  if (config_.data_dir.empty() && !is_external())
    return loop_.post([this] {
      if (!stopped_) events_.on_waiting_for_data(Error{"no-data", data_wanted(*job_)});
    });
  run_aside([this] {
    auto prepared = std::make_shared<Prepared>();
    Result<std::unique_ptr<Trainer>> trainer = make_trainer(prepared->left_out);
    if (trainer) {
      prepared->trainer = std::move(*trainer);
      restore(*prepared);
      return_free_memory();  // the checkpoint's
      if (is_external()) warn_of_unused_settings(*prepared);
    } else {
      prepared->error = trainer.error();
    }
    // The model that the cluster begins with is the first trainer's.
    ExternalEngine* const external = external_.load();
    if (external && founds_ && !prepared->restored && !stop_wanted_) {
      const auto say = [this](const std::string& words) {
        loop_.post([this, words] { events_.on_event(words); });
      };
      say("event=waiting-for-trainer socket=" + log_quoted(socket_->path()));
      (void)external->take_first_model(say);
    }
    loop_.post([this, prepared] { on_prepared(std::move(*prepared)); });
  });
}

void Training::on_prepared(Prepared prepared) {
  busy_ = false;
  if (left_behind_) return;
  for (const std::string& warning : prepared.warnings) events_.on_warning(warning);
  if (stopped_) {
    trainer_ = std::move(prepared.trainer);
    return maybe_stop();
  }
  if (prepared.error && is_about_data(*prepared.error)) {
    // The directory may be mounted or filled later: it is looked at again, quietly.
    data_timer_.arm_after(data_retry);
    if (prepared.error->text == waiting_) return;
    waiting_ = prepared.error->text;
    return events_.on_waiting_for_data(*prepared.error);
  }
  if (prepared.error) {
    failed_ = true;
    failure_ = prepared.error->text;
    return events_.on_failure(*prepared.error);
  }
  waiting_.clear();
  if (!prepared.left_out.empty())
    events_.on_event("event=data-left-out what=" + log_quoted(prepared.left_out));
  trainer_ = std::move(prepared.trainer);
  checkpoints_ = std::move(prepared.checkpoints);
  on_disk_ = prepared.restored;
  if (const auto found = checkpoints_.find("best"); found != checkpoints_.end())
    best_ = evaluation_figures_of(found->second);
  const TrainerStatus status = trainer_->status();
  events_.on_ready(Ready{trainer_->schema(), std::move(prepared.buffers), prepared.restored,
                         status.samples, status.step, std::move(prepared.unreadable)});
}

std::optional<Figures> Training::evaluation_figures_of(const CheckpointView& checkpoint) {
  if (!checkpoint.accuracy && !checkpoint.evaluation_loss) return std::nullopt;
  return Figures{.loss = checkpoint.evaluation_loss.value_or(HUGE_VAL),
                 .accuracy = checkpoint.accuracy,
                 .top5_accuracy = {},
                 .perplexity = {}};
}

std::string Training::trainer_wanted() const {
  return "a process that trains job '" + job_->name + "' to attach at " + socket_->path();
}

}  // namespace gossipd
