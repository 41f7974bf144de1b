// The engine of models/training/torch_engine.h, and Trainer::create on top of it.
#include "models/training/torch_engine.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>
#include <stdexcept>
#include <tuple>

#include "models/devices/autocast.h"
#include "models/devices/device_group.h"
#include "models/devices/device_replica.h"
#include "models/devices/model_traffic.h"
#include "models/devices/rank_threads.h"
#include "models/devices/runtime.h"
#include "models/devices/torch_device.h"
#include "models/files/data_file.h"
#include "models/networks/loss.h"
#include "models/networks/torchscript.h"
#include "models/training/evaluator.h"
#include "models/training/reported_loss.h"
#include "models/training/start_weights.h"
#include "models/training/trainer.h"

namespace gossipd {

namespace {

using torch::Tensor;

constexpr std::int64_t evaluation_batch = 250;
constexpr std::int64_t trial_batch = 2;

// Finds out now, in words, what else would end the first step. Throws std::invalid_argument, or
// what the network throws.
void try_batch(const Job& job, Network& network, const Tensor& inputs, const Tensor& targets) {
  network.train(true);
  const AutocastScope autocast(job.training.precision, inputs.device());
  const Tensor outputs = network.forward(inputs);
  if (const auto reason = fit_error(job.loss.kind, outputs, targets, job.data.classes))
    throw std::invalid_argument(*reason);
  const Tensor loss = loss_of(job.loss.kind, network, outputs, targets);
  if (loss.numel() != 1)
    throw std::invalid_argument(
        "its loss(outputs, targets) returns more than one number; it must return the mean over the "
        "batch");
  if (!loss.requires_grad())
    throw std::invalid_argument(
        "the loss does not depend on the parameters: does forward detach, or run without "
        "gradients?");
}

// A batch norm has nothing to norm by.
std::string way_out_of_one(const Job& job, const std::string& reason) {
  if (reason.find("Expected more than 1 value per channel") == std::string::npos) return "";
  const char* const key = job.batch == 1 ? "batch" : "micro_batch";
  return std::string("; a batch norm needs two samples or more at once, so write ") + key +
         " = 2 or more in the job";
}

// For the whole process. cuDNN chooses by rules instead of trying (benchmark): a batch changes its
// size too often for that.
void set_arithmetic(const TrainingSpec& training) {
  at::Context& context = at::globalContext();
  context.setDeterministicCuDNN(training.deterministic);
  context.setBenchmarkCuDNN(false);
  context.setDeterministicAlgorithms(training.deterministic, /*warn_only=*/false);
  const bool tf32 = training.precision == TrainingSpec::Precision::tf32;
  context.setAllowTF32CuBLAS(tf32);
  context.setAllowTF32CuDNN(tf32);
}

// What the library threw, for a person: one sentence, without its stack; OutOfMemory with figures
// where it was memory. To be called while `error` is handled. What is a sentence keeps its type.
[[noreturn]] void rethrow_in_words(const std::exception& error, torch::Device device) {
  if (dynamic_cast<const OutOfMemory*>(&error) != nullptr ||
      dynamic_cast<const DataError*>(&error) != nullptr)
    throw;
  if (is_out_of_memory(error)) throw in_words(error, device);
  const std::string sentence = sentence_of(error);
  if (sentence == error.what()) throw;
  throw std::runtime_error(sentence);
}

// Several devices are ranks of one node: each has a replica and a part of every batch, gradients
// are summed over all of them, and everybody takes the same step. What is asked about the model is
// answered by rank 0, which is the caller's thread.
class TorchEngine : public GradientEngine {
 public:
  TorchEngine(const Job& job, int threads, std::vector<torch::Device> devices, BatchSource source,
              std::shared_ptr<const DataSet> held_out, const std::string& model_file)
      : job_(job),
        threads_(std::max(1, threads / static_cast<int>(devices.size()))),
        devices_(std::move(devices)),
        source_(std::move(source)),
        evaluator_(job, model_file, first_device(), std::move(held_out), evaluation_samples()),
        meeting_place_(devices_.size()),
        ranks_(devices_.size()) {
    for (const torch::Device& device : devices_)
      replicas_.push_back(std::make_unique<DeviceReplica>(job, model_file, device));
    const auto& segments = schema().segments();
    has_statistics_ = std::any_of(segments.begin(), segments.end(), [](const Segment& s) {
      return s.kind == SegmentKind::statistic;
    });
    groups_.resize(devices_.size());
    try_one_batch();
    if (first_device().is_cpu()) return;  // there a copy is as quick as beginning it
    std::vector<FlatModel*> models;
    for (const auto& replica : replicas_) models.push_back(&replica->flat());
    traffic_ = std::make_unique<ModelTraffic>(models);
  }
  ~TorchEngine() override {
    // a backend may take its leave of the others
    ranks_.run([this](std::size_t rank) { groups_[rank].reset(); });
  }

