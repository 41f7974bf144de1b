// tools/lab/references/gossip_sgd.cpp - gossiping SGD and its adaptive kind: a machine sends its
// model to a random one, which averages it in.
//
//   gossip-sgd:       after every `period` steps of machine i, for a random j ≠ i:
//                     x_j ← ½·(x_i + x_j)
//   adaptive-gossip:  the same after a step with ‖x_i − x_last‖ > θ·‖x_last‖,
//                     x_last: x_i as sent last
//
// Jin et al., "How to scale distributed deep learning?" (2016), the pushing kind. Ho, Wu, Liu,
// "Adaptive Communication for Distributed Deep Learning" (CCGRID 2018), known to us from the
// abstract: the relative change of the whole model is our reading of "changed enough", and θ = 0.05
// ours. A sender goes on when its message has arrived (a blocking send): otherwise nothing would
// hold back a machine that makes messages faster than its wire takes them, and what arrives would
// be minutes old. No receiver waits: a message is averaged in at once, also while a gradient is
// computed.
#include "core/base/random.h"
#include "tools/lab/references/formulas.h"
#include "tools/lab/references/local_training.h"
#include "tools/lab/references/registry.h"

namespace gossipd::lab {

namespace {

class RandomPeer : public LocalTraining {
 public:
  std::vector<Setting> settings() override {
    std::vector<Setting> settings = local_settings();
    SettingTable table(settings);
    table.number("strategy.weight", "", "", weight_, 0, 1, "of what has arrived in the average");
    return settings;
  }
  std::optional<std::string> mistake(const Job&) const override {
    return dense_only(codec(), "a row that averages with a random peer");
  }
  State state() const override {
    return {0,
            optimizer_floats() + (replicas_ ? replicas_->floats() / nodes() : 0) + extra_floats()};
  }

 protected:
  // Whether i sends after this step.
  virtual bool speaks(std::size_t i) = 0;
  [[nodiscard]] virtual std::uint64_t extra_floats() const { return 0; }

  void begin_training() override {
    replicas_ = std::make_unique<PairReplicas>(model_codec(), initial());
    for (std::size_t i = 0; i < nodes(); ++i) random_.emplace_back(setup().seed * 1'000'003 + i);
    for (std::size_t i = 0; i < nodes(); ++i) go_on(i);
  }

 private:
  void go_on(std::size_t i) {
    train(i, [this, i] {
      if (nodes() > 1 && speaks(i)) return speak(i);
      go_on(i);
    });
  }

  void speak(std::size_t i) {
    std::size_t j = random_[i].below(nodes() - 1);
    if (j >= i) ++j;
    const auto message = replicas_->publish(i, j, x(i));
    send(i, j, message.bytes, [this, i, j, theirs = message.decoded] {
      mix(x(j), *theirs, static_cast<float>(weight_));
      go_on(i);
    });
  }

  double weight_ = 0.5;
  std::unique_ptr<PairReplicas> replicas_;
  std::vector<Random> random_;
};

class GossipSgd : public RandomPeer {
 public:
  std::vector<Setting> settings() override {
    std::vector<Setting> settings = RandomPeer::settings();
    SettingTable(settings).integer("strategy.period", "", "steps", period_, 1, 1'000'000,
                                   "steps between two messages of a machine");
    return settings;
  }

 protected:
  bool speaks(std::size_t i) override { return machine(i).steps % period_ == 0; }

 private:
  std::uint64_t period_ = 1;
};

class AdaptiveGossip : public RandomPeer {
 public:
  std::vector<Setting> settings() override {
    std::vector<Setting> settings = RandomPeer::settings();
    SettingTable(settings).number("strategy.threshold", "", "", threshold_, 0, 1e6,
                                  "relative change of the model that makes a machine send it");
    return settings;
  }

 protected:
  void begin_training() override {
    last_.assign(nodes(), initial());
    RandomPeer::begin_training();
  }
  bool speaks(std::size_t i) override {
    double change = 0, size = 0;
    for (std::size_t p = 0; p < floats(); ++p) {
      const double d = double{x(i)[p]} - last_[i][p];
      change += d * d;
      size += double{last_[i][p]} * last_[i][p];
    }
    if (!(change > threshold_ * threshold_ * size)) return false;
    last_[i] = x(i);
    return true;
  }
  std::uint64_t extra_floats() const override { return floats(); }

 private:
  double threshold_ = 0.05;
  Vectors last_;
};

}  // namespace

std::unique_ptr<Strategy> make_gossip_sgd() { return std::make_unique<GossipSgd>(); }
std::unique_ptr<Strategy> make_adaptive_gossip() { return std::make_unique<AdaptiveGossip>(); }

}  // namespace gossipd::lab
