#include "models/job.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <charconv>

#include "models/toml_reader.h"

namespace gossipd {

namespace {

constexpr std::int64_t samples_max = static_cast<std::int64_t>(job_budget_samples_max);

std::string_view name_of(ModelSpec::Kind kind) { return kind == ModelSpec::Kind::cnn ? "cnn" : "mlp"; }

std::string_view name_of(OptimizerSpec::Kind kind) { return kind == OptimizerSpec::Kind::adamw ? "adamw" : "sgd"; }

std::string_view name_of(ScheduleSpec::Kind kind) {
  switch (kind) {
    case ScheduleSpec::Kind::constant: return "constant";
    case ScheduleSpec::Kind::cosine: return "cosine";
    case ScheduleSpec::Kind::step: return "step";
  }
  return "";
}

ModelSpec parse_model(TomlTable table) {
  ModelSpec model;
  model.kind = table.get_enum("kind", ModelSpec::Kind::cnn, {{"cnn", ModelSpec::Kind::cnn}, {"mlp", ModelSpec::Kind::mlp}});
  const bool is_cnn = model.kind == ModelSpec::Kind::cnn;
  const std::vector<std::int64_t> hidden_default = is_cnn ? std::vector<std::int64_t>{96} : std::vector<std::int64_t>{128};
  model.hidden = table.get_integers("hidden", hidden_default, 1, 65536, job_hidden_layers_max);
  if (is_cnn) model.width = table.get_integer("width", model.width, 1, 1024);
  return model;
}

// A file in the data directory, never a way out of it: the job comes from the cluster.
std::string parse_file_name(TomlTable& table, std::string_view key, const std::string& fallback) {
  const std::string name = table.get_string(key, fallback);
  const bool plain = !name.empty() && name.size() <= 255 && name != "." && name != ".." &&
                     std::all_of(name.begin(), name.end(), [](unsigned char c) { return c > 0x20 && c < 0x7f && c != '/' && c != '\\'; });
  if (plain) return name;
  table.refuse(key, "must be a plain file name; the directory is each node's own choice (--data)");
  return fallback;
}

DataSpec parse_data(TomlTable table) {
  DataSpec data;
  table.get_choice("kind", "idx", {"idx"});
  data.shape = table.get_integers("shape", data.shape, 1, 16384, 3);
  if (data.shape.size() != 3) {
    table.refuse("shape", "must be channels, rows, columns; for example shape = [1, 28, 28]");
    data.shape = DataSpec{}.shape;
  }
  data.classes = table.get_integer("classes", data.classes, 2, 256);
  data.mean = table.get_double("mean", data.mean, 0, 1);
  data.deviation = table.get_double("deviation", data.deviation, 1e-3, 1);
  data.train_images = parse_file_name(table, "train_images", data.train_images);
  data.train_labels = parse_file_name(table, "train_labels", data.train_labels);
  data.test_images = parse_file_name(table, "test_images", data.test_images);
  data.test_labels = parse_file_name(table, "test_labels", data.test_labels);
  return data;
}

OptimizerSpec parse_optimizer(TomlTable table) {
  using Kind = OptimizerSpec::Kind;
  OptimizerSpec optimizer;
  optimizer.kind = table.get_enum("kind", Kind::sgd, {{"sgd", Kind::sgd}, {"adamw", Kind::adamw}});
  const auto refuse_keys_of = [&](Kind other, std::initializer_list<std::string_view> keys) {
    const std::string name(name_of(other));
    for (const std::string_view key : keys)
      if (table.has(key)) table.refuse(key, "belongs to " + name + "; take it out, or set kind = \"" + name + "\"");
  };
  const bool is_adamw = optimizer.kind == Kind::adamw;
  optimizer.learning_rate = table.get_double("learning_rate", is_adamw ? 0.001 : optimizer.learning_rate, 0, 1000);
  optimizer.weight_decay = table.get_double("weight_decay", optimizer.weight_decay, 0, 1);
  if (is_adamw) {
    optimizer.beta1 = table.get_double("beta1", optimizer.beta1, 0, 0.9999);
    optimizer.beta2 = table.get_double("beta2", optimizer.beta2, 0, 0.999999);
    optimizer.epsilon = table.get_double("epsilon", optimizer.epsilon, 1e-12, 1);
    refuse_keys_of(Kind::sgd, {"momentum", "nesterov"});
    return optimizer;
  }
  optimizer.momentum = table.get_double("momentum", optimizer.momentum, 0, 0.9999);
  optimizer.nesterov = table.get_bool("nesterov", optimizer.nesterov);
  if (optimizer.nesterov && optimizer.momentum == 0)
    table.refuse("nesterov", "needs momentum; set momentum = 0.9 or nesterov = false");
  refuse_keys_of(Kind::adamw, {"beta1", "beta2", "epsilon"});
  return optimizer;
}

ScheduleSpec parse_schedule(TomlTable table, Samples budget_samples) {
  using Kind = ScheduleSpec::Kind;
  ScheduleSpec schedule;
  schedule.kind = table.get_enum("kind", Kind::cosine,
                                 {{"cosine", Kind::cosine}, {"step", Kind::step}, {"constant", Kind::constant}});
  schedule.warmup_samples = static_cast<Samples>(table.get_integer("warmup_samples", 0, 0, samples_max));
  if (schedule.warmup_samples >= budget_samples && schedule.warmup_samples > 0)
    table.refuse("warmup_samples", "must be less than budget_samples (" + std::to_string(budget_samples) + ")");
  if (schedule.kind == Kind::cosine) schedule.final_fraction = table.get_double("final_fraction", 0, 0, 1);
  if (schedule.kind == Kind::step) {
    schedule.gamma = table.get_double("gamma", schedule.gamma, 0, 1);
    for (const std::int64_t at : table.get_integers("milestones", {}, 1, samples_max, job_milestones_max))
      schedule.milestones.push_back(static_cast<Samples>(at));
    if (!std::is_sorted(schedule.milestones.begin(), schedule.milestones.end()))
      table.refuse("milestones", "must rise; sort them");
    if (schedule.milestones.empty())
      table.refuse("milestones", "is missing; write milestones = [400000, 500000], in samples of the whole cluster");
  }
  return schedule;
}

std::string text_of(double value) {
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
  std::string text(digits, end);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string text_of(bool value) { return value ? "true" : "false"; }

std::string text_of(std::string_view value) {
  std::string text = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') text += '\\';
    text += c;
  }
  return text + '"';
}

std::string text_of(std::uint64_t value) { return std::to_string(value); }
std::string text_of(std::int64_t value) { return std::to_string(value); }

template <typename T>
std::string text_of(const std::vector<T>& values) {
  std::string text = "[";
  for (const T value : values) text += (text.size() == 1 ? "" : ", ") + text_of(value);
  return text + "]";
}

struct Lines {
  std::string text;
  void table(std::string_view name) { text += "\n[" + std::string(name) + "]\n"; }
  template <typename T>
  void line(std::string_view key, const T& value) {
    text += std::string(key) + " = " + text_of(value) + "\n";
  }
};

}  // namespace

Result<Job> Job::parse(std::string_view text, const std::string& origin) {
  TomlReader reader(text, origin, job_bytes_max);
  TomlTable root = reader.root();
  Job job;
  job.name = root.require_string("name");
  const bool plain = job.name.size() <= 64 && std::all_of(job.name.begin(), job.name.end(), [](unsigned char c) {
                       return c > 0x20 && c < 0x7f && c != '/' && c != '"' && c != '\\';
                     });
  if (!plain) root.refuse("name", "must be at most 64 printable ASCII characters without spaces, quotes or slashes");
  job.seed = static_cast<std::uint64_t>(root.get_integer("seed", 1, 0));
  job.batch = static_cast<std::uint32_t>(root.get_integer("batch", 32, 1, 65536));
  job.budget_samples = static_cast<Samples>(root.require_integer("budget_samples", 1, samples_max));
  job.evaluate_every_samples = static_cast<Samples>(root.get_integer("evaluate_every_samples", 0, 0, samples_max));
  job.model = parse_model(reader.table("model"));
  job.data = parse_data(reader.table("data"));
  job.optimizer = parse_optimizer(reader.table("optimizer"));
  job.schedule = parse_schedule(reader.table("schedule"), job.budget_samples);
  if (job.model.kind == ModelSpec::Kind::cnn && (job.data.shape[1] < 16 || job.data.shape[2] < 16))
    reader.table("data").refuse("shape", "the cnn needs at least 16 rows and columns; use kind = \"mlp\" under [model]");
  if (auto error = reader.finish()) return *error;
  return job;
}

Result<Job> Job::load(const std::string& path) {
  auto text = read_text_file(path, job_bytes_max);
  if (!text) return text.error();
  return parse(*text, path);
}

std::string Job::canonical_text() const {
  Lines out;
  out.line("name", std::string_view(name));
  out.line("seed", seed);
  out.line("batch", std::uint64_t{batch});
  out.line("budget_samples", budget_samples);
  out.line("evaluate_every_samples", evaluate_every_samples);

  out.table("model");
  out.line("kind", name_of(model.kind));
  out.line("hidden", model.hidden);
  if (model.kind == ModelSpec::Kind::cnn) out.line("width", model.width);

  out.table("data");
  out.line("kind", std::string_view("idx"));
  out.line("shape", data.shape);
  out.line("classes", data.classes);
  out.line("mean", data.mean);
  out.line("deviation", data.deviation);
  out.line("train_images", std::string_view(data.train_images));
  out.line("train_labels", std::string_view(data.train_labels));
  out.line("test_images", std::string_view(data.test_images));
  out.line("test_labels", std::string_view(data.test_labels));

  out.table("optimizer");
  out.line("kind", name_of(optimizer.kind));
  out.line("learning_rate", optimizer.learning_rate);
  if (optimizer.kind == OptimizerSpec::Kind::sgd) {
    out.line("momentum", optimizer.momentum);
    out.line("weight_decay", optimizer.weight_decay);
    out.line("nesterov", optimizer.nesterov);
  } else {
    out.line("beta1", optimizer.beta1);
    out.line("beta2", optimizer.beta2);
    out.line("epsilon", optimizer.epsilon);
    out.line("weight_decay", optimizer.weight_decay);
  }

  out.table("schedule");
  out.line("kind", name_of(schedule.kind));
  out.line("warmup_samples", schedule.warmup_samples);
  if (schedule.kind == ScheduleSpec::Kind::cosine) out.line("final_fraction", schedule.final_fraction);
  if (schedule.kind == ScheduleSpec::Kind::step) {
    out.line("milestones", schedule.milestones);
    out.line("gamma", schedule.gamma);
  }
  return out.text;
}

JobHash Job::hash() const {
  const std::string text = canonical_text();
  return JobHash{XXH3_64bits(text.data(), text.size())};
}

}  // namespace gossipd
