// models/training/start_weights.h - the file of weights with which a job's model begins
// (`start_from`).
#pragma once

#include <optional>
#include <string>

#include "models/job/job.h"
#include "models/training/engine.h"

namespace gossipd {

// The engine's model begins with the weights of the file instead of the seed's. Codes
// "bad-weights", "io-error".
[[nodiscard]] std::optional<Error> start_with(const std::string& path, Engine& engine);

// The same of a job as Job::load() returns it and a model of its own, on the CPU, so that it can be
// looked at before there is an engine. Nothing where the job names no such file. Codes also
// "bad-model".
[[nodiscard]] std::optional<Error> check_start_from(const Job& job);

}  // namespace gossipd
