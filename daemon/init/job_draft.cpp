#include "daemon/init/job_draft.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <utility>

#include "models/job/epochs.h"

namespace gossipd {

namespace {

using Kind = DataSpec::Kind;

constexpr int epochs = 10;
constexpr std::size_t name_bytes = 64;  // as of a job
constexpr std::size_t comment_column = 36;
constexpr std::size_t columns = 80;  // of a list, without its key, and of a note with its mark

// One `key = value` a line, with what it means beside it.
class Draft {
 public:
  void comment(const std::string& words) { text_ += "# " + words + "\n"; }
  // On as many lines as it takes.
  void note(const std::string& words) {
    std::istringstream in(words);
    std::string line = "Note:";
    for (std::string word; in >> word;) {
      if (line.size() + word.size() + 3 > columns) comment(std::exchange(line, " "));
      line += " " + word;
    }
    comment(line);
  }
  void table(const std::string& name) { text_ += "\n[" + name + "]\n"; }
  // What it means stands above a value of several lines.
  void line(const std::string& key, const std::string& value, const std::string& words = "") {
    const bool beside = value.find('\n') == std::string::npos;
    if (!beside && !words.empty()) comment(words);
    std::string line = key + " = " + value;
    if (beside && !words.empty()) {
      line.resize(std::max(line.size() + 2, comment_column), ' ');
      line += "# " + words;
    }
    text_ += line + "\n";
  }
  void line(const std::string& key, std::int64_t value, const std::string& words = "") {
    line(key, std::to_string(value), words);
  }
  void line(const std::string& key, std::size_t value, const std::string& words = "") {
    line(key, std::to_string(value), words);
  }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string text_;
};

std::string quoted(const std::string& value) {
  std::string out = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

// A long one takes several lines.
std::string joined(const std::vector<std::string>& items) {
  std::string text, line;
  for (const std::string& item : items) {
    if (!line.empty() && line.size() + item.size() + 2 > columns) {
      text += line + "\n";
      line.clear();
    }
    line += (line.empty() ? "  " : " ") + item + ",";
  }
  if (!text.empty()) return "[\n" + text + line + "\n]";
  return items.empty() ? "[]" : "[" + line.substr(2, line.size() - 3) + "]";
}

std::string list(const std::vector<std::int64_t>& values) {
  std::vector<std::string> items;
  for (const std::int64_t value : values) items.push_back(std::to_string(value));
  return joined(items);
}

std::string list(const std::vector<std::string>& values) {
  std::vector<std::string> items;
  for (const std::string& value : values) items.push_back(quoted(value));
  return joined(items);
}

// Four decimals, and more digits only of a number that has them. Always a float to TOML, which has
// a point or an exponent.
std::string number(double value) {
  char text[48];
  std::snprintf(text, sizeof text, "%.4f", value);
  if (std::abs(std::strtod(text, nullptr) - value) <= 1e-12 * std::abs(value)) return text;
  std::snprintf(text, sizeof text, "%.15g", value);
  return std::strpbrk(text, ".e") != nullptr ? text : std::string(text) + ".0";
}

// One number for all channels is written as such.
std::string numbers(const std::vector<double>& values) {
  if (values.size() == 1) return number(values[0]);
  std::vector<std::string> items;
  for (const double value : values) items.push_back(number(value));
  return joined(items);
}

std::string plain_name(const std::string& wanted) {
  std::string name = wanted.substr(0, name_bytes);
  for (char& c : name)
    if (c <= 0x20 || c >= 0x7f || c == '/' || c == '"' || c == '\\') c = '-';
  return name.empty() ? "job" : name;
}

void write_inputs(Draft& draft, const DataLook& look) {
  const DataSpec& spec = look.spec;
  if (spec.vocabulary > 0) return;
  draft.line("mean", numbers(spec.mean), "measured: inputs become (value - mean) / deviation");
  std::string words;
  if (look.constant_channels > 0)
    words = "1 where nothing differs: all values are the same, or nearly";
  draft.line("deviation", numbers(spec.deviation), words);
}

void write_data(Draft& draft, const DataLook& look) {
  const DataSpec& spec = look.spec;
  draft.table("data");
  constexpr const char* names[] = {"idx",    "cifar10", "cifar100",   "images",
                                   "tokens", "text",    "safetensors"};
  draft.line("kind", quoted(names[static_cast<int>(spec.kind)]));
  const bool stream = spec.kind == Kind::tokens || spec.kind == Kind::text;
  const bool free_shape =
      spec.kind == Kind::idx || spec.kind == Kind::images || spec.kind == Kind::safetensors;
  if (spec.kind == Kind::images)
    draft.line("shape", list(spec.shape), "every image becomes so: channels, rows, columns");
  else if (free_shape)
    draft.line("shape", list(spec.shape), "of one input");
  if (spec.kind == Kind::safetensors && !spec.target_shape.empty())
    draft.line("target_shape", list(spec.target_shape));
  if (!spec.class_names.empty())
    draft.line("class_names", list(spec.class_names));
  else if (spec.kind == Kind::images)
    draft.line("classes", spec.classes, "train/'s folders, whose names must be alike on all nodes");
  else if (free_shape)
    draft.line("classes", spec.classes, spec.classes == 0 ? "targets are numbers" : "");
  if (spec.kind == Kind::tokens)
    draft.line("vocabulary", spec.vocabulary, "the largest token that is there, and one");
  if (spec.kind == Kind::safetensors && spec.vocabulary > 0)
    draft.line("vocabulary", spec.vocabulary,
               "above all integers that are inputs; 0: the model takes floats");
  if (stream) draft.line("length", spec.shape.at(0), "tokens of a sample");
  if (spec.kind == Kind::safetensors) {
    draft.line("inputs", quoted(spec.input_tensor), "the tensors' names");
    draft.line("targets", quoted(spec.target_tensor));
  }
  if (spec.kind == Kind::images) {
    draft.line("train_folder", quoted(spec.train_files.at(0)));
    if (!spec.test_files.empty()) draft.line("test_folder", quoted(spec.test_files[0]));
  } else if (stream || spec.kind == Kind::safetensors) {
    draft.line("train_files", list(spec.train_files));
    if (!spec.test_files.empty()) draft.line("test_files", list(spec.test_files));
  }
  write_inputs(draft, look);
  if (spec.validation_fraction > 0)
    draft.line("validation_fraction", number(spec.validation_fraction),
               "held out of the training files, since there are none to test with");
  draft.line("division", quoted("shared"),
             "all nodes have these files and divide them; \"own\": each has its own");
}

std::string built_in(const DataSpec& spec) {
  if (spec.kind == Kind::tokens || spec.kind == Kind::text) return "gpt";
  if (spec.vocabulary > 0) return "";
  if (!spec.is_pixels()) return "mlp";
  if (spec.kind == Kind::cifar10 || spec.kind == Kind::cifar100) return "resnet20";
  if (spec.kind == Kind::images) return "resnet18";
  return std::min(spec.shape[1], spec.shape[2]) >= 16 ? "cnn" : "mlp";
}

void write_model(Draft& draft, const DataSpec& spec, const std::string& kind,
                 const std::string& model_file) {
  draft.table("model");
  draft.line("kind", quoted(kind), "others: models/MODELS.md");
  if (kind == "torchscript") draft.line("file", quoted(model_file));
  if (kind == "mlp") draft.line("hidden", "[128]", "units of the layers before the last");
  if (kind == "gpt") {
    draft.line("dim", std::int64_t{128});
    draft.line("depth", std::int64_t{4}, "layers");
    draft.line("heads", std::int64_t{4}, "of attention");
  }
  if (spec.classes > 0) return;
  draft.table("loss");
  draft.line("kind", quoted("mse"),
             "targets around 1 train best; bce: labels 0 and 1, any number of them 1");
}

void write_training(Draft& draft, bool adam, std::size_t samples) {
  draft.table("optimizer");
  draft.line("kind", quoted(adam ? "adamw" : "sgd"));
  draft.line("learning_rate", adam ? "0.001" : "0.05", "at its highest; the first thing to tune");
  if (!adam) draft.line("momentum", "0.9");
  draft.line("weight_decay", adam ? "0.01" : "5e-4");
  draft.table("schedule");
  draft.line("kind", quoted("cosine"), "up during the warm-up, then down to 0 at the end");
  draft.line("warmup_samples", samples / 2);
}

}  // namespace

Result<std::string> draft_job(const DataLook& look, const DraftOptions& options) {
  const DataSpec& spec = look.spec;
  const std::string kind = options.model_file.empty() ? built_in(spec) : "torchscript";
  if (kind.empty())
    return Error{"bad-config",
                 "no built-in model takes integers as inputs; give your own with --model FILE "
                 "(tools/export writes one), or write the inputs as floats if they are "
                 "quantities"};
  Draft draft;
  draft.comment("A draft by `gossipd init`: " + look.words + ", " +
                std::to_string(look.train_samples) + " samples to train on and " +
                std::to_string(look.held_out_samples) + " held out.");
  if (!look.left_out.empty()) draft.comment("Left out: " + look.left_out + ".");
  for (const std::string& note : look.notes) draft.note(note);
  draft.comment("All numbers of samples count the whole cluster.");
  draft.line("name", quoted(plain_name(options.name)));
  draft.line("seed", std::int64_t{1});
  draft.line("batch", std::int64_t{32}, "samples of a step, on each node");
  draft.line("epochs", std::int64_t{epochs}, "or budget_samples = N");
  draft.line("evaluate_every_samples", look.train_samples, "an epoch");
  write_model(draft, spec, kind, options.model_file);
  write_data(draft, look);
  // Gradients of numbers grow with the numbers, and AdamW's steps do not.
  const bool adam = kind == "gpt" || spec.classes == 0;
  write_training(draft, adam, look.train_samples);
  const auto text = with_budget(draft.text(), look.train_samples, "the draft");
  if (!text) return text.error();
  if (const auto job = Job::parse(*text, "the draft"); !job) return job.error();
  return draft.text();
}

}  // namespace gossipd
