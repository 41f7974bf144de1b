#include "tools/gossipctl/checkpoint_file.h"

#include <sys/wait.h>

#include <csignal>
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

// Whether a node may have to resume from the file that would be replaced, by whatever way it is
// named.
bool is_checkpoint_of_a_node(const fs::path& from, const fs::path& to) {
  std::error_code error;
  if (!fs::exists(to, error)) return false;
  const auto lies_with_them = [&error](const fs::path& folder) {
    return fs::weakly_canonical(folder, error).filename() == "checkpoints";
  };
  return fs::equivalent(from, to, error) || lies_with_them(fs::absolute(to, error).parent_path()) ||
         lies_with_them(fs::canonical(to, error).parent_path());
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
  if (!WIFSIGNALED(end.status)) return end.succeeded() ? ExitCode::ok : ExitCode::failed;
  fs::remove(what.to + ".part", error);
  const int number = WTERMSIG(end.status);
  const char* const name = ::sigabbrev_np(number);
  return fail(console, {ExitCode::failed,
                        "gossip-export was ended by SIG" +
                            (name != nullptr ? name : std::to_string(number)) + ", and " + what.to +
                            " is not written",
                        number == SIGKILL ? "there was not enough memory for the model" : "",
                        number == SIGKILL ? "free memory, or export to a .safetensors file" : ""});
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
  std::error_code error;
  if (!what.model.empty() && fs::equivalent(what.model, what.to, error))
    return fail(console, {ExitCode::usage,
                          what.to + " is the file of --model, and an export would replace it", "",
                          "name another file for the export"});
  if (torchscript) {
    // gossip-export would not tell this failure from others
    if (!fs::exists(from, error))
      if (const auto weights = read_weights(from); !weights) return fail(console, weights.error());
    if (const ExitCode code = run_gossip_export(console, from, what); code != ExitCode::ok)
      return code;
  } else {
    const auto weights = read_weights(from);
    if (!weights) return fail(console, weights.error());
    if (const auto failed = write_weights(what.to, *weights))
      return fail(console, {ExitCode::failed, failed->text, "",
                            "a folder that exists and has room for the weights"});
  }
  print_path(console, "path", what.to);
  console.err << "from " << from.string() << '\n';
  return ExitCode::ok;
}

}  // namespace gossipd
