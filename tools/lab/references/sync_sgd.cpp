// tools/lab/references/sync_sgd.cpp - synchronous SGD: every step is taken with the mean gradient
// of all machines, by an all-reduce.
//
//   g = mean_i g_i(x) ;  x: the job's optimiser on g, on every machine alike
//
// Compression: none; fp16 (rounded at every hop); int8 with error feedback, two-phase as in 1-bit
// Adam (Tang et al. 2021); top-k with error feedback, gathered by all (Aji and Heafield 2017);
// low-rank: PowerSGD (Vogels et al. 2019). Linear scaling of the rate with the number of machines:
// Goyal et al. 2017 (the warm-up is the job's). Certain but for our choice of collective for int8.
//
// qsgd: each node rounds its gradient at random to a few levels, with the right mean and without
// error feedback, and sends it to all (Alistarh, Grubic, Li, Tomioka, Vojnovic, NIPS 2017: scaled
// by a bucket's maximum as in their experiments, whole bits for a value instead of Elias codes).
//
// dgc: the momentum correction and factor masking of Lin, Han, Mao, Wang, Dally, "Deep Gradient
// Compression" (ICLR 2018), without their clipping of local gradients:
//
//   u_i = m·u_i + g_i + wd·x ;  v_i += u_i ;  send the `share` of v_i with the largest magnitudes,
//   clear u_i and v_i there ;  x −= η·mean_i sent_i
//
// While the job warms up the share falls from a quarter, by the same factor for each sample.
//
// LARS (You, Gitman, Ginsburg, "Large Batch Training of Convolutional Networks", 2017), for each
// tensor of the mean gradient, before the job's momentum:
//
//   g = λ·(g + wd·x) ,  λ = lars_trust·‖x‖/(‖g‖ + wd·‖x‖)
//
// with the learning rate outside the momentum, as the job's optimiser has it (theirs is inside; the
// two differ only while the rate changes).
//
// training.clip_norm applies to what the exchange made of the mean, before LARS.
//
// One copy of model and optimiser stands for all machines: they hold the same bits. The all-reduce
// begins when the last machine has its gradient, and the next step when the last one has the mean.
#include "tools/lab/references/compression.h"
#include "tools/lab/references/formulas.h"
#include "tools/lab/references/reference.h"
#include "tools/lab/references/registry.h"

namespace gossipd::lab {

namespace {

class SyncSgd : public Reference {
 public:
  std::vector<Setting> settings() override {
    std::vector<Setting> settings;
    SettingTable table(settings);
    table.one_of("strategy.all_reduce", "", algorithm_, {"ring", "halving-doubling", "tree"},
                 "of none, fp16 and low-rank");
    table.one_of("strategy.compression", "", compression_,
                 {"none", "fp16", "int8", "top-k", "low-rank", "qsgd", "dgc"}, "of the gradients");
    table.number("strategy.share", "", "", share_, 1e-6, 1,
                 "top-k and dgc: the share of the entries that is sent");
    table.integer("strategy.levels", "", "", levels_, 1, 32767,
                  "qsgd: above zero; 7 are four bits a value");
    table.integer("strategy.bucket", "", "floats", bucket_, 1, 1 << 30,
                  "qsgd: values that share a scale");
    table.integer("strategy.rank", "", "", rank_, 1, 1024, "low-rank: of each matrix");
    table.boolean("strategy.scale_learning_rate", "", scale_,
                  "the learning rate times the number of machines");
    table.number("strategy.lars_trust", "", "", lars_trust_, 0, 1e6,
                 "LARS: a tensor's step by its own norm (the paper's: 0.001); 0 means off");
    return settings;
  }
  std::optional<std::string> mistake(const Job& job) const override {
    const bool dgc = compression_ == Compression::dgc;
    if (dgc && lars_trust_ > 0)
      return "strategy.compression = \"dgc\" has its momentum before the mean, where LARS has no"
             " formula: set strategy.lars_trust = 0 or choose another compression";
    if (dgc && job.optimizer.nesterov)
      return "strategy.compression = \"dgc\" corrects plain momentum: set job.optimizer.nesterov ="
             " false or choose another compression";
    if (dgc) return sgd_only(job, "strategy.compression = \"dgc\" corrects SGD's momentum");
    if (lars_trust_ > 0) return sgd_only(job, "strategy.lars_trust scales SGD's steps");
    return std::nullopt;
  }
  std::span<const float> model(std::size_t) override { return x_; }
  bool same_model_everywhere() const override { return true; }
  State state() const override {
    const std::uint64_t optimizer = compression_ == Compression::dgc ? 0 : optimizer_floats();
    return {0, optimizer + exchange_->node_floats()};
  }

