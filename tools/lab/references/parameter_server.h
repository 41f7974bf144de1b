// tools/lab/references/parameter_server.h - the loop of all rows with one machine that owns the
// model.
//
// A worker computes a gradient at the model it received and pushes it (4·P bytes); the server
// applies it and replies with a model (4·P bytes). Workers do not wait for each other. The server
// is a separate machine with a wide line unless `strategy.server_bps` says otherwise; its
// arithmetic takes no time. The server adds weight decay to its model, as an optimiser there would.
#pragma once

#include "tools/lab/references/reference.h"

namespace gossipd::lab {

class ParameterServer : public Reference {
 public:
  [[nodiscard]] std::span<const float> model(std::size_t) override { return model_; }
  [[nodiscard]] bool same_model_everywhere() const override { return true; }

 protected:
  // A gradient that has reached the server. The row may change `values`.
  struct Landing {
    Vector& values;
    const Vector& taken_at;  // the model it was computed at
    std::size_t worker = 0;
    double loss = 0;
    double age = 0;  // updates of the server's model since it sent `taken_at`
    double learning_rate = 0;
  };
  enum class Momentum { none, shared, per_worker };

  // Buffers, once floats() and nodes() are known.
  virtual void prepare() {}
  // Changes model_ and reports it by updated().
  virtual void take_in(const Landing&) = 0;
  // What the server sends to `worker`.
  virtual void reply(std::size_t /*worker*/, double /*learning_rate*/, Vector& out) {
    out = model_;
  }

  void begin() final;
  virtual void begin_rounds();                         // the first gradient of every worker
  void work(std::size_t worker, std::uint32_t batch);  // then lands
  virtual void landed(Gradient gradient);
  void pull(std::size_t worker, Action arrived);  // reply() travels to the worker
  void updated() { ++version_; }
  [[nodiscard]] double age(std::size_t worker) const {
    return static_cast<double>(version_ - sent_version_[worker]);
  }
  [[nodiscard]] std::size_t server() const { return server_; }

  // model_ by one step of the job's optimiser; optimizers_ are made as the first gradient comes.
  void descend(Momentum, std::size_t worker, double learning_rate, Vector& gradient);
  [[nodiscard]] std::uint64_t optimizer_floats(Momentum) const;
  // Batch-norm statistics: as the last worker left them.
  void keep_statistics(const Gradient&);
  // Without momentum there is no AdamW.
  [[nodiscard]] static std::optional<std::string> mistake_of(Momentum, const Job&);

  [[nodiscard]] std::vector<Setting> server_settings();
  static void add_momentum(SettingTable&, Momentum&);

  Vector model_;

 private:
  double server_bps_ = 1e11;
  std::size_t server_ = 0;
  std::uint64_t version_ = 0;
  std::vector<std::uint64_t> sent_version_;
  std::vector<Vector> at_;                  // on each worker
  std::vector<OptimizerState> optimizers_;  // one, or one for each worker
};

}  // namespace gossipd::lab
