// tools/lab/references/local_training.h - the common part of all rows without a server: every
// machine trains its own model.
//
// A step is the job's optimiser with the machine's own state (models/descent/optimizer.h). When the
// samples are spent and `strategy.final_average` is on, all models are averaged once more, with
// bytes counted: exactly, by a ring all-reduce, or in `strategy.final_codec`.
#pragma once

#include "core/codec/codec.h"
#include "core/exchange/settings.h"
#include "tools/lab/references/compression.h"
#include "tools/lab/references/reference.h"

namespace gossipd::lab {

class LocalTraining : public Reference {
 public:
  [[nodiscard]] std::span<const float> model(std::size_t machine) override {
    return machines_[machine].x;
  }
  [[nodiscard]] State state() const override { return {0, optimizer_floats()}; }

 protected:
  struct Machine {
    Vector x;
    OptimizerState optimizer;
    std::uint64_t steps = 0;
  };

  void begin() final;
  virtual void begin_training() = 0;
  void close() override;
  // Called when the last average is complete (or was not wanted).
  virtual void averaged() {}

  // One batch and one step on machine i; false when all samples have been taken.
  bool train(std::size_t i, Action then);
  // Its two halves, for rows that do something in between.
  bool compute(std::size_t i, std::function<void(Gradient&)> then);
  void descend(std::size_t i, Gradient&);

  [[nodiscard]] Machine& machine(std::size_t i) { return machines_[i]; }
  [[nodiscard]] Vector& x(std::size_t i) { return machines_[i].x; }
  [[nodiscard]] Send wires();
  [[nodiscard]] Codec codec() const { return codec_; }
  [[nodiscard]] ModelCodec model_codec() const { return {codec_, schema()}; }
  [[nodiscard]] bool final_average() const { return final_average_; }

  // The last average's exchange.
  [[nodiscard]] std::unique_ptr<MeanExchange> make_last_exchange(AllReduce);
  // strategy.codec, strategy.final_average and strategy.final_codec
  [[nodiscard]] std::vector<Setting> local_settings();
  void codec_default(Codec codec) { codec_ = codec; }

 private:
  std::vector<Machine> machines_;
  Codec codec_{CodecId::fp32};
  Codec final_codec_{CodecId::fp32};
  bool final_average_ = true;
  std::unique_ptr<MeanExchange> last_exchange_;
  Vectors last_values_;
};

// Machine i's model as machine j knows it. fp32 sends the model; any other codec sends the
// difference from what j knows (the initial model at first), so the next message carries what the
// quantiser lost. That is N·P floats on each machine that talks to all others.
class PairReplicas {
 public:
  PairReplicas(ModelCodec codec, const Vector& initial)
      : codec_(std::move(codec)), initial_(initial) {}
  struct Message {
    std::shared_ptr<const Vector> decoded;
    std::uint64_t bytes = 0;
  };
  // Encodes x for the message from i to j; `decoded` is what j has of i once it has arrived.
  [[nodiscard]] Message publish(std::size_t i, std::size_t j, const Vector& x);
  // Of one run of floats (a tensor).
  [[nodiscard]] Message publish(std::size_t i, std::size_t j, const Vector& x, Range range);
  // After i and j have moved towards each other by `gain` times the difference of what they have
  // published: their replicas move in the same way, so that no later difference repeats it
  // (core/exchange/EXCHANGE.md). Nothing with fp32.
  void contract(std::size_t i, std::size_t j, float gain);
  [[nodiscard]] std::uint64_t floats() const { return replicas_.size() * initial_.size(); }

 private:
  ModelCodec codec_;
  const Vector& initial_;
  std::map<std::pair<std::size_t, std::size_t>, Vector> replicas_;
};

// A random pairing of all nodes for this round, the same for all; of an odd number one is paired
// with itself.
[[nodiscard]] std::vector<std::size_t> random_pairs(std::size_t nodes, std::uint64_t seed,
                                                    std::uint64_t round);

// H steps on every machine, then all exchange their changes since the last round; ready machines
// wait.
class RoundTraining : public LocalTraining {
 public:
  [[nodiscard]] State state() const override;

 protected:
  enum class Transport { all_gather, two_phase };
  // H of the round about to begin
  [[nodiscard]] virtual std::uint64_t period() = 0;
  // Moves shared() by the mean of x_i − shared(), which is `change`. Batch-norm statistics are
  // averaged after that, whatever it makes of them.
  virtual void outer_step(const Vector& change) = 0;
  [[nodiscard]] virtual std::uint64_t outer_floats() const { return 0; }  // of its state
  // Whether a round's average is under way during the next one; codec fp32 only.
  [[nodiscard]] virtual bool overlaps() const { return false; }
  [[nodiscard]] virtual double error_decay() const { return 1.0; }

  void begin_training() final;
  void close() final {}  // the last round is the last average (see local_training.cpp)
  [[nodiscard]] Vector& shared() { return shared_; }
  [[nodiscard]] std::vector<Setting> round_settings();
  void transport_default(Transport transport) { transport_ = transport; }

 private:
  void begin_round();
  void go_on(std::size_t i);
  void exchange();
  void exchange_beside();

  Transport transport_ = Transport::two_phase;
  AllReduce algorithm_ = AllReduce::ring;
  std::unique_ptr<MeanExchange> each_, last_;  // of a round; the last average
  Vector shared_;                              // the common model after the last round
  Vectors changes_;
  std::uint64_t period_ = 0;
  std::vector<std::uint64_t> left_;  // steps of this round
  std::size_t ready_ = 0;
  // An average beside training: of the models as they were sent (both empty before the first).
  Vectors sent_, means_;
  bool under_way_ = false;
};

// For a row that averages with what it last heard of a neighbour, however old: nullopt or why not.
[[nodiscard]] std::optional<std::string> dense_only(Codec, const std::string& row);

inline constexpr const char* codec_help =
    "how models and differences are encoded: fp32, bf16, int8, int4, ternary, top_k or top_k:KEEP";

}  // namespace gossipd::lab
