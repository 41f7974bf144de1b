#include "models/job/job.h"

#include <algorithm>
#include <filesystem>

#include "core/model/job_hash.h"
#include "models/files/model_file.h"
#include "models/job/epochs.h"
#include "models/job/toml_reader.h"

namespace gossipd {

namespace {

constexpr std::int64_t samples_max = static_cast<std::int64_t>(job_budget_samples_max);

// Weights may be as large as a disk: they do not travel, the model that begins with them does.
constexpr std::uint64_t start_bytes_max = 1ull << 50;

void parse_start(TomlTable& root, Job& job) {
  job.start_from = root.get_string("start_from", "");
  if (root.has("start_from") && job.start_from.empty())
    root.refuse("start_from", "names no file; leave it out to begin from random weights");
  const std::string hash = root.get_string("start_from_hash", "");
  job.start_content.bytes = static_cast<std::uint64_t>(
      root.get_integer("start_from_bytes", 0, 0, static_cast<std::int64_t>(start_bytes_max)));
  if (!hash.empty() && !from_hex(hash, job.start_content))
    root.refuse("start_from_hash", "must be 32 hex digits; leave it out and it is computed");
  if (hash.empty() != (job.start_content.bytes == 0))
    root.refuse("start_from_bytes",
                "and start_from_hash belong together; leave out both and they are computed");
}

// Finds `file`, which `job_path` names relative to itself, and what it holds.
std::optional<Error> identify(const std::string& job_path, const char* key, std::uint64_t bytes_max,
                              std::string& file, JobFile& content) {
  file = (std::filesystem::path(job_path).parent_path() / file).string();
  const auto found = identify_file(file, bytes_max);
  if (!found) return found.error();
  if (content.bytes > 0 && content != *found)
    return Error{"bad-config", file + ": is not the file that " + job_path + " names by " + key +
                                   "_hash and " + key +
                                   "_bytes; take both out, or bring that file"};
  content = *found;
  return std::nullopt;
}

// A process of the user's trains: what it does is not the job's to say.
void parse_external(TomlReader& reader, TomlTable& root, Job& job) {
  for (const char* table : {"data", "optimizer", "loss", "training"})
    if (reader.table(table).present())
      root.refuse(table, "is the trainer's where kind = \"external\" under [model]; take it out");
  for (const char* key :
       {"start_from", "start_from_hash", "start_from_bytes", "evaluate_every_samples"})
    if (root.has(key))
      root.refuse(key, "is the trainer's where kind = \"external\" under [model]; take it out");
  job.schedule.kind = ScheduleSpec::Kind::constant;
  if (const TomlTable schedule = reader.table("schedule"); schedule.present())
    job.schedule = parse_schedule(schedule, job.budget_samples);
}

// Whether model, loss and data belong together, as far as the job alone tells.
void check_fit(TomlReader& reader, const Job& job) {
  if (const auto reason = misfit(job.model, job.data.shape, job.data.vocabulary > 0))
    reader.table("data").refuse("shape", *reason);
  if (job.model.kind == ModelSpec::Kind::gpt &&
      (job.data.classes != job.data.vocabulary || job.data.target_shape != job.data.shape))
    reader.table("data").refuse(
        "kind", "the gpt predicts the next token of each: use text or tokens under [data]");
  if (const auto reason = misfit(job.loss, job.data.classes))
    reader.table("loss").refuse("kind", *reason);
  if (job.training.patience > 0 && job.evaluate_every_samples == 0)
    reader.table("training")
        .refuse("patience", "counts evaluations; set evaluate_every_samples as well");
}

}  // namespace

std::int64_t outputs_of(const Job& job) {
  if (job.data.classes == 0) return static_cast<std::int64_t>(job.data.target().values());
  return job.loss.kind == LossSpec::Kind::bce && job.data.classes == 2 ? 1 : job.data.classes;
}

Result<Job> Job::parse(std::string_view text, const std::string& origin) {
  TomlReader reader(text, origin, job_bytes_max);
  TomlTable root = reader.root();
  Job job;
  job.name = root.require_string("name");
  const bool plain =
      job.name.size() <= 64 && std::all_of(job.name.begin(), job.name.end(), [](unsigned char c) {
        return c > 0x20 && c < 0x7f && c != '/' && c != '"' && c != '\\';
      });
  if (!plain)
    root.refuse("name",
                "must be at most 64 printable ASCII characters without spaces, quotes or slashes");
  job.seed = static_cast<std::uint64_t>(root.get_integer("seed", 1, 0));
  job.batch = static_cast<std::uint32_t>(root.get_integer("batch", 32, 1, 65536));
  if (root.has("epochs"))
    root.refuse("epochs",
                "counts the samples of a data directory, so it has a place in the job file of "
                "gossipd only; write budget_samples");
  job.budget_samples = static_cast<Samples>(root.require_integer("budget_samples", 1, samples_max));
  job.model = parse_model(reader.table("model"));
  if (job.model.kind == ModelSpec::Kind::external) {
    parse_external(reader, root, job);
    if (auto error = reader.finish()) return *error;
    return job;
  }
  job.evaluate_every_samples =
      static_cast<Samples>(root.get_integer("evaluate_every_samples", 0, 0, samples_max));
  parse_start(root, job);
  job.data = parse_data_spec(reader.table("data"));
  job.optimizer = parse_optimizer(reader.table("optimizer"));
  job.schedule = parse_schedule(reader.table("schedule"), job.budget_samples);
  job.loss = parse_loss(reader.table("loss"), job.model);
  job.data.probabilities = job.loss.kind == LossSpec::Kind::bce;
  job.training = parse_training(reader.table("training"));
  check_fit(reader, job);
  if (auto error = reader.finish()) return *error;
  return job;
}

Result<Job> Job::load(const std::string& path) { return load_job(path, std::nullopt); }

Result<Job> load_job(const std::string& path, std::optional<Samples> epoch_samples) {
  auto text = read_text_file(path, job_bytes_max);
  if (!text) return text.error();
  if (epoch_samples) text = with_budget(*text, *epoch_samples, path);
  if (!text) return text.error();
  auto job = Job::parse(*text, path);
  if (!job) return job;
  if (job->model.kind == ModelSpec::Kind::torchscript)
    if (auto error =
            identify(path, "file", job_file_bytes_max, job->model.file, job->model.content))
      return *error;
  if (!job->start_from.empty())
    if (auto error =
            identify(path, "start_from", start_bytes_max, job->start_from, job->start_content))
      return *error;
  return job;
}

std::string Job::canonical_text() const {
  CanonicalText out;
  out.line("name", std::string_view(name));
  out.line("seed", seed);
  out.line("batch", std::uint64_t{batch});
  out.line("budget_samples", budget_samples);
  if (model.kind == ModelSpec::Kind::external) {
    write(out, model);
    write(out, schedule);
    return out.text;
  }
  out.line("evaluate_every_samples", evaluate_every_samples);
  if (!start_from.empty()) {
    out.line("start_from", std::string_view(std::filesystem::path(start_from).filename().string()));
    out.line("start_from_hash", std::string_view(to_hex(start_content)));
    out.line("start_from_bytes", start_content.bytes);
  }

  write(out, model);
  write_data_spec(data, out);

  write(out, optimizer);
  write(out, schedule);
  write(out, loss);
  write(out, training);
  return out.text;
}

JobHash Job::hash() const { return job_hash_of(canonical_text()); }

}  // namespace gossipd
