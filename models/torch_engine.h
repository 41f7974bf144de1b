// models/torch_engine.h - LibTorch behind engine.h, built from data that is already in memory.
//
// Trainer::create() reads files and keeps one engine; the lab has one engine for each of up to 64
// virtual nodes and shares the data between them. Torch stays in torch_engine.cpp.
#pragma once

#include <memory>

#include "models/batch_source.h"
#include "models/engine.h"

namespace gossipd {

// Also gives away the bare gradient, for methods that descend elsewhere (a parameter server, an all-reduce).
class GradientEngine : public Engine {
 public:
  // Sets the engine's model to `model` (P floats) and writes the gradient of the mean loss over `batch` samples from
  // `position` on into `out` (P floats; zero for what is not trained; no weight decay). Returns that loss. The optimiser's
  // state is left alone.
  virtual double gradient(std::span<const float> model, Samples position, std::uint32_t batch, std::span<float> out) = 0;
};

// `device` as in TrainerOptions. `test` may be empty: then evaluate() has nothing to say. Codes "no-device", "bad-config".
[[nodiscard]] Result<std::unique_ptr<GradientEngine>> make_torch_engine(const Job&, const std::string& device, int threads,
                                                                         BatchSource source, SampleSet test);

}  // namespace gossipd
