#include "models/job/model_spec.h"

#include <algorithm>
#include <filesystem>

#include "models/job/toml_reader.h"

namespace gossipd {

namespace {

using Kind = ModelSpec::Kind;

// by value
constexpr std::string_view kind_names[] = {"mlp", "cnn", "resnet20",    "resnet18", "resnet50",
                                           "vit", "gpt", "torchscript", "external"};

constexpr std::int64_t cnn_extent_min = 16;
constexpr std::size_t file_name_bytes_max = 1024;

void parse_transformer(TomlTable& table, ModelSpec& model) {
  const bool is_vit = model.kind == Kind::vit;
  if (is_vit) model.patch = table.get_integer("patch", model.patch, 1, 1024);
  model.dim = table.get_integer("dim", is_vit ? 192 : 384, 1, 65536);
  model.depth = table.get_integer("depth", model.depth, 1, 1024);
  model.heads = table.get_integer("heads", is_vit ? 3 : 6, 1, 1024);
  if (model.dim % model.heads != 0)
    table.refuse("dim", "must be a multiple of heads (" + std::to_string(model.heads) + ")");
}

void parse_content(TomlTable& table, const std::string& of, JobFile& content) {
  const std::string hash_key = of + "_hash", bytes_key = of + "_bytes";
  const std::string hash = table.get_string(hash_key, "");
  if (!hash.empty() && !from_hex(hash, content))
    table.refuse(hash_key, "must be 32 hex digits; leave it out and it is computed");
  content.bytes = static_cast<std::uint64_t>(
      table.get_integer(bytes_key, 0, 0, static_cast<std::int64_t>(job_file_bytes_max)));
  if (hash.empty() != (content.bytes == 0))
    table.refuse(bytes_key,
                 "and " + hash_key + " belong together; leave out both and they are computed");
}

void parse_file(TomlTable& table, ModelSpec& model) {
  model.file = table.require_string("file");
  const bool printable = !model.file.empty() && model.file.size() <= file_name_bytes_max &&
                         std::all_of(model.file.begin(), model.file.end(),
                                     [](unsigned char c) { return c >= 0x20 && c != 0x7f; });
  if (!printable)
    table.refuse(
        "file",
        "must be the path of a TorchScript file, as tools/export/export_model.py writes it");
  parse_content(table, "file", model.content);
}

}  // namespace

std::string_view name_of(ModelSpec::Kind kind) {
  return kind_names[static_cast<std::size_t>(kind)];
}

std::string_view name_of(LossSpec::Kind kind) {
  switch (kind) {
    case LossSpec::Kind::cross_entropy: return "cross_entropy";
    case LossSpec::Kind::mse: return "mse";
    case LossSpec::Kind::bce: return "bce";
    case LossSpec::Kind::model: return "model";
  }
  return "";
}

ModelSpec parse_model(TomlTable table) {
  ModelSpec model;
  const std::string kind = table.get_choice("kind", name_of(Kind::cnn), kind_names);
  model.kind = static_cast<Kind>(std::ranges::find(kind_names, kind) - std::begin(kind_names));
  switch (model.kind) {
    case Kind::cnn:
      model.hidden = table.get_integers("hidden", {96}, 1, 65536, job_hidden_layers_max);
      break;
    case Kind::mlp:
      model.hidden = table.get_integers("hidden", {128}, 1, 65536, job_hidden_layers_max);
      break;
    case Kind::vit:
    case Kind::gpt: parse_transformer(table, model); break;
    case Kind::torchscript: parse_file(table, model); break;
    case Kind::external: parse_content(table, "segments", model.content); break;
    case Kind::resnet20:
    case Kind::resnet18:
    case Kind::resnet50: break;
  }
  if (model.kind == Kind::cnn) model.width = table.get_integer("width", model.width, 1, 1024);
  return model;
}

LossSpec parse_loss(TomlTable table, const ModelSpec& model) {
  using Loss = LossSpec::Kind;
  LossSpec loss;
  loss.kind = table.get_enum("kind", Loss::cross_entropy,
                             {{"cross_entropy", Loss::cross_entropy},
                              {"mse", Loss::mse},
                              {"bce", Loss::bce},
                              {"model", Loss::model}});
  if (loss.kind == Loss::model && model.kind != Kind::torchscript)
    table.refuse("kind",
                 "\"model\" is for a TorchScript model with a method loss(outputs, targets); "
                 "choose cross_entropy, mse or bce");
  return loss;
}

void write(CanonicalText& out, const ModelSpec& model) {
  out.table("model");
  out.line("kind", name_of(model.kind));
  if (model.kind == Kind::mlp || model.kind == Kind::cnn) out.line("hidden", model.hidden);
  if (model.kind == Kind::cnn) out.line("width", model.width);
  if (model.kind == Kind::vit) out.line("patch", model.patch);
  if (model.kind == Kind::vit || model.kind == Kind::gpt) {
    out.line("dim", model.dim);
    out.line("depth", model.depth);
    out.line("heads", model.heads);
  }
  if (model.kind == Kind::external && model.content.bytes > 0) {
    out.line("segments_hash", std::string_view(to_hex(model.content)));
    out.line("segments_bytes", model.content.bytes);
  }
  if (model.kind != Kind::torchscript) return;
  out.line("file", std::string_view(std::filesystem::path(model.file).filename().string()));
  if (model.content.bytes == 0) return;
  out.line("file_hash", std::string_view(to_hex(model.content)));
  out.line("file_bytes", model.content.bytes);
}

void write(CanonicalText& out, const LossSpec& loss) {
  if (loss.kind == LossSpec::Kind::cross_entropy) return;
  out.table("loss");
  out.line("kind", name_of(loss.kind));
}

std::optional<std::string> misfit(const LossSpec& loss, std::int64_t classes) {
  switch (loss.kind) {
    case LossSpec::Kind::cross_entropy:
      if (classes == 0)
        return "is cross_entropy, which needs classes as targets; set kind = \"mse\" or \"bce\" "
               "under [loss]";
      break;
    case LossSpec::Kind::mse:
      if (classes > 0)
        return "is mse, which needs floats as targets; the data have classes: use cross_entropy";
      break;
    case LossSpec::Kind::bce:
      if (classes > 2)
        return "is bce, which needs floats in [0, 1] or two classes as targets; use cross_entropy";
      break;
    case LossSpec::Kind::model: break;  // only it knows
  }
  return std::nullopt;
}

std::optional<std::string> misfit(const ModelSpec& model, const std::vector<std::int64_t>& input,
                                  bool tokens) {
  if (model.kind == Kind::torchscript || model.kind == Kind::external)
    return std::nullopt;  // only it knows
  const std::string name(name_of(model.kind));
  if (model.kind == Kind::gpt && !tokens)
    return "the gpt needs tokens: text or tokens under [data]";
  if (model.kind == Kind::gpt) return std::nullopt;
  if (tokens)
    return "the " + name + " needs images, the data are tokens; use kind = \"gpt\" under [model]";
  if (model.kind == Kind::mlp) return std::nullopt;
  if (input.size() != 3)
    return "the " + name +
           " needs images: channels, rows, columns; use kind = \"mlp\" under [model]";
  if (model.kind == Kind::cnn && (input[1] < cnn_extent_min || input[2] < cnn_extent_min))
    return "the cnn needs at least 16 rows and columns; use kind = \"mlp\" under [model]";
  if (model.kind == Kind::vit && (input[1] % model.patch != 0 || input[2] % model.patch != 0))
    return "the vit needs rows and columns that are multiples of its patch (" +
           std::to_string(model.patch) + "); set patch under [model]";
  return std::nullopt;
}

}  // namespace gossipd
