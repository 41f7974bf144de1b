// tools/lab/references/easgd.cpp - EASGD: workers train by themselves, a spring ties each of them
// to the server's centre.
//
//   every tau steps of worker i:  d = α·(x_i − x̃) ;  x_i −= d ;  x̃ += d
//     (otherwise x_i: the job's optimiser)
//
// Zhang, Choromanska, LeCun, "Deep learning with Elastic Averaging SGD" (2015), the asynchronous
// algorithm: α = 0.9/N, tau = 10 (with the job's momentum on the worker it is their EAMSGD);
// certain. The worker sends x_i, waits, and is sent d: 4·P bytes each way, or by `strategy.codec`:
// then x_i as a difference to what the server was told before, and d with error feedback (ours).
// Asked for its model the method answers with the centre; there is no last average.
#include "tools/lab/references/formulas.h"
#include "tools/lab/references/local_training.h"
#include "tools/lab/references/registry.h"

namespace gossipd::lab {

namespace {

class Easgd : public LocalTraining {
 public:
  std::vector<Setting> settings() override {
    std::vector<Setting> settings;
    SettingTable table(settings);
    table.number("strategy.server_bps", "", "bit/s", server_bps_, 1e3, 1e15,
                 "the server's line, each way");
    table.integer("strategy.tau", "", "steps", tau_, 1, 1'000'000,
                  "steps between two exchanges of a worker");
    table.number("strategy.alpha", "", "", alpha_, 0, 1,
                 "how far the elastic pulls; 0 means the paper's 0.9 / N");
    add_codec(table, "strategy.codec", codec_, codec_help);
    return settings;
  }
  std::optional<std::string> mistake(const Job&) const override {
    return dense_only(codec_, "easgd");
  }
  std::span<const float> model(std::size_t) override { return centre_; }
  bool same_model_everywhere() const override { return true; }
  State state() const override {
    const bool lossy = codec_.id != CodecId::fp32;
    return {lossy ? 2 * nodes() * floats() : 0, optimizer_floats() + (lossy ? floats() : 0)};
  }

 protected:
  void begin_training() override {
    MachineSpec machine;
    machine.uplink_bps = machine.downlink_bps = server_bps_;
    server_ = setup().world.add_machine(machine);
    centre_ = initial();
    replicas_ = std::make_unique<PairReplicas>(ModelCodec(codec_, schema()), initial());
    compressor_ = make_codec_compressor({codec_, schema()});
    owed_.assign(nodes(), Vector(floats()));
    for (std::size_t i = 0; i < nodes(); ++i) go_on(i);
  }
  void close() override {}

 private:
  void go_on(std::size_t i) {
    train(i, [this, i] {
      if (machine(i).steps % tau_ == 0 || exhausted())
        exchange(i);
      else
        go_on(i);
    });
  }

  void exchange(std::size_t i) {
    const auto message = replicas_->publish(i, server_, x(i));
    send(i, server_, message.bytes, [this, i, sent = message.decoded] {
      const double alpha = alpha_ > 0 ? alpha_ : 0.9 / static_cast<double>(nodes());
      Vector d(floats());
      elastic_difference(static_cast<float>(alpha), *sent, centre_, d);
      std::uint64_t bytes = model_bytes();
      auto pull = std::make_shared<Vector>(d);
      if (codec_.id != CodecId::fp32) {  // d plus the errors of earlier pulls
        for (std::size_t p = 0; p < floats(); ++p) owed_[i][p] += d[p];
        bytes = compressor_->compress(0, owed_[i], *pull);
        for (std::size_t p = 0; p < floats(); ++p) owed_[i][p] -= (*pull)[p];
      }
      for (std::size_t p = 0; p < floats(); ++p) centre_[p] += (*pull)[p];
      send(server_, i, bytes, [this, i, pull] {
        for (std::size_t p = 0; p < floats(); ++p) x(i)[p] -= (*pull)[p];
        go_on(i);
      });
    });
  }

  double server_bps_ = 1e11;
  std::uint64_t tau_ = 10;
  double alpha_ = 0;
  Codec codec_{CodecId::fp32};
  std::size_t server_ = 0;
  Vector centre_;
  std::unique_ptr<PairReplicas> replicas_;
  std::unique_ptr<Compressor> compressor_;
  Vectors owed_;  // the codec's errors in the pulls of each worker
};

}  // namespace

std::unique_ptr<Strategy> make_easgd() { return std::make_unique<Easgd>(); }

}  // namespace gossipd::lab
