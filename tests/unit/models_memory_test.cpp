// What files of a model cost in memory while they are written and read: the model once, and one
// tensor; and what the order of a data set costs.
#include <doctest/doctest.h>

#include "models/checkpoint/checkpoint.h"
#include "models/data/batch_source.h"
#include "models/files/weights.h"
#include "models_test_support.h"
#include "tests/counted_memory.h"

using namespace gossipd;
using test::TemporaryDirectory;

namespace {

constexpr std::uint64_t tensor_floats = 1 << 20;
constexpr std::uint64_t tensors = 8;
constexpr std::int64_t tensor_bytes = tensor_floats * 4;
constexpr std::int64_t model_bytes = tensors * tensor_bytes;
// headers, one piece of the file to be hashed, names
constexpr std::int64_t small_things = 2 << 20;

Schema schema_of_eight() {
  std::vector<Segment> segments;
  for (std::uint64_t i = 0; i < tensors; ++i)
    segments.push_back(Segment{"layer" + std::to_string(i),
                               {static_cast<std::int64_t>(tensor_floats)},
                               i * tensor_floats,
                               tensor_floats,
                               SegmentKind::parameter});
  auto schema = Schema::build(std::move(segments));
  REQUIRE(schema);
  return *schema;
}

Checkpoint checkpoint_of(const Schema& schema) {
  Checkpoint checkpoint;
  checkpoint.model.resize(schema.floats());
  for (std::size_t i = 0; i < checkpoint.model.size(); ++i)
    checkpoint.model[i] = static_cast<float>(i % 1000);
  checkpoint.optimizer.momentum = checkpoint.model;
  return checkpoint;
}

// Bytes held at most, beyond those held before, while `work` runs.
template <typename Work>
std::int64_t most_held(const Work& work) {
  const std::int64_t before = counted::live.load();
  counted::peak = before;
  work();
  return counted::peak.load() - before;
}

}  // namespace

TEST_CASE("A checkpoint is written from where it lies, and read into one model and one state") {
  const TemporaryDirectory directory;
  const Schema schema = schema_of_eight();
  const Checkpoint written = checkpoint_of(schema);
  CHECK(
      most_held([&] {
        REQUIRE(write_checkpoint(directory / "c.safetensors", schema, written, {{"node", "box1"}}));
      }) < small_things);
  const std::int64_t reading = most_held([&] {
    const auto loaded = load_checkpoint(directory / "c.safetensors", schema);
    REQUIRE(loaded);
    CHECK(loaded->checkpoint.model == written.model);
    CHECK(loaded->checkpoint.optimizer.momentum == written.optimizer.momentum);
    CHECK(loaded->checkpoint.metadata.at("node") == "box1");
  });
  CHECK(reading < 2 * model_bytes + small_things);
  CHECK(most_held([&] { REQUIRE(read_checkpoint_metadata(directory / "c.safetensors")); }) <
        small_things);
}

TEST_CASE("The order of a data set costs eight bytes a sample, with loader threads too") {
  class Many : public DataSet {
   public:
    using DataSet::DataSet;
    [[nodiscard]] std::size_t count() const override { return std::size_t{3} << 20; }
    void write(std::size_t, const Variation*, const Batch&, std::size_t) const override {}
  };
  const auto set = std::make_shared<Many>(DataSpec{});
  for (const int loader_threads : {0, 2}) {
    const std::int64_t before = counted::live.load();
    const BatchSource source(set, DataOrder(1, set->count(), {}), loader_threads);
    CHECK(source.shard_samples() == set->count());
    CHECK(counted::live.load() - before <
          8 * static_cast<std::int64_t>(set->count()) + small_things);
  }
}

TEST_CASE("Weights to begin with cost one tensor beside the model that takes them") {
  const TemporaryDirectory directory;
  const Schema schema = schema_of_eight();
  const Checkpoint written = checkpoint_of(schema);
  REQUIRE(write_checkpoint(directory / "c.safetensors", schema, written));
  std::vector<float> model(schema.floats());
  const std::int64_t taking = most_held([&] {
    const auto weights = read_weights(directory / "c.safetensors");
    REQUIRE(weights);
    CHECK_FALSE(take_weights(*weights, schema, model).has_value());
  });
  CHECK(model == written.model);
  CHECK(taking < tensor_bytes + small_things);
  const std::int64_t exporting = most_held([&] {
    const auto weights = read_weights(directory / "c.safetensors");
    REQUIRE(weights);
    CHECK_FALSE(write_weights(directory / "w.safetensors", *weights).has_value());
  });
  CHECK(exporting < tensor_bytes + small_things);
}
