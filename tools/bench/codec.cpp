// gossip-bench codec: the loops over parameters against memcpy of the same number of floats.
//
// Everything runs on one thread over buffers that fit in no cache, block by block as in a link. The
// repetitions of all operations are interleaved at random and medians are compared, so a slow
// second of the machine affects all alike; other work on the machine costs no processor time.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "core/base/random.h"
#include "core/codec/kernels.h"
#include "core/model/schema.h"
#include "tools/bench/commands.h"
#include "tools/bench/median.h"

namespace gossipd::bench {
namespace {

constexpr std::size_t floats_default = std::size_t{16} << 20;  // 64 MiB a buffer
constexpr std::size_t floats_min = 12'000'000;                 // 48 MB: out of every cache
constexpr std::size_t floats_max = std::size_t{1} << 30;
constexpr int iterations = 3;
constexpr Codec codecs[] = {{CodecId::fp32}, {CodecId::bf16},    {CodecId::int8},
                            {CodecId::int4}, {CodecId::ternary}, {CodecId::top_k, 64}};

struct Options {
  bool json = false;
  std::size_t floats = floats_default;
  int repetitions = 15;
  std::string kernels = gossipd::kernels().name;
};

struct Operation {
  std::string name;
  std::function<void()> run;  // once over all floats
};

struct Measurement {
  std::string name;
  double seconds = 0;  // of the processor, median over the repetitions
};

// Encodes towards two targets in turn, so that the differences stay as in training after any number
// of encodings. Each codec publishes for itself: after another one's turn nothing would be left to
// send but what a sparse codec has just moved.
struct Buffers {
  std::vector<float> target[2];
  std::vector<float> published;
  std::vector<float> published_in[std::size(codecs)];
  std::vector<float> received;
  std::vector<float> update;
  Bytes payload[std::size(codecs)];

  explicit Buffers(std::size_t floats) : published(floats), received(floats), update(floats) {
    Random random(1);
    const auto bell = [&] {
      return static_cast<float>(random.uniform() + random.uniform() + random.uniform() - 1.5);
    };
    for (auto& values : target) values.resize(floats);
    for (std::size_t i = 0; i < floats; ++i) {
      published[i] = received[i] = 0.1f * bell();
      for (auto& values : target) values[i] = published[i] + 0.001f * bell();
    }
    for (auto& values : published_in) values = published;
  }
};

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "gossip-bench: %s\n", what.c_str());
  throw CLI::RuntimeError(1);
}

// Calls f(first, size) for each block.
template <typename F>
void each_block(std::size_t floats, F f) {
  for (std::size_t first = 0; first < floats; first += block_floats_max)
    f(first, std::min(block_floats_max, floats - first));
}

std::span<std::byte> payload_of(Codec codec, Bytes& all, std::size_t first, std::size_t size) {
  return std::span(all).subspan(first / block_floats_max * encoded_size(codec, block_floats_max),
                                encoded_size(codec, size));
}

void encode_all(const Kernels& kernels, Codec codec, std::span<const float> target,
                std::span<float> published, Bytes& payload) {
  each_block(target.size(), [&](std::size_t first, std::size_t size) {
    const auto out = payload_of(codec, payload, first, size);
    if (!kernels.encode(codec, target.subspan(first, size), published.subspan(first, size), out))
      fail("a block could not be encoded");
  });
}

void apply_all(const Kernels& kernels, Codec codec, Bytes& payload, std::span<float> received) {
  each_block(received.size(), [&](std::size_t first, std::size_t size) {
    const ApplyError error = kernels.apply(codec, payload_of(codec, payload, first, size),
                                           received.subspan(first, size), 1.0f);
    if (error != ApplyError::none) fail(std::string("a delta was refused: ") + to_string(error));
  });
}

std::vector<Operation> codec_operations(const Kernels& kernels, Buffers& buffers) {
  std::vector<Operation> operations;
  const std::size_t floats = buffers.published.size();
  for (std::size_t c = 0; c < std::size(codecs); ++c) {
    const Codec codec = codecs[c];
    Bytes& payload = buffers.payload[c];
    std::vector<float>& published = buffers.published_in[c];
    payload.resize(floats / block_floats_max * encoded_size(codec, block_floats_max) +
                   encoded_size(codec, floats % block_floats_max));
    // Fills every payload once, so that applying can be timed before encoding.
    encode_all(kernels, codec, buffers.target[0], published, payload);
    const std::string name = to_string(codec.id);
    operations.push_back(
        {name + " encode", [&kernels, &buffers, &published, &payload, codec, turn = 0]() mutable {
           turn = 1 - turn;
           encode_all(kernels, codec, buffers.target[turn], published, payload);
         }});
    operations.push_back({name + " apply", [&kernels, &buffers, &payload, codec] {
                            apply_all(kernels, codec, payload, buffers.received);
                          }});
  }
  return operations;
}

