// tools/lab/references/ad_psgd.cpp - AD-PSGD: asynchronous SGD with atomic averaging of random
// pairs.
//
//   active machine i:  gradient g at x_i ; meanwhile with a random passive j:
//                      x_i, x_j ← ½·(x_i + x_j) ; then the job's optimiser on x_i with g
//   passive machine:   only the gradient and the step
//
// Lian et al., "Asynchronous Decentralized Parallel Stochastic Gradient Descent" (ICML 2018). As
// there the graph is bipartite, so that no exchange meets another: machines with even numbers are
// active, those with odd ones answer. Certain. An active machine's model does not change between
// sending it and the answer, so a pair's average is exact and the mean of all models stays. A
// passive machine averages at once, also while its gradient is computed. A codec other than fp32
// (ours): both move by half of the decoded difference, and so do their replicas of each other.
#include "core/base/random.h"
#include "tools/lab/references/local_training.h"
#include "tools/lab/references/registry.h"

namespace gossipd::lab {

namespace {

class AdPsgd : public LocalTraining {
 public:
  std::vector<Setting> settings() override {
    std::vector<Setting> settings = local_settings();
    SettingTable(settings).integer("strategy.period", "", "steps", period_, 1, 1'000'000,
                                   "iterations of an active machine for each averaging");
    return settings;
  }
  State state() const override {
    return {0, optimizer_floats() + (replicas_ ? replicas_->floats() / nodes() : 0)};
  }

 protected:
  void begin_training() override {
    replicas_ = std::make_unique<PairReplicas>(model_codec(), initial());
    for (std::size_t i = 0; i < nodes(); ++i) random_.emplace_back(setup().seed * 1'000'003 + i);
    for (std::size_t i = 0; i < nodes(); ++i) go_on(i);
  }

 private:
  void go_on(std::size_t i) {
    const bool averages = i % 2 == 0 && nodes() > 1 && machine(i).steps % period_ == 0;
    if (!averages) {
      train(i, [this, i] { go_on(i); });
      return;
    }
    // Both parts must end before the step.
    auto gradient = std::make_shared<Gradient>();
    auto parts = std::make_shared<int>(2);
    const auto part_done = [this, i, gradient, parts] {
      if (--*parts > 0) return;
      descend(i, *gradient);
      go_on(i);
    };
    const bool going = compute(i, [gradient, part_done](Gradient& result) {
      *gradient = std::move(result);
      part_done();
    });
    if (going) average(i, part_done);
  }

  void average(std::size_t i, Action done) {
    const std::size_t j = 2 * random_[i].below(nodes() / 2) + 1;
    const auto message = replicas_->publish(i, j, x(i));
    send(i, j, message.bytes, [this, i, j, active = message.decoded, done = std::move(done)] {
      const auto answer = replicas_->publish(j, i, x(j));
      move(x(j), *active, *answer.decoded);
      replicas_->contract(i, j, gain);
      send(j, i, answer.bytes, [this, i, active, passive = answer.decoded, done] {
        move(x(i), *passive, *active);
        done();
      });
    });
  }

  static constexpr float gain = 0.5f;

  // x += ½·(towards − from)
  void move(Vector& x, const Vector& towards, const Vector& from) {
    for (std::size_t p = 0; p < x.size(); ++p) x[p] += gain * (towards[p] - from[p]);
  }

  std::uint64_t period_ = 1;
  std::unique_ptr<PairReplicas> replicas_;
  std::vector<Random> random_;
};

}  // namespace

std::unique_ptr<Strategy> make_ad_psgd() { return std::make_unique<AdPsgd>(); }

}  // namespace gossipd::lab
