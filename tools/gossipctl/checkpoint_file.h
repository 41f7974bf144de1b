// tools/gossipctl/checkpoint_file.h - reads checkpoints as files, without a daemon.
//
// CHECKPOINT is a file or a state directory, which stands for the first of its final, best and
// current checkpoints that exists. TorchScript needs LibTorch, so the program gossip-export beside
// gossipctl writes it.
#pragma once

#include <string>

#include "tools/gossipctl/commands.h"

namespace gossipd {

struct CheckpointExport {
  std::string checkpoint;
  std::string to;  // .safetensors: only the weights; .pt, .pth, .ts: TorchScript
  // The file of a TorchScript job, unless it is in the checkpoint's state directory.
  std::string model;
};

ExitCode show_checkpoint(Console&, const std::string& checkpoint);
ExitCode export_checkpoint(Console&, const CheckpointExport&);

}  // namespace gossipd
