// gossip-export - `gossipctl checkpoint export` for TorchScript, a separate program because it
// needs LibTorch.
//
//     gossip-export CHECKPOINT OUT [MODEL]     MODEL: the TorchScript file of a job that has one
//
// Exit codes are gossipctl's: 0 ok, 1 failed, 2 usage.
#include <cstdio>
#include <string>

#include "models/checkpoint/export.h"

namespace {

using namespace gossipd;

int fail(const std::string& text) {
  std::fprintf(stderr, "gossip-export: %s\n", text.c_str());
  return 1;
}

// The job's file, which gossipd keeps near the checkpoint: STATE/files/HASH beside
// STATE/checkpoints/NAME, or beside STATE/jobs/N-HASH/checkpoints/NAME of a job before.
std::string kept_model(const std::filesystem::path& checkpoint, const Job& job) {
  const auto in = [&job](const std::filesystem::path& state) {
    return state / "files" / to_hex(job.model.content);
  };
  const auto above = std::filesystem::absolute(checkpoint).parent_path().parent_path();
  const auto former = in(above.parent_path().parent_path());
  std::error_code unknown;
  const bool is_former =
      !std::filesystem::exists(in(above), unknown) && std::filesystem::exists(former, unknown);
  return (is_former ? former : in(above)).string();
}

int run(const std::filesystem::path& checkpoint, const std::filesystem::path& to,
        const std::string& model) {
  auto weights = read_weights(checkpoint);
  if (!weights) return fail(weights.error().text);
  const auto text = weights->metadata.find("job");
  if (text == weights->metadata.end())
    return fail(checkpoint.string() +
                ": does not say what job it belongs to; export a checkpoint that this version of "
                "gossipd wrote");
  auto job = Job::parse(text->second, checkpoint.string() + " (its job)");
  if (!job) return fail(job.error().text);
  if (job->model.kind == ModelSpec::Kind::external)
    return fail(checkpoint.string() +
                ": the model of its job is the script's (kind = \"external\"), so only that can "
                "write it as TorchScript; export to a .safetensors file, or read the checkpoint in "
                "Python: gossipd.load(FILE).state_dict()");
  const std::string model_file = model.empty() ? kept_model(checkpoint, *job) : model;
  if (const auto error = export_torchscript({std::move(*weights), std::move(*job), model_file, to}))
    return fail(error->text);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3 || argc > 4) {
    std::fprintf(stderr, "usage: gossip-export CHECKPOINT OUT [MODEL]\n");
    return 2;
  }
  return run(argv[1], argv[2], argc == 4 ? argv[3] : "");
}