  // Once, before the first step.
  void connect_ranks() {
    if (devices_.size() < 2) return;
    on_all_ranks(
        [&](std::size_t rank) { groups_[rank] = meeting_place_.join(rank, devices_[rank]); });
    on_all_ranks([&](std::size_t rank) {
      FlatModel& flat = replicas_[rank]->flat();
      try_group(*groups_[rank], devices_.size(), flat.gradient(), flat.untrained());
    });
  }

  const Schema& schema() const override { return replicas_.front()->flat().schema(); }
  std::string device() const override { return joined(devices_); }
  Samples shard_samples() const override { return source_.shard_samples(); }

  void prepare_thread(int nice) override {
    std::call_once(ranks_prepared_, [&] {
      on_all_ranks([&](std::size_t rank) {
        if (rank > 0) prepare_training_thread(threads_, nice);
      });
    });
    prepare_training_thread(threads_, nice);
  }

  double step(Samples position, double learning_rate, std::uint32_t batch) override {
    return in_sentences([&] {
      if (traffic_) traffic_->take_update(/*wait=*/false);
      const std::uint32_t samples = batch > 0 ? batch : job_.batch;
      std::size_t turn = begin_step(position, learning_rate, samples);
      // The first loss has none before it that could stand in for it.
      while (reported_loss_.is_first() && inconclusive_[turn] && !std::isfinite(loss(turn)))
        turn = begin_step(position, learning_rate, samples);
      turn = reported_loss_.turn_to_read(turn);
      return reported_loss_.report(loss(turn), inconclusive_[turn]);
    });
  }

  Samples next_position(Samples, std::uint32_t) const override { return next_position_; }
  void restrict_to(BucketSet buckets) override { source_.restrict_to(std::move(buckets)); }

  double gradient(std::span<const float> model, Samples position, std::uint32_t batch,
                  std::span<float> out) override {
    replace_model(model);
    return in_sentences([&] {
      const std::size_t turn = begin_gradient(position, batch);
      sum_gradients();
      on_all_ranks([&](std::size_t rank) { std::ignore = replicas_[rank]->unscale_gradient(); });
      std::ranges::fill(out, 0.0f);
      const Tensor& gradient = replicas_.front()->flat().gradient();
      torch::from_blob(out.data(), {gradient.numel()}, torch::kFloat32).copy_(gradient);
      forget_gradients();
      return loss(turn);
    });
  }

  void copy_model(std::span<float> out) override {
    refuse_if_silent();
    in_sentences([&] {
      if (traffic_) traffic_->take_update(/*wait=*/true);
      replicas_.front()->copy_model(out);
    });
  }
  void begin_copy(std::span<float> out) override {
    in_sentences([&] { traffic_ ? traffic_->begin_copy(out) : copy_model(out); });
  }
  bool copied() override {
    return in_sentences([&] { return !traffic_ || traffic_->copied(); });
  }
  bool ready_to_copy() const override { return !traffic_ || !traffic_->update_under_way(); }
  std::optional<bool> copy_is_finite() override {
    if (!traffic_) return std::nullopt;
    return in_sentences([&] { return traffic_->copy_is_finite(); });
  }
  void settle() override {
    refuse_if_silent();
    if (traffic_) in_sentences([&] { traffic_->settle(); });
  }
  void add_to_model(std::span<const float> values) override {
    in_sentences([&] {
      if (traffic_) return traffic_->begin_add(values);
      for (const auto& replica : replicas_) replica->flat().add(values);
    });
  }
  void replace_model(std::span<const float> values) override {
    settle();
    in_sentences([&] {
      for (const auto& replica : replicas_) replica->flat().copy_from(values);
    });
    reported_loss_.begin_anew();
  }

