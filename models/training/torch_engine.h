// models/training/torch_engine.h - LibTorch behind engine.h, built from data that is already in
// memory.
//
// Trainer::create() reads files and keeps one engine; the lab has one engine for each of up to 64
// virtual nodes and shares the data between them. Torch stays in torch_engine.cpp.
#pragma once

#include <memory>

#include "models/data/batch_source.h"
#include "models/devices/cuda_runtime.h"
#include "models/training/engine.h"

namespace gossipd {

// Also gives away the bare gradient, for methods that descend elsewhere (a parameter server, an
// all-reduce).
class GradientEngine : public Engine {
 public:
  // Sets the engine's model to `model` (P floats) and writes the gradient of the mean loss over
  // `batch` samples from `position` on into `out` (P floats; zero for what is not trained; no
  // weight decay). Returns that loss. The optimiser's state is left alone.
  virtual double gradient(std::span<const float> model, Samples position, std::uint32_t batch,
                          std::span<float> out) = 0;
};

// Whether the file of a TorchScript job can be trained as the job says, as far as zeros of the
// data's shape tell: loads it and makes one pass on the CPU. Codes "bad-model",
// "device-failed": no memory.
[[nodiscard]] std::optional<Error> check_torchscript(const Job&, const std::string& model_file);

// The same of a job as Job::load() returns it; there is nothing to try in other kinds. Code
// "no-torch": this build has none, and the job needs it.
[[nodiscard]] std::optional<Error> check_model(const Job&);

// Whether this build and this machine have the device, as in TrainerOptions. Codes "no-device",
// "bad-config".
[[nodiscard]] std::optional<Error> check_device(const std::string& device);

// Why "auto" means the CPU on this machine, and what to do about it; `urgent` where there is a GPU.
// Empty text for any other choice, and where there is a GPU to train on.
[[nodiscard]] NoCuda why_on_cpu(const std::string& device);

// `device` as in TrainerOptions. `held_out` may be null: then evaluate() has nothing to say.
// `model_file`: of a TorchScript job. The model is tried with one batch. Codes "no-device",
// "bad-config", "bad-model" (says what does not fit), "device-failed" (no memory now).
[[nodiscard]] Result<std::unique_ptr<GradientEngine>> make_torch_engine(
    const Job&, const std::string& device, int threads, BatchSource source,
    std::shared_ptr<const DataSet> held_out, const std::string& model_file = {});

}  // namespace gossipd
