// tools/lab/references/eventgrad.cpp - EventGraD: a tensor goes to both ring neighbours when its
// norm has moved by a threshold.
//
//   each pass of machine i: gradient at x ;  for each tensor t:
//     θ_t *= horizon ;  send if |‖x_t‖ − ‖x_t‖ as last sent| ≥ θ_t or pass < 30
//     when sent: θ_t = mean of the last two slopes,
//                slope = |change of the norm| / passes since the last sending
//     x_t ← (x_t + left_t + right_t) / 3     with the neighbours' last tensors
//   then the job's optimiser with that gradient
//
// Ghosh, Aravena, Gupta, "EventGraD: Event-triggered communication in parallel machine learning"
// (2022); rule, history of two and warm-up of 30 passes as in the authors' code, which starts the
// neighbours' tensors at zero: here at the initial model. horizon 0.95 and the codec are ours. With
// a constant threshold θ_t never changes. Two machines have one neighbour, that counts once.
#include <cmath>

#include "tools/lab/references/local_training.h"
#include "tools/lab/references/registry.h"

namespace gossipd::lab {

namespace {

class EventGrad : public LocalTraining {
 public:
  std::vector<Setting> settings() override {
    std::vector<Setting> settings = local_settings();
    SettingTable table(settings);
    table.one_of("strategy.threshold_kind", "", kind_, {"adaptive", "constant"},
                 "from the norm's slope, or the same for ever");
    table.number("strategy.horizon", "", "", horizon_, 0, 10,
                 "adaptive: the threshold is multiplied by this in every pass");
    table.number("strategy.threshold", "", "", constant_, 0, 1e6,
                 "constant: change of a tensor's norm that makes a machine send it");
    table.integer("strategy.warmup", "", "passes", warmup_, 0, 1'000'000,
                  "everything is sent in the first passes");
    return settings;
  }
  std::optional<std::string> mistake(const Job&) const override {
    return dense_only(codec(), "eventgrad");
  }
  // With the neighbours' tensors, and what a codec keeps.
  State state() const override {
    return {0, optimizer_floats() + 2 * floats() + (replicas_ ? replicas_->floats() / nodes() : 0)};
  }

 protected:
  void begin_training() override {
    replicas_ = std::make_unique<PairReplicas>(model_codec(), initial());
    tensors_.assign(nodes(), std::vector<Tensor>(schema().segments().size()));
    for (std::size_t i = 0; i < nodes(); ++i) {
      std::vector<std::size_t> around = {(i + nodes() - 1) % nodes(), (i + 1) % nodes()};
      if (nodes() <= 2) around.resize(nodes() - 1);
      neighbours_.push_back(std::move(around));
      heard_.emplace_back(neighbours_[i].size(), initial());
    }
    for (std::size_t i = 0; i < nodes(); ++i) go_on(i);
  }

 private:
  enum class Kind { adaptive, constant };
  struct Tensor {
    double threshold = 0;
    double last_norm = 0;
    std::uint64_t last_pass = 0;
    double slope_before = 0;
  };

  void go_on(std::size_t i) {
    compute(i, [this, i](Gradient& gradient) {
      const auto& segments = schema().segments();
      for (std::size_t t = 0; t < segments.size(); ++t) {
        const Range range{segments[t].offset, segments[t].offset + segments[t].size};
        if (event(i, t, range)) speak(i, range);
      }
      average(i);
      descend(i, gradient);
      go_on(i);
    });
  }

  bool event(std::size_t i, std::size_t t, Range range) {
    Tensor& tensor = tensors_[i][t];
    const std::uint64_t pass = machine(i).steps + 1;
    double square = 0;
    for (const float value : range.of(x(i))) square += double{value} * value;
    const double norm = std::sqrt(square), moved = std::abs(norm - tensor.last_norm);
    tensor.threshold = kind_ == Kind::adaptive ? tensor.threshold * horizon_ : constant_;
    if (moved < tensor.threshold && pass >= warmup_) return false;
    const double slope = moved / static_cast<double>(pass - tensor.last_pass);
    tensor.threshold = 0.5 * (tensor.slope_before + slope);
    tensor.slope_before = slope;
    tensor.last_norm = norm;
    tensor.last_pass = pass;
    return true;
  }

  void speak(std::size_t i, Range range) {
    for (const std::size_t j : neighbours_[i]) {
      const auto message = replicas_->publish(i, j, x(i), range);
      send(i, j, message.bytes, [this, i, j, range, values = message.decoded] {
        for (std::size_t k = 0; k < neighbours_[j].size(); ++k)
          if (neighbours_[j][k] == i) std::ranges::copy(*values, range.of(heard_[j][k]).begin());
      });
    }
  }

  void average(std::size_t i) {
    const float share = 1.0f / static_cast<float>(1 + heard_[i].size());
    for (std::size_t p = 0; p < floats(); ++p) {
      float sum = x(i)[p];
      for (const Vector& neighbour : heard_[i]) sum += neighbour[p];
      x(i)[p] = sum * share;
    }
  }

  Kind kind_ = Kind::adaptive;
  double horizon_ = 0.95, constant_ = 0.01;
  std::uint64_t warmup_ = 30;
  std::unique_ptr<PairReplicas> replicas_;
  std::vector<std::vector<Tensor>> tensors_;          // [machine][tensor]
  std::vector<std::vector<std::size_t>> neighbours_;  // of each machine
  std::vector<Vectors> heard_;                        // [machine][neighbour]
};

}  // namespace

std::unique_ptr<Strategy> make_eventgrad() { return std::make_unique<EventGrad>(); }

}  // namespace gossipd::lab
