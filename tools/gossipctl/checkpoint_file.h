// tools/gossipctl/checkpoint_file.h - looks at checkpoints as files, without asking any daemon.
//
// CHECKPOINT is a file, or a state directory: then its final, best or current checkpoint, the first
// that is there. TorchScript needs LibTorch, so that part is done by the program gossip-export,
// which lies beside gossipctl.
#pragma once

#include <string>

#include "tools/gossipctl/commands.h"

namespace gossipd {

struct CheckpointExport {
  std::string checkpoint;
  std::string to;  // .safetensors: the weights alone; .pt, .pth, .ts: TorchScript
  // of a TorchScript job, when it does not lie in the state directory of the checkpoint
  std::string model;
};

ExitCode show_checkpoint(Console&, const std::string& checkpoint);
ExitCode export_checkpoint(Console&, const CheckpointExport&);

}  // namespace gossipd
