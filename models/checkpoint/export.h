// models/checkpoint/export.h - a checkpoint as a TorchScript file, which runs wherever LibTorch or
// PyTorch does, without gossipd.
//
// A built-in model is traced with zeros of the data's shape, in evaluation mode; a TorchScript
// model is its own file with the checkpoint's weights. The batch may have any size, everything else
// is as the job's data are: a gpt takes `length` tokens (pad at the end: no token sees what follows
// it). What was written is loaded again and has to compute the same.
#pragma once

#include <filesystem>
#include <optional>

#include "models/files/weights.h"
#include "models/job/job.h"

namespace gossipd {

struct TorchScriptExport {
  Weights weights;  // of the job's model
  Job job;
  // of a TorchScript job: the file with the content that the job names
  std::string model_file;
  std::filesystem::path to;  // written whole or not at all
};

// Metadata of the weights go into the file's extra files, "gossipd/KEY". Codes "bad-model",
// "bad-weights", "io-error".
[[nodiscard]] std::optional<Error> export_torchscript(const TorchScriptExport&);

}  // namespace gossipd
