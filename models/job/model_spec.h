// models/job/model_spec.h - the model and the loss of a job: what [model] and [loss] may say.
//
// A TorchScript model is a file. The job names it by content (XXH3-128 and length), so every node
// trains the same one, whatever the founder's file was called; Job::load() fills that in. Plain
// values; any thread.
#pragma once

#include <optional>

#include "core/base/types.h"
#include "models/job/canonical_text.h"

namespace gossipd {

class TomlTable;

inline constexpr std::size_t job_hidden_layers_max = 16;

struct ModelSpec {
  enum class Kind { mlp, cnn, resnet20, resnet18, resnet50, vit, gpt, torchscript, external };
  Kind kind = Kind::cnn;
  // mlp, cnn: fully connected layers before the last; default cnn {96}, mlp {128}
  std::vector<std::int64_t> hidden;
  // cnn: channels of the first convolution; the second has twice as many
  std::int64_t width = 16;
  std::int64_t patch = 4;  // vit: extent of the squares that an image is cut into
  std::int64_t dim = 0;    // vit, gpt: of a token's vector; default vit 192, gpt 384
  std::int64_t depth = 6;  // vit, gpt: layers
  std::int64_t heads = 0;  // vit, gpt: of attention; default vit 3, gpt 6
  // torchscript: where the founder has it; only its last part is in the job's text, for people
  std::string file;
  // torchscript: what the file must hold. external: the list of the model's segments
  // (models/external/segment_list.h); no bytes: the first trainer of the founder says it
  JobFile content;
  bool operator==(const ModelSpec&) const = default;
};

struct LossSpec {
  enum class Kind {
    cross_entropy,  // of classes, or of each token
    mse,            // mean of the squared differences
    // binary cross-entropy of logits: targets in [0, 1], or one output for two classes
    bce,
    model,  // the TorchScript model's own method loss(outputs, targets)
  };
  Kind kind = Kind::cross_entropy;
  bool operator==(const LossSpec&) const = default;
};

[[nodiscard]] std::string_view name_of(ModelSpec::Kind);
[[nodiscard]] std::string_view name_of(LossSpec::Kind);

[[nodiscard]] ModelSpec parse_model(TomlTable table);
[[nodiscard]] LossSpec parse_loss(TomlTable table, const ModelSpec&);
void write(CanonicalText&, const ModelSpec&);
// nothing for cross_entropy, the only loss of older jobs
void write(CanonicalText&, const LossSpec&);

// Why the model cannot take such samples ({channels, rows, columns}; {length} of tokens), or the
// loss such targets (0 classes: floats), and what would do.
[[nodiscard]] std::optional<std::string> misfit(const ModelSpec&,
                                                const std::vector<std::int64_t>& input,
                                                bool tokens);
[[nodiscard]] std::optional<std::string> misfit(const LossSpec&, std::int64_t classes);

}  // namespace gossipd