  OptimizerState optimizer_state() override {
    refuse_if_silent();
    return in_sentences([&] { return replicas_.front()->optimizer_state(); });
  }
  void restore_optimizer(const OptimizerState& state) override {
    in_sentences([&] {
      for (const auto& replica : replicas_) replica->restore_optimizer(state);
    });
  }

  std::optional<Figures> evaluate(std::span<const float> model,
                                  const std::atomic<bool>& cancel) override {
    auto figures = in_sentences([&] { return evaluator_.evaluate(model, cancel); });
    return_free_memory();
    return figures;
  }

 private:
  torch::Device first_device() const { return devices_.front(); }

  // As many samples as fit the memory that training needs anyhow, where a sample may be large: one
  // device has a part of a batch.
  std::int64_t evaluation_samples() const {
    const bool small =
        job_.model.kind == ModelSpec::Kind::mlp || job_.model.kind == ModelSpec::Kind::cnn;
    const auto devices = static_cast<std::int64_t>(devices_.size());
    return small ? evaluation_batch
                 : micro_batch(job_, (std::int64_t{job_.batch} + devices - 1) / devices);
  }

  void try_one_batch() {
    HostBatch batch(source_.set().input(), source_.set().target(),
                    std::min<std::int64_t>(micro_batch(job_, job_.batch), trial_batch));
    // Not by the source: loader threads would start, and inherit this thread's priority.
    const DataSet& set = source_.set();
    for (std::size_t i = 0; i < static_cast<std::size_t>(batch.samples()); ++i)
      set.write(i % set.count(), nullptr, batch.view(), i);
    replicas_.front()->seed_dropout(source_.visit(0));
    evaluator_.lend_network([&](Network& network) {
      try_batch(job_, network, batch.inputs.to(first_device()), batch.targets.to(first_device()));
    });
  }

  // What a device that hangs holds can neither be read nor waited for.
  void refuse_if_silent() const {
    if (!silent_.empty()) throw DeviceSilent(silent_);
  }

  // What the library throws comes out as rethrow_in_words() has it.
  template <typename Work>
  auto in_sentences(const Work& work) const -> decltype(work()) {
    try {
      return work();
    } catch (const std::exception& error) {
      rethrow_in_words(error, first_device());
    }
  }

  // The same for each rank, on its thread and its device. With several ranks the error names the
  // one that failed.
  void on_all_ranks(const std::function<void(std::size_t)>& work) {
    const auto on_its_device = [&](std::size_t rank) {
      const c10::DeviceGuard guard(devices_[rank]);
      try {
        work(rank);
      } catch (const std::exception& error) {
        rethrow_in_words(error, devices_[rank]);
      }
    };
    try {
      ranks_.run(on_its_device);
    } catch (const RankFailure& failure) {
      rethrow_for_node(failure, devices_[failure.rank()].str());
    }
  }

  // The first ranks have one sample more where the batch cannot be divided; of a small one the last
  // have none, and with a batch norm none has a single one.
  DeviceReplica::Part part_of(std::size_t rank, std::int64_t samples) const {
    const auto all = static_cast<std::int64_t>(devices_.size()),
               i = static_cast<std::int64_t>(rank);
    const std::int64_t ranks =
        has_statistics_ ? std::clamp<std::int64_t>(samples / 2, 1, all) : all;
    if (i >= ranks) return {samples, 0};
    return {i * (samples / ranks) + std::min(i, samples % ranks),
            samples / ranks + (i < samples % ranks ? 1 : 0)};
  }

