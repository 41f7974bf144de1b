// tools/lab/references/noloco.cpp - NoLoCo: DiLoCo without an all-reduce, by random pairs.
//
//   after H steps, with this round's partner:
//     m = α·m + β·mean(Δ) + β·(mean(x_old) − x_old) ;  x = x_old + m
//     Δ = (x after H steps) − x_old, means over the pair ;  α = 0.5, β = 0.7, H = 50
//
// Kolehmainen et al., "NoLoCo: No-all-reduce Low Communication Training Method for Large Models"
// (2025), as in the authors' code. Both means have the same factor and Δ + x_old is the trained
// model: one model (4·P bytes) goes each way. A machine waits for its partner only; with an odd
// number of machines one of them is its own. Pairs are drawn per round, the same for all. Who waits
// for a partner that has run out of samples is its own partner at the end (our reading). A codec
// other than fp32 (ours): the mean is x plus half of the decoded difference, and the replicas move
// by what the outer step makes of it, β/2. Batch-norm statistics are averaged, without momentum
// (ours: a step beyond the mean could make a variance negative).
#include "tools/lab/references/local_training.h"
#include "tools/lab/references/registry.h"

namespace gossipd::lab {

namespace {

class NoLoco : public LocalTraining {
 public:
  std::vector<Setting> settings() override {
    std::vector<Setting> settings = local_settings();
    SettingTable table(settings);
    table.integer("strategy.period", "", "steps", period_, 1, 1'000'000, "H, steps of a round");
    table.number("strategy.outer_momentum", "", "", alpha_, 0, 1, "alpha");
    table.number("strategy.outer_rate", "", "", beta_, 0, 10, "beta");
    return settings;
  }
  // With outer momentum, the model before the round, and what a codec keeps.
  State state() const override {
    return {0, optimizer_floats() + 2 * floats() + (replicas_ ? replicas_->floats() / nodes() : 0)};
  }

 protected:
  void begin_training() override {
    replicas_ = std::make_unique<PairReplicas>(model_codec(), initial());
    places_.assign(nodes(), {initial(), Vector(floats()), {}, {}, 0, 0, false});
    for (std::size_t i = 0; i < nodes(); ++i) go_on(i);
  }

  void close() override {
    for (std::size_t i = 0; i < nodes(); ++i)
      if (places_[i].waits) outer_step(i, x(i), x(i));
    LocalTraining::close();
  }

 private:
  struct Place {
    Vector old, m;
    std::shared_ptr<const Vector> said;  // what the partner has of this machine, this round
    // by round: a partner may be ahead
    std::map<std::uint64_t, std::shared_ptr<const Vector>> inbox;
    std::uint64_t round = 0;
    std::uint64_t steps = 0;  // of this round
    bool waits = false;
  };

  void go_on(std::size_t i) {
    Place& place = places_[i];
    if (place.steps < period_ && train(i, [this, i] { go_on(i); })) {
      ++place.steps;
      return;
    }
    if (place.steps == 0) return;  // no samples left and nothing new to send
    const std::size_t partner = random_pairs(nodes(), setup().seed, place.round)[i];
    if (partner == i) return end_round(i, x(i), x(i));
    const auto message = replicas_->publish(i, partner, x(i));
    place.waits = true;
    place.said = message.decoded;
    const Place& other = places_[partner];
    if (other.waits && other.round == place.round)  // both have published
      replicas_->contract(i, partner, 0.5f * static_cast<float>(beta_));
    send(i, partner, message.bytes, [this, partner, round = place.round, theirs = message.decoded] {
      places_[partner].inbox[round] = theirs;
      look(partner);
    });
    look(i);
  }

  void look(std::size_t i) {
    Place& place = places_[i];
    const auto arrived = place.inbox.find(place.round);
    if (!place.waits || arrived == place.inbox.end()) return;
    const auto theirs = arrived->second;
    place.inbox.erase(arrived);
    end_round(i, *theirs, *place.said);
  }

  void end_round(std::size_t i, const Vector& theirs, const Vector& said) {
    outer_step(i, theirs, said);
    ++places_[i].round;
    places_[i].steps = 0;
    go_on(i);
  }

  void outer_step(std::size_t i, const Vector& theirs, const Vector& said) {
    Place& place = places_[i];
    place.waits = false;
    const float alpha = static_cast<float>(alpha_), beta = static_cast<float>(beta_);
    Vector means(floats());
    for (std::size_t p = 0; p < floats(); ++p) {
      const float mean = x(i)[p] + 0.5f * (theirs[p] - said[p]);
      place.m[p] = alpha * place.m[p] + beta * (mean - place.old[p]);
      x(i)[p] = place.old[p] + place.m[p];
      means[p] = mean;
    }
    set_statistics(schema(), statistics_of(schema(), means), x(i));
    place.old = x(i);
  }

  std::uint64_t period_ = 50;
  double alpha_ = 0.5, beta_ = 0.7;
  std::unique_ptr<PairReplicas> replicas_;
  std::vector<Place> places_;
};

}  // namespace

std::unique_ptr<Strategy> make_noloco() { return std::make_unique<NoLoco>(); }

}  // namespace gossipd::lab
