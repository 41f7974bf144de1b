// tools/lab/references/sync_sgd.cpp - synchronous SGD: every step is taken with the mean gradient
// of all machines, by an all-reduce.
//
//   g = mean_i g_i(x) ;  x: the job's optimiser on g, on every machine alike
//
// Compression: none; fp16 (rounded at every hop); int8 with error feedback, two-phase as in 1-bit
// Adam (Tang et al. 2021); top-k with error feedback, gathered by all (Aji and Heafield 2017, DGC
// without its extras); low-rank: PowerSGD (Vogels et al. 2019). Linear scaling of the rate with the
// number of machines: Goyal et al. 2017 (the warm-up is the job's). Certain but for our choice of
// collective for int8. One copy of model and optimiser stands for all machines: they hold the same
// bits. The all-reduce begins when the last machine has its gradient, and the next step when the
// last one has the mean.
#include "tools/lab/references/compression.h"
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
                 {"none", "fp16", "int8", "top-k", "low-rank"}, "of the gradients");
    table.number("strategy.share", "", "", share_, 1e-6, 1,
                 "top-k: the share of the entries that is sent");
    table.integer("strategy.rank", "", "", rank_, 1, 1024, "low-rank: of each matrix");
    table.boolean("strategy.scale_learning_rate", "", scale_,
                  "the learning rate times the number of machines");
    return settings;
  }
  std::span<const float> model(std::size_t) override { return x_; }
  bool same_model_everywhere() const override { return true; }
  State state() const override { return {0, optimizer_floats() + exchange_->node_floats()}; }

 protected:
  void begin() override {
    x_ = initial();
    gradients_.resize(nodes());
    exchange_ = make_exchange();
    next();
  }

 private:
  enum class Compression { none, fp16, int8, top_k, low_rank };

  std::unique_ptr<MeanExchange> make_exchange() {
    const Send wires = [this](std::size_t from, std::size_t to, std::uint64_t bytes,
                              std::function<void()> arrived) {
      send(from, to, bytes, std::move(arrived));
    };
    switch (compression_) {
      case Compression::none: return make_exact_exchange({algorithm_, WireFloat::fp32}, wires);
      case Compression::fp16: return make_exact_exchange({algorithm_, WireFloat::fp16}, wires);
      case Compression::int8:
        return make_compressed_exchange(make_codec_compressor({CodecId::int8}), Gather::two_phase,
                                        1.0, wires);
      case Compression::top_k:
        return make_compressed_exchange(make_top_k_compressor(share_), Gather::all_gather, 1.0,
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
        if (++ready_ < nodes()) return;
        ready_ = 0;
        exchange_->run(gradients_, [this] { step(); });
      });
  }

  void step() {
    optimizer_step(job().optimizer, rate_, x_, optimizer_, gradients_[0]);
    next();
  }

  AllReduce algorithm_ = AllReduce::ring;
  Compression compression_ = Compression::none;
  double share_ = 0.01;
  std::uint32_t rank_ = 4;
  bool scale_ = false;
  Vector x_;
  OptimizerState optimizer_;
  Vectors gradients_;
  std::unique_ptr<MeanExchange> exchange_;
  std::size_t ready_ = 0;
  double rate_ = 0;  // of this step, by the schedule at its start
};

}  // namespace

std::unique_ptr<Strategy> make_sync_sgd() { return std::make_unique<SyncSgd>(); }

}  // namespace gossipd::lab