  // Every rank's part of the gradient. Returns whose turn it was, for loss().
  std::size_t begin_gradient(Samples position, std::uint32_t samples) {
    if (std::exchange(unfinished_, true)) forget_gradients();  // of a step that failed on one rank
    turn_ = 1 - turn_;
    inconclusive_[turn_] = false;
    // a device may still read the other one
    std::optional<HostBatch>& batch = batches_[first_device().is_cpu() ? 0 : turn_];
    if (!batch || batch->samples() != samples) {
      batch.emplace(source_.set().input(), source_.set().target(), samples, first_device());
    }
    next_position_ = source_.fill(position, samples, batch->view());
    // The last sample's: nodes that divide a set all begin at the same place.
    const std::uint64_t visit = source_.visit(next_position_ - 1);
    on_all_ranks([&](std::size_t rank) {
      replicas_[rank]->backward(*batch, part_of(rank, samples), visit, turn_);
    });
    return turn_;
  }

  // What normalisation has seen on rank 0 holds for all, as the model's other statistics. A piece
  // of work of its own: every rank has begun its sum before any goes on to what could wait for one.
  void sum_gradients() {
    if (devices_.size() < 2) return;
    on_all_ranks([&](std::size_t rank) {
      const torch::NoGradGuard no_gradient;
      FlatModel& flat = replicas_[rank]->flat();
      groups_[rank]->sum(flat.gradient());
      if (has_statistics_) groups_[rank]->copy_from_first(flat.untrained());
    });
  }

  // Gradient, sum, descent. Returns whose turn it was, for loss().
  std::size_t begin_step(Samples position, double learning_rate, std::uint32_t samples) {
    const std::size_t turn = begin_gradient(position, samples);
    sum_gradients();
    on_all_ranks([&](std::size_t rank) {
      if (replicas_[rank]->unscale_gradient())
        replicas_[rank]->descend(learning_rate);
      else if (rank == 0)
        inconclusive_[turn] = replicas_[rank]->may_scale_down();
    });
    unfinished_ = false;
    return turn;
  }

  double loss(std::size_t turn) {
    double sum = 0;
    try {
      for (const auto& replica : replicas_) sum += replica->loss(turn);
    } catch (const DeviceSilent& error) {
      silent_ = error.what();
      for (const auto& group : groups_)
        if (group) group->give_up();
      throw;
    }
    return sum;
  }

  void forget_gradients() {
    for (const auto& replica : replicas_) replica->forget_gradient();
    unfinished_ = false;
  }

