// gossip-bench loader: how many samples per second each kind of data set gives a trainer.
//
// Makes a set of each kind in a temporary directory and reads it as the trainer does, batch after
// batch by loader threads. Files are in the page cache, so the disk is not measured.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "models/data/prefetcher.h"
#include "models/job/toml_reader.h"
#include "tools/bench/commands.h"
#include "tools/bench/made_sets.h"

namespace gossipd::bench {
namespace {

namespace fs = std::filesystem;

struct Options {
  bool as_json = false;
  double seconds = 2;
  int threads = 1;
  std::size_t batch = 32;
};

std::size_t bytes_of(const SampleShape& shape) {
  return shape.values() *
         (shape.element == SampleShape::Element::float32 ? sizeof(float) : sizeof(std::int64_t));
}

nlohmann::json measure(const MadeSet& kind, const fs::path& directory, const Options& options) {
  fs::create_directories(directory);
  kind.make(directory);
  TomlReader reader(std::string("[data]\n") + kind.table, kind.name);
  DataSpec data = parse_data_spec(reader.table("data"));
  if (const auto error = reader.finish()) throw CLI::ValidationError(error->text);
  auto sets = load_data(
      data,
      {.directory = directory.string(), .held_out = false, .image_cache_bytes = kind.cache_bytes});
  if (!sets) throw CLI::ValidationError(sets.error().text);
  const double rate =
      samples_per_second(sets->train, {options.batch, options.threads, options.seconds});
  const double bytes =
      static_cast<double>(bytes_of(sets->train->input()) + bytes_of(sets->train->target()));
  fs::remove_all(directory);
  return {{"kind", kind.name}, {"samples_per_second", rate}, {"bytes_per_second", rate * bytes}};
}

void run(const Options& options) {
  const TemporaryDirectory base;
  nlohmann::json rows = nlohmann::json::array();
  if (!options.as_json)
    std::printf("%-28s %14s %14s   (batch %zu, loader threads %d)\n", "DATA", "SAMPLES/S", "MB/S",
                options.batch, options.threads);
  for (const MadeSet& kind : made_sets()) {
    rows.push_back(measure(kind, base.path() / "set", options));
    if (options.as_json) continue;
    std::printf("%-28s %14.0f %14.0f\n", kind.name, rows.back()["samples_per_second"].get<double>(),
                rows.back()["bytes_per_second"].get<double>() / 1e6);
    std::fflush(stdout);
  }
  if (options.as_json)
    std::printf("%s\n",
                nlohmann::json{
                    {"batch", options.batch}, {"loader_threads", options.threads}, {"rows", rows}}
                    .dump(2)
                    .c_str());
}

}  // namespace

void add_loader_command(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "loader", "samples per second of each kind of data set, made up, from the page cache");
  command->add_flag("--json", options->as_json, "as JSON");
  command->add_option("--seconds", options->seconds, "of each measurement")
      ->capture_default_str()
      ->check(CLI::Range(0.1, 3600.0));
  command
      ->add_option("--threads", options->threads,
                   "loader threads; 0: the reader makes its samples itself")
      ->capture_default_str()
      ->check(CLI::Range(0, prefetch_threads_max));
  command->add_option("--batch", options->batch, "samples of a batch")
      ->capture_default_str()
      ->check(CLI::Range(1, 65536));
  command->callback([options] { run(*options); });
}

}  // namespace gossipd::bench