 protected:
  void begin() override {
    x_ = initial();
    gradients_.resize(nodes());
    exchange_ = make_exchange();
    descent_ = job().optimizer;
    if (compression_ == Compression::dgc) descent_.momentum = 0;
    if (compression_ == Compression::dgc || lars_trust_ > 0) descent_.weight_decay = 0;
    next();
  }

 private:
  enum class Compression { none, fp16, int8, top_k, low_rank, qsgd, dgc };

  std::unique_ptr<MeanExchange> make_exchange() {
    const Send wires = [this](std::size_t from, std::size_t to, std::uint64_t bytes,
                              std::function<void()> arrived) {
      send(from, to, bytes, std::move(arrived));
    };
    switch (compression_) {
      case Compression::none: return make_exact_exchange({algorithm_, WireFloat::fp32}, wires);
      case Compression::fp16: return make_exact_exchange({algorithm_, WireFloat::fp16}, wires);
      case Compression::int8:
        return make_compressed_exchange(make_codec_compressor(ModelCodec({CodecId::int8})),
                                        Gather::two_phase, {}, wires);
      case Compression::top_k:
        return make_compressed_exchange(make_top_k_compressor([this] { return share_; }),
                                        Gather::all_gather, {}, wires);
      case Compression::qsgd:
        return make_compressed_exchange(make_qsgd_compressor(levels_, bucket_, setup().seed),
                                        Gather::all_gather, {.error = 0}, wires);
      case Compression::dgc:
        return make_compressed_exchange(make_top_k_compressor([this] { return dgc_share_now(); }),
                                        Gather::all_gather, {.momentum = job().optimizer.momentum},
                                        wires);
      case Compression::low_rank: break;
    }
    return make_low_rank_exchange(schema(), rank_, setup().seed, {algorithm_, WireFloat::fp32},
                                  wires);
  }

  void next() {
    if (!take(nodes() * job().batch)) return;
    rate_ = learning_rate() * (scale_ ? static_cast<double>(nodes()) : 1.0);
    for (std::size_t i = 0; i < nodes(); ++i)
      gradient(i, x_, job().batch, [this, i](Gradient result) {
        trained(result, 0);
        gradients_[i] = std::move(result.values);
        if (ready_ == 0) statistics_.assign(result.statistics.size(), 0.0f);
        for (std::size_t k = 0; k < statistics_.size(); ++k)
          statistics_[k] += result.statistics[k] / static_cast<float>(nodes());
        if (compression_ == Compression::dgc) add_weight_decay(gradients_[i]);
        if (++ready_ < nodes()) return;
        ready_ = 0;
        exchange_->run(gradients_, [this] { step(); });
      });
  }

  void step() {
    clip_to_norm(gradients_[0], job().training.clip_norm);
    if (lars_trust_ > 0) scale_by_layer(gradients_[0]);
    optimizer_step(descent_, rate_, x_, optimizer_, gradients_[0]);
    if (!statistics_.empty()) set_statistics(schema(), statistics_, x_);
    next();
  }

  [[nodiscard]] double dgc_share_now() const {
    if (!warming_up()) return share_;
    return dgc_share(share_, static_cast<double>(setup().recorder.samples()) /
                                 static_cast<double>(job().schedule.warmup_samples));
  }

  void add_weight_decay(Vector& gradient) const {
    const auto decay = static_cast<float>(job().optimizer.weight_decay);
    const std::size_t parameters = parameter_floats();
    for (std::size_t p = 0; p < parameters; ++p) gradient[p] += decay * x_[p];
  }

  void scale_by_layer(std::span<float> gradient) const {
    for (const Segment& segment : schema().segments())
      if (segment.kind == SegmentKind::parameter)
        lars_scale(lars_trust_, job().optimizer.weight_decay,
                   std::span(x_).subspan(segment.offset, segment.size),
                   gradient.subspan(segment.offset, segment.size));
  }

  AllReduce algorithm_ = AllReduce::ring;
  Compression compression_ = Compression::none;
  double share_ = 0.01;
  std::uint32_t rank_ = 4;
  std::uint32_t levels_ = 7;
  std::uint32_t bucket_ = 512;
  double lars_trust_ = 0;
  bool scale_ = false;
  Vector x_;
  Vector statistics_;      // mean of what the workers have made of them in this step
  OptimizerSpec descent_;  // the job's optimiser, less what happens before the exchange or in LARS
  OptimizerState optimizer_;
  Vectors gradients_;
  std::unique_ptr<MeanExchange> exchange_;
  std::size_t ready_ = 0;
  double rate_ = 0;  // of this step, by the schedule at its start
};

}  // namespace

std::unique_ptr<Strategy> make_sync_sgd() { return std::make_unique<SyncSgd>(); }

}  // namespace gossipd::lab
