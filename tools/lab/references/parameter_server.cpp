#include "tools/lab/references/parameter_server.h"

#include "tools/lab/references/formulas.h"

namespace gossipd::lab {

std::vector<Setting> ParameterServer::server_settings() {
  std::vector<Setting> settings;
  SettingTable(settings).number("strategy.server_bps", "", "bit/s", server_bps_, 1e3, 1e15,
                                "the server's line, each way");
  return settings;
}

void ParameterServer::add_momentum(SettingTable& table, Momentum& momentum) {
  table.one_of("strategy.momentum", "", momentum, {"none", "shared", "per-worker"},
               "one momentum buffer (or AdamW state) at the server, one for each worker, or none");
}

void ParameterServer::begin() {
  MachineSpec machine;
  machine.uplink_bps = machine.downlink_bps = server_bps_;
  server_ = setup().world.add_machine(machine);
  model_ = initial();
  at_.assign(nodes(), initial());
  sent_version_.assign(nodes(), 0);
  prepare();
  begin_rounds();
}

void ParameterServer::begin_rounds() {
  for (std::size_t w = 0; w < nodes(); ++w)
    if (take(job().batch)) work(w, job().batch);
}

void ParameterServer::work(std::size_t worker, std::uint32_t batch) {
  gradient(worker, at_[worker], batch, [this, worker](Gradient result) {
    auto shared = std::make_shared<Gradient>(std::move(result));
    send(worker, server_, model_bytes(), [this, shared] { landed(std::move(*shared)); });
  });
}

void ParameterServer::landed(Gradient result) {
  const std::size_t worker = result.worker;
  const double gradient_age = age(worker), rate = learning_rate();
  trained(result, gradient_age);
  clip_to_norm(result.values, job().training.clip_norm);
  take_in({result.values, at_[worker], worker, result.loss, gradient_age, rate});
  keep_statistics(result);
  if (exhausted()) return;
  pull(worker, [this, worker] {
    if (take(job().batch)) work(worker, job().batch);
  });
}

void ParameterServer::keep_statistics(const Gradient& result) {
  if (!result.statistics.empty()) set_statistics(schema(), result.statistics, model_);
}

void ParameterServer::pull(std::size_t worker, Action arrived) {
  auto sent = std::make_shared<Vector>();
  reply(worker, learning_rate(), *sent);
  sent_version_[worker] = version_;
  send(server_, worker, model_bytes(), [this, worker, sent, arrived = std::move(arrived)] {
    at_[worker] = std::move(*sent);
    arrived();
  });
}

void ParameterServer::descend(Momentum momentum, std::size_t worker, double learning_rate,
                              Vector& gradient) {
  if (momentum == Momentum::none) {
    const float rate = static_cast<float>(learning_rate),
                decay = static_cast<float>(job().optimizer.weight_decay);
    for (std::size_t p = 0; p < model_.size(); ++p)
      model_[p] -= rate * (gradient[p] + decay * model_[p]);
    return;
  }
  optimizers_.resize(momentum == Momentum::shared ? 1 : nodes());
  OptimizerState& optimizer = optimizers_[momentum == Momentum::shared ? 0 : worker];
  optimizer_step(job().optimizer, learning_rate, model_, optimizer, gradient);
}

std::uint64_t ParameterServer::optimizer_floats(Momentum momentum) const {
  if (momentum == Momentum::none) return 0;
  return (momentum == Momentum::shared ? 1 : nodes()) * Reference::optimizer_floats();
}

std::optional<std::string> ParameterServer::mistake_of(Momentum momentum, const Job& job) {
  if (momentum != Momentum::none) return std::nullopt;
  return sgd_only(
      job,
      "strategy.momentum = \"none\" is plain SGD (shared and per-worker take the job's optimiser)");
}

}  // namespace gossipd::lab
