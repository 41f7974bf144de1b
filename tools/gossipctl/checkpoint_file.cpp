#include "tools/gossipctl/checkpoint_file.h"

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "models/checkpoint/checkpoint.h"
#include "models/files/weights.h"
#include "net/child_process.h"
#include "tools/gossipctl/table.h"

namespace gossipd {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

ExitCode fail(Console& console, const Failure& failure) {
  print_failure(console.err, failure);
  return failure.code;
}

ExitCode fail(Console& console, const Error& error) {
  return fail(console,
              {error.code == "not-found" ? ExitCode::not_found : ExitCode::failed, error.text, "",
               "CHECKPOINT is a file, or a node's state directory, whose checkpoints/ has "
               "others where one is damaged: current, best, final"});
}

// Own steps before it; 0: the file does not say, or cannot be read.
unsigned long long step_of(const fs::path& file) {
  const auto metadata = read_checkpoint_metadata(file);
  const auto step = metadata ? metadata->find("step") : Metadata::const_iterator{};
  if (!metadata || step == metadata->end()) return 0;
  return std::strtoull(step->second.c_str(), nullptr, 10);
}

// Of a node's checkpoints the final one, unless the job was extended since and `current` has gone
// on from it; without it the best, or else the current one.
fs::path resolve(const std::string& checkpoint) {
  std::error_code error;
  if (!fs::is_directory(checkpoint, error)) return checkpoint;
  for (const fs::path& directory : {fs::path(checkpoint) / "checkpoints", fs::path(checkpoint)}) {
    const auto path_of = [&](const std::string& which) {
      return directory / (which + ".safetensors");
    };
    if (fs::exists(path_of("final"), error) && fs::exists(path_of("current"), error) &&
        step_of(path_of("current")) > step_of(path_of("final")))
      return path_of("current");
    for (const char* which : {"final", "best", "current"})
      if (fs::exists(path_of(which), error)) return path_of(which);
  }
  return fs::path(checkpoint) / "checkpoints/final.safetensors";  // does not exist
}

std::uint64_t count_of(const std::vector<std::int64_t>& shape) {
  std::uint64_t count = 1;
  for (const std::int64_t extent : shape) count *= static_cast<std::uint64_t>(extent);
  return count;
}

std::uint64_t floats_of(const Weights& weights) {
  std::uint64_t floats = 0;
  for (const auto& [name, tensor] : weights.tensors) floats += count_of(tensor.shape);
  return floats;
}

Json as_json(const Weights& weights) {
  Json tensors = Json::array();
  for (const auto& [name, tensor] : weights.tensors)
    tensors.push_back({{"name", name}, {"shape", tensor.shape}});
  return {{"path", weights.path},
          {"floats", floats_of(weights)},
          {"metadata", weights.metadata},
          {"tensors", tensors}};
}

bool is_torchscript(const fs::path& to) {
  const std::string extension = to.extension().string();
  return extension == ".pt" || extension == ".pth" || extension == ".ts";
}

// Whether a node may have to resume from the file that would be replaced.
bool is_checkpoint_of_a_node(const fs::path& from, const fs::path& to) {
  std::error_code error;
  if (!fs::exists(to, error)) return false;
  return fs::equivalent(from, to, error) ||
         fs::absolute(to, error).parent_path().filename() == "checkpoints";
}

// Messages of gossip-export go to our standard error; its exit code becomes ours.
ExitCode run_gossip_export(Console& console, const fs::path& checkpoint,
                           const CheckpointExport& what) {
  std::error_code error;
  const fs::path program =
      fs::read_symlink("/proc/self/exe", error).parent_path() / "gossip-export";
  if (error || !fs::exists(program, error))
    return fail(
        console,
        {ExitCode::failed, program.string() + " is missing, and TorchScript needs it",
         "gossipctl was built or installed without LibTorch",
         "export to a .safetensors file, or build gossip-export and put it beside gossipctl"});
  std::vector<std::string> arguments = {checkpoint.string(), what.to};
  if (!what.model.empty()) arguments.push_back(what.model);
  const ChildEnd end = ChildProcess().run({.program = program.string(), .arguments = arguments});
  if (end.refused != 0)
    return fail(console,
                {ExitCode::failed,
                 program.string() + " cannot be started: " + std::strerror(end.refused), "", ""});
  return end.succeeded() ? ExitCode::ok : ExitCode::failed;
}

}  // namespace

ExitCode show_checkpoint(Console& console, const std::string& checkpoint) {
  const auto weights = read_weights(resolve(checkpoint));
  if (!weights) return fail(console, weights.error());
  if (console.output == Output::json) {
    console.out << as_json(*weights).dump(-1, ' ', false,
                                          nlohmann::ordered_json::error_handler_t::replace)
                << '\n';
    return ExitCode::ok;
  }
  std::vector<std::vector<std::string>> rows = {
      {"file", weights->path},
      {"model", grouped(floats_of(*weights)) + " floats in " + grouped(weights->tensors.size()) +
                    " tensors"}};
  for (const auto& [key, value] : weights->metadata)
    if (key != "job") rows.push_back({key, value});
  print_labelled(console.out, rows);
  if (const auto job = weights->metadata.find("job"); job != weights->metadata.end())
    console.out << "\n" << job->second;
  return ExitCode::ok;
}

ExitCode export_checkpoint(Console& console, const CheckpointExport& what) {
  const fs::path from = resolve(what.checkpoint);
  const bool torchscript = is_torchscript(what.to);
  if (!torchscript && fs::path(what.to).extension() != ".safetensors")
    return fail(
        console,
        {ExitCode::usage,
         what.to + ": the file's extension decides what is written, and this one is unknown", "",
         "NAME.safetensors for only the weights, NAME.pt for TorchScript"});
  if (is_checkpoint_of_a_node(from, what.to))
    return fail(console, {ExitCode::usage,
                          what.to + " is a checkpoint that a node may resume from, and an export "
                                    "would replace it",
                          "", "name a new file in another folder"});
  if (torchscript) {
    std::error_code error;  // gossip-export would not tell this failure from others
    if (!fs::exists(from, error))
      if (const auto weights = read_weights(from); !weights) return fail(console, weights.error());
    if (const ExitCode code = run_gossip_export(console, from, what); code != ExitCode::ok)
      return code;
  } else {
    const auto weights = read_weights(from);
    if (!weights) return fail(console, weights.error());
    if (const auto error = write_weights(what.to, *weights))
      return fail(console, {ExitCode::failed, error->text, "",
                            "a folder that exists and has room for the weights"});
  }
  console.out << what.to << '\n';
  console.err << "from " << from.string() << '\n';
  return ExitCode::ok;
}

}  // namespace gossipd
