// What a daemon without LibTorch (gossipd-core) says where a job needs it. Everything else of
// trainer.h is plain C++.
#include "models/devices/runtime.h"
#include "models/training/torch_engine.h"
#include "models/training/trainer.h"

namespace gossipd {

namespace {

Error no_torch(const Job& job) {
  return Error{"no-torch", "job '" + job.name + "' trains a model of kind \"" +
                               std::string(name_of(job.model.kind)) +
                               "\" by LibTorch, which this gossipd is built without; install the "
                               "gossipd with LibTorch on this node, or train by a process of your "
                               "own: kind = \"external\" under [model]"};
}

}  // namespace

void prepare_training_process(int) { keep_freed_memory(); }

std::optional<Error> check_model(const Job& job) {
  if (job.model.kind == ModelSpec::Kind::external) return std::nullopt;
  return no_torch(job);
}

std::optional<Error> check_device(const std::string&) { return std::nullopt; }

// The job's own process chooses its device.
NoCuda why_on_cpu(const std::string&) { return {}; }

Result<std::unique_ptr<Trainer>> Trainer::create(const Job& job, const TrainerOptions&,
                                                 std::string*) {
  return no_torch(job);
}

}  // namespace gossipd