  const Job job_;
  const int threads_;  // of each rank
  const std::vector<torch::Device> devices_;
  BatchSource source_;
  Evaluator evaluator_;  // the evaluation thread's own, after the constructor
  std::vector<std::unique_ptr<DeviceReplica>> replicas_;
  bool has_statistics_ = false;
  std::unique_ptr<ModelTraffic> traffic_;  // null on the CPU
  MeetingPlace meeting_place_;
  std::vector<std::unique_ptr<DeviceGroup>> groups_;  // null where there is one device
  std::once_flag ranks_prepared_;
  std::array<std::optional<HostBatch>, 2> batches_;
  std::size_t turn_ = 0;
  Samples next_position_ = 0;
  bool unfinished_ = false;
  // Of a turn's step: it overflowed in fp16 at a scale that can still fall, so that its loss says
  // nothing.
  std::array<bool, 2> inconclusive_{};
  ReportedLoss reported_loss_{!first_device().is_cpu()};
  std::string silent_;  // why a device is not waited for any more; empty: it is
  RankThreads ranks_;   // ends before what its threads use
};

}  // namespace

std::optional<Error> check_torchscript(const Job& job, const std::string& model_file) {
  std::string given;  // to forward
  try {
    const auto network = build_network(job, model_file, torch::kCPU);
    const FlatModel flat(network->tensors(), FlatModel::Gradient::no);
    HostBatch batch(job.data.input(), job.data.target(), trial_batch);
    given = c10::str("; forward(inputs) was given ", batch.inputs.sizes(), ", ", trial_batch,
                     " samples as the job's [data] says: change it, or the model");
    try_batch(job, *network, batch.inputs.zero_(), batch.targets.zero_());
  } catch (const std::invalid_argument& error) {
    const std::string words = error.what();
    return Error{"bad-model", words.starts_with(model_file)
                                  ? words
                                  : model_file + ": cannot be trained: " + words};
  } catch (const std::exception& error) {
    if (auto no_room = lack_of_memory(error, {torch::kCPU})) return no_room;
    return Error{"bad-model", model_file + ": cannot be trained: " + sentence_of(error) + given};
  }
  return std::nullopt;
}

std::optional<Error> check_model(const Job& job) {
  if (job.model.kind != ModelSpec::Kind::torchscript) return std::nullopt;
  return check_torchscript(job, job.model.file);
}

std::optional<Error> check_device(const std::string& device) {
  const auto found = find_devices(device);
  if (!found) return found.error();
  return std::nullopt;
}

Result<std::unique_ptr<GradientEngine>> make_torch_engine(const Job& job, const std::string& device,
                                                          int threads, BatchSource source,
                                                          std::shared_ptr<const DataSet> held_out,
                                                          const std::string& model_file) {
  auto found = find_devices(device);
  if (!found) return found.error();
  if (job.training.precision == TrainingSpec::Precision::fp16 && !found->front().is_cuda())
    return Error{
        "no-device",
        "the job's precision is \"fp16\", which no CPU computes in, and this node trains on " +
            joined(*found) +
            "; set trainer.device to a CUDA device, or write precision = \"bf16\" or \"fp32\" in "
            "the job"};
  std::unique_ptr<TorchEngine> engine;
  try {
    set_arithmetic(job.training);
    engine = std::make_unique<TorchEngine>(job, threads, *found, std::move(source),
                                           std::move(held_out), model_file);
  } catch (const std::exception& error) {
    if (const auto no_room = lack_of_memory(error, *found)) return *no_room;
    const std::string why = sentence_of(error);
    if (dynamic_cast<const c10::Error*>(&error) == nullptr)
      return Error{"bad-model", "the model cannot be trained: " + why + way_out_of_one(job, why)};
    return Error{job.model.kind == ModelSpec::Kind::torchscript ? "bad-model" : "no-device",
                 "the model cannot be trained on " + joined(*found) + ": " + why};
  }
  try {
    engine->connect_ranks();
  } catch (const std::exception& error) {
    if (const auto no_room = lack_of_memory(error, *found)) return *no_room;
    return Error{"no-device", joined(*found) + " cannot train together: " + sentence_of(error) +
                                  "; start one gossipd for each of them"};
  }
  return std::unique_ptr<GradientEngine>(std::move(engine));
}

Result<std::unique_ptr<Trainer>> Trainer::create(const Job& job, const TrainerOptions& options,
                                                 std::string* left_out) {
  if (options.shard_count == 0 || options.shard_index >= options.shard_count)
    return Error{"bad-config", "shard " + std::to_string(options.shard_index) + " of " +
                                   std::to_string(options.shard_count) +
                                   " does not exist; shards count from 0"};
  if (job.data.division == DataSpec::Division::shared &&
      (options.shard_count != 1 || options.walker != 0))
    return Error{"bad-config",
                 "the job's nodes divide one set among themselves (division = \"shared\"), so none "
                 "has a shard of its own"};
  auto sets = load_data(job.data, {.directory = options.data_dir,
                                   .seed = job.seed,
                                   .held_out = options.evaluate,
                                   .image_cache_bytes = options.image_cache_bytes});
  if (!sets) return sets.error();
  if (left_out != nullptr) *left_out = sets->left_out;
  if (sets->train->count() < options.shard_count)
    return Error{"bad-config", "there are " + std::to_string(options.shard_count) +
                                   " shards but only " + std::to_string(sets->train->count()) +
                                   " training samples; use fewer shards"};
  const DataOrder::Shard shard{options.shard_index, options.shard_count, options.walker};
  BatchSource source(sets->train, DataOrder(job.seed, sets->train->count(), shard),
                     options.loader_threads);
  auto engine = make_torch_engine(job, options.device, options.threads, std::move(source),
                                  std::move(sets->held_out), options.model_file);
  if (!engine) return engine.error();
  if (!options.start_from.empty())
    if (auto error = start_with(options.start_from, **engine)) return *error;
  return_free_memory();
  return with_engine(job, options, std::move(*engine));
}

}  // namespace gossipd
