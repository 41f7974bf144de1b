// tools/lab/references/asgd.cpp - asynchronous SGD: the server applies every gradient as it comes.
//
//   g += wd·x ;  v = β·v + g ;  x −= η·v
//     (v: one for all, or one for each worker); AdamW: the same with its state
//
// Dean et al., "Large Scale Distributed Deep Networks" (2012), with the job's momentum and
// schedule. Certain. With `per-worker`, v is that of the worker whose gradient it is.
#include "tools/lab/references/parameter_server.h"
#include "tools/lab/references/registry.h"

namespace gossipd::lab {

namespace {

class Asgd : public ParameterServer {
 public:
  std::vector<Setting> settings() override {
    std::vector<Setting> settings = server_settings();
    SettingTable table(settings);
    add_momentum(table, momentum_);
    return settings;
  }
  std::optional<std::string> mistake(const Job& job) const override {
    return mistake_of(momentum_, job);
  }
  State state() const override { return {optimizer_floats(momentum_), 0}; }

 protected:
  void take_in(const Landing& landing) override {
    descend(momentum_, landing.worker, landing.learning_rate, landing.values);
    updated();
  }

 private:
  Momentum momentum_ = Momentum::shared;
};

}  // namespace

std::unique_ptr<Strategy> make_asgd() { return std::make_unique<Asgd>(); }

}  // namespace gossipd::lab