std::vector<Operation> mixing_operations(const Kernels& kernels, Buffers& buffers) {
  const std::size_t floats = buffers.published.size();
  const auto block = [](const std::vector<float>& all, std::size_t first, std::size_t size) {
    return std::span(all).subspan(first, size);
  };
  const auto changing = [](std::vector<float>& all, std::size_t first, std::size_t size) {
    return std::span(all).subspan(first, size);
  };
  return {
      {"hash",
       [=, &kernels, &buffers] {
         each_block(floats, [&](std::size_t first, std::size_t size) {
           benchmark::DoNotOptimize(kernels.hash(block(buffers.target[0], first, size)));
         });
       }},
      {"transfer",
       [=, &kernels, &buffers] {
         each_block(floats, [&](std::size_t first, std::size_t size) {
           benchmark::DoNotOptimize(kernels.transfer(changing(buffers.update, first, size),
                                                     block(buffers.target[0], first, size),
                                                     block(buffers.published, first, size), 0.01f));
         });
       }},
      {"change",
       [=, &kernels, &buffers] {
         each_block(floats, [&](std::size_t first, std::size_t size) {
           benchmark::DoNotOptimize(kernels.change(block(buffers.target[0], first, size),
                                                   block(buffers.target[1], first, size),
                                                   block(buffers.published, first, size)));
         });
       }},
  };
}

// Collects the processor time of each repetition; prints nothing.
class Collector : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      if (run.run_type == Run::RT_Iteration)
        seconds_[run.run_name.function_name].push_back(run.cpu_accumulated_time /
                                                       static_cast<double>(run.iterations));
    }
  }
  [[nodiscard]] double median_of(const std::string& name) const {
    return median(seconds_.at(name));
  }

 private:
  std::map<std::string, std::vector<double>> seconds_;
};

std::vector<Measurement> measure(const std::vector<Operation>& operations, int repetitions) {
  std::string program = "gossip-bench", interleave = "--benchmark_enable_random_interleaving=true";
  char* arguments[] = {program.data(), interleave.data(), nullptr};
  int count = 2;
  benchmark::Initialize(&count, arguments);
  for (const Operation& operation : operations) {
    benchmark::RegisterBenchmark(operation.name.c_str(),
                                 [&operation](benchmark::State& state) {
                                   for ([[maybe_unused]] auto _ : state) operation.run();
                                 })
        ->Iterations(iterations)
        ->Repetitions(repetitions);
  }
  Collector collector;
  benchmark::RunSpecifiedBenchmarks(&collector, ".*");
  benchmark::Shutdown();
  std::vector<Measurement> measured;
  for (const Operation& operation : operations)
    measured.push_back({operation.name, collector.median_of(operation.name)});
  return measured;
}

const Kernels& find_kernels(const std::string& name) {
  for (const Kernels* version : kernel_versions()) {
    if (name == version->name) return *version;
  }
  fail("this CPU has no kernels named " + name);
}

void print_json(const Options& options, const std::vector<Measurement>& measured) {
  const double bytes = 4.0 * static_cast<double>(options.floats);
  nlohmann::json operations = nlohmann::json::object();
  for (const Measurement& m : measured) {
    operations[m.name] = {{"gb_per_s", bytes / m.seconds * 1e-9},
                          {"memcpy_ratio", measured.front().seconds / m.seconds}};
  }
  const nlohmann::json report = {{"benchmark", "codec"},
                                 {"floats", options.floats},
                                 {"kernels", options.kernels},
                                 {"repetitions", options.repetitions},
                                 {"operations", operations}};
  std::printf("%s\n", report.dump().c_str());
}

void print_table(const Options& options, const std::vector<Measurement>& measured) {
  const double bytes = 4.0 * static_cast<double>(options.floats);
  std::printf("%zu floats (%.0f MB) in blocks of %zu, kernels %s, one thread, median of %d\n\n",
              options.floats, bytes * 1e-6, block_floats_max, options.kernels.c_str(),
              options.repetitions);
  std::printf("%-18s %8s %10s\n", "OPERATION", "GB/S", "OF MEMCPY");
  for (const Measurement& m : measured) {
    std::printf("%-18s %8.2f %10.2f\n", m.name.c_str(), bytes / m.seconds * 1e-9,
                measured.front().seconds / m.seconds);
  }
}

void run(const Options& options) {
  const Kernels& kernels = find_kernels(options.kernels);
  Buffers buffers(options.floats);
  // memcpy copies whole buffers, so it may bypass the caches as in any large copy.
  std::vector<Operation> operations = {{"memcpy", [&] {
                                          std::memcpy(buffers.update.data(),
                                                      buffers.target[0].data(), 4 * options.floats);
                                          benchmark::ClobberMemory();
                                        }}};
  for (auto&& more : {codec_operations(kernels, buffers), mixing_operations(kernels, buffers)}) {
    operations.insert(operations.end(), more.begin(), more.end());
  }
  const std::vector<Measurement> measured = measure(operations, options.repetitions);
  options.json ? print_json(options, measured) : print_table(options, measured);
}

}  // namespace

void add_codec_command(CLI::App& app) {
  const auto options = std::make_shared<Options>();  // kept alive by the callback
  CLI::App* command = app.add_subcommand(
      "codec", "encode, apply, hash and mix against memcpy of the same number of floats");
  command->add_flag("--json", options->json, "print one JSON object instead of a table");
  command->add_option("--floats", options->floats, "floats in a buffer")
      ->check(CLI::Range(floats_min, floats_max))
      ->capture_default_str();
  command->add_option("--repetitions", options->repetitions, "repetitions whose median is taken")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--kernels", options->kernels, "instruction set: baseline, avx2 or avx512")
      ->capture_default_str();
  command->callback([options] { run(*options); });
}

}  // namespace gossipd::bench
