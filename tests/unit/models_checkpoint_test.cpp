#include "models/checkpoint/checkpoint.h"

#include <sys/stat.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "models/files/weights.h"
#include "models_test_support.h"

using namespace gossipd;
using test::bytes_of;
using test::contains;
using test::read_file;
using test::TemporaryDirectory;
using test::write_file;

namespace {

Schema small_schema() {
  auto schema = Schema::build({{"w", {2, 2}, 0, 4, SegmentKind::parameter},
                               {"bn.mean", {2}, 4, 2, SegmentKind::statistic},
                               {"bn.count", {}, 6, 1, SegmentKind::local}});
  REQUIRE(schema);
  return *schema;
}

Checkpoint small_checkpoint(Step step = 7) {
  Checkpoint checkpoint;
  checkpoint.model = {1, 2, 3, 4, 5, 6, 7};
  checkpoint.optimizer = {{0.1f, 0.2f, 0.3f, 0.4f, 0, 0, 0}, {}, 5};
  checkpoint.step = step;
  checkpoint.samples = 224;
  checkpoint.others_samples = 1u << 20;
  checkpoint.data_position = 192;
  checkpoint.shard_index = 1;
  checkpoint.shard_count = 3;
  checkpoint.loss = 0.1234567890123456789;
  checkpoint.job = JobHash{0xabcdef};
  checkpoint.metadata = {{"node", "\"box\\1\" \xc3\xa4\n"}};
  return checkpoint;
}

void write(const std::filesystem::path& path, const Checkpoint& checkpoint) {
  const auto written = write_checkpoint(path, small_schema(), checkpoint);
  REQUIRE_MESSAGE(written, (written ? "" : written.error().text));
}

// The file with `text` taken out of its header, spaces at the header's end in its place, and the
// checksum anew.
std::string without_metadata(std::string file, const std::string& text) {
  const std::size_t at = file.find(text);
  REQUIRE(at != std::string::npos);
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), 8);
  file.insert(8 + header_bytes, text.size(), ' ');
  file.erase(at, text.size());
  const std::string mark = "\"checksum\":\"";
  const std::size_t digits = file.find(mark) + mark.size();
  file.replace(digits, 16, 16, '0');
  file.replace(digits, 16, to_hex(XXH3_64bits(file.data(), file.size())));
  return file;
}

}  // namespace

TEST_CASE("A checkpoint reads back bit for bit, numbers and words included") {
  const TemporaryDirectory directory;
  write(directory / "model.safetensors", small_checkpoint());
  const auto loaded =
      load_checkpoint(directory / "model.safetensors", small_schema(), JobHash{0xabcdef});
  REQUIRE_MESSAGE(loaded, (loaded ? "" : loaded.error().text));
  const Checkpoint& got = loaded->checkpoint;
  const Checkpoint want = small_checkpoint();
  CHECK(loaded->fallback_reason.empty());
  CHECK(got.model == want.model);
  CHECK(got.optimizer == want.optimizer);
  CHECK(got.step == want.step);
  CHECK(got.samples == want.samples);
  CHECK(got.others_samples == want.others_samples);
  CHECK(got.data_position == want.data_position);
  CHECK(got.shard_index == 1);
  CHECK(got.shard_count == 3);
  CHECK(got.loss == want.loss);
  CHECK(got.metadata.at("node") == want.metadata.at("node"));
}

TEST_CASE("A checkpoint without an optimiser's state starts it at zero") {
  const TemporaryDirectory directory;
  Checkpoint checkpoint = small_checkpoint();
  checkpoint.optimizer = {};
  write(directory / "model.safetensors", checkpoint);
  CHECK(load_checkpoint(directory / "model.safetensors", small_schema())->checkpoint.optimizer ==
        OptimizerState{});
}

TEST_CASE("AdamW's variance and steps read back bit for bit, each tensor under its own name") {
  const TemporaryDirectory directory;
  Checkpoint checkpoint = small_checkpoint();
  checkpoint.optimizer = {
      {0.1f, -0.2f, 0.3f, 0.4f, 0, 0, 0}, {1e-30f, 2e-9f, 3, 0, 0, 0, 0}, 1'000'000'007};
  write(directory / "model.safetensors", checkpoint);
  CHECK(load_checkpoint(directory / "model.safetensors", small_schema())->checkpoint.optimizer ==
        checkpoint.optimizer);
  const std::string file = read_file(directory / "model.safetensors");
  const auto header = parse_safetensors(bytes_of(file), file.size(), "f");
  REQUIRE(header);
  std::vector<std::string> names;
  for (const TensorEntry& tensor : header->tensors) names.push_back(tensor.name);
  CHECK(names == std::vector<std::string>{"w", "bn.mean", "bn.count", "momentum.w", "variance.w"});
}

TEST_CASE("A checkpoint from before optimizer_steps was written loads") {
  const TemporaryDirectory directory;
  const auto path = directory / "model.safetensors";
  write(path, small_checkpoint());
  write_file(path, without_metadata(read_file(path), "\"optimizer_steps\":\"5\","));
  const auto loaded = load_checkpoint(path, small_schema());
  REQUIRE_MESSAGE(loaded, (loaded ? "" : loaded.error().text));
  CHECK(loaded->fallback_reason.empty());
  CHECK(loaded->checkpoint.optimizer ==
        OptimizerState{small_checkpoint().optimizer.momentum, {}, 0});
}

TEST_CASE(
    "The scale of an fp16 loss reads back as it stood; without one it starts anew, and one that "
    "cannot be is refused") {
  const TemporaryDirectory directory;
  const auto path = directory / "model.safetensors";
  Checkpoint checkpoint = small_checkpoint();
  checkpoint.optimizer.loss_scale = LossScale::at(4096, 1234);
  write(path, checkpoint);
  const auto loaded = load_checkpoint(path, small_schema());
  REQUIRE(loaded);
  CHECK(loaded->checkpoint.optimizer == checkpoint.optimizer);

  const std::string file = read_file(path);
  write_file(path, without_metadata(without_metadata(file, "\"loss_scale\":\"4096\","),
                                    "\"loss_scale_good_steps\":\"1234\","));
  const auto old = load_checkpoint(path, small_schema());
  REQUIRE_MESSAGE(old, (old ? "" : old.error().text));
  CHECK(old->checkpoint.optimizer == small_checkpoint().optimizer);

  write_file(path, without_metadata(file, "\"loss_scale_good_steps\":\"1234\","));
  const auto strange = load_checkpoint(path, small_schema());
  REQUIRE(!strange);
  CHECK(strange.error().code == "bad-checkpoint");
  CHECK_MESSAGE(contains(strange.error().text, "a number that cannot be"), strange.error().text);
}

TEST_CASE("The checkpoint before the last one is kept, and nothing else is left lying about") {
  const TemporaryDirectory directory;
  for (Step step = 1; step <= 3; ++step)
    write(directory / "model.safetensors", small_checkpoint(step));
  CHECK(load_checkpoint(directory / "model.safetensors", small_schema())->checkpoint.step == 3);
  CHECK(
      load_checkpoint(directory / "model.previous.safetensors", small_schema())->checkpoint.step ==
      2);
  std::size_t files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(directory.string()))
    ++files;
  CHECK(files == 2);
}

TEST_CASE(
    "A checkpoint with any bit flipped or any byte missing is refused and the previous one used") {
  const TemporaryDirectory directory;
  const auto path = directory / "model.safetensors";
  write(path, small_checkpoint(1));
  write(path, small_checkpoint(2));
  const std::string whole = read_file(path);
  for (std::size_t at = 0; at < 2 * whole.size(); ++at) {
    std::string damaged = whole;
    if (at < whole.size())
      damaged[at] = static_cast<char>(damaged[at] ^ 1);
    else
      damaged.resize(at - whole.size());
    write_file(path, damaged);
    const auto loaded = load_checkpoint(path, small_schema());
    REQUIRE_MESSAGE(loaded, at);
    REQUIRE_MESSAGE(loaded->checkpoint.step == 1, at);
    REQUIRE_MESSAGE(contains(loaded->fallback_reason, path.string()), at);
  }
}

TEST_CASE(
    "A corrupt checkpoint is set aside, so that the next write does not replace the good one with "
    "it") {
  const TemporaryDirectory directory;
  const auto path = directory / "model.safetensors";
  write(path, small_checkpoint(1));
  write(path, small_checkpoint(2));
  write_file(path, "garbage");
  REQUIRE(load_checkpoint(path, small_schema()));
  write(path, small_checkpoint(3));
  CHECK(load_checkpoint(path, small_schema())->checkpoint.step == 3);
  CHECK(load_checkpoint(previous_checkpoint_path(path), small_schema())->checkpoint.step == 1);
  CHECK(read_file(directory / "model.corrupt.safetensors") == "garbage");
}

TEST_CASE("Two corrupt checkpoints are refused with both reasons") {
  const TemporaryDirectory directory;
  write_file(directory / "model.safetensors", "garbage");
  write_file(directory / "model.previous.safetensors", "rubbish");
  const auto loaded = load_checkpoint(directory / "model.safetensors", small_schema());
  REQUIRE(!loaded);
  CHECK(loaded.error().code == "bad-checkpoint");
  CHECK(contains(loaded.error().text, "model.previous.safetensors"));
}

TEST_CASE("A FIFO in place of a checkpoint is set aside, and nobody waits for it") {
  const TemporaryDirectory directory;
  const std::filesystem::path path = directory / "current.safetensors";
  write(path, small_checkpoint(7));
  write(path, small_checkpoint(8));
  std::filesystem::remove(path);
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  const auto loaded = load_checkpoint(path, small_schema(), JobHash{0xabcdef});
  REQUIRE(loaded);
  CHECK(loaded->checkpoint.step == 7);
  CHECK(contains(loaded->fallback_reason, "is a FIFO"));
}

TEST_CASE("No checkpoint at all is not-found, which is how every node begins") {
  const TemporaryDirectory directory;
  CHECK(load_checkpoint(directory / "model.safetensors", small_schema()).error().code ==
        "not-found");
}

TEST_CASE("A checkpoint that cannot be looked at is neither missing nor damaged") {
  const TemporaryDirectory directory;
  const std::filesystem::path path = directory / "model.safetensors",
                              previous = directory / "model.previous.safetensors";
  const auto code = [&path] { return load_checkpoint(path, small_schema()).error().code; };
  std::filesystem::create_symlink(path, path);
  CHECK(code() == "io-error");
  std::filesystem::remove(path);
  std::filesystem::create_symlink(previous, previous);
  CHECK(code() == "io-error");
  write_file(path, "garbage");
  CHECK(code() == "io-error");
}

TEST_CASE("A checkpoint of another job or model is refused, and left where it is") {
  const TemporaryDirectory directory;
  const auto path = directory / "model.safetensors";
  write(path, small_checkpoint());
  CHECK(load_checkpoint(path, small_schema(), JobHash{1}).error().code == "foreign-checkpoint");
  const auto other = Schema::build({{"w", {7}, 0, 7, SegmentKind::parameter}});
  CHECK(load_checkpoint(path, *other).error().code == "foreign-checkpoint");
  CHECK(std::filesystem::exists(path));
}

TEST_CASE("A checkpoint from before segments were aligned loads, each value in its place") {
  const TemporaryDirectory directory;
  const auto path = directory / "current.safetensors";
  write(path, small_checkpoint());
  const auto aligned = Schema::build({{"w", {2, 2}, 0, 4, SegmentKind::parameter},
                                      {"bn.mean", {2}, 4, 2, SegmentKind::statistic},
                                      {"bn.count", {}, 8, 1, SegmentKind::local}});
  REQUIRE(aligned);
  const auto loaded = load_checkpoint(path, *aligned);
  REQUIRE(loaded);
  CHECK(loaded->checkpoint.model == std::vector<float>{1, 2, 3, 4, 5, 6, 0, 0, 7});
  CHECK(loaded->checkpoint.optimizer.momentum ==
        std::vector<float>{0.1f, 0.2f, 0.3f, 0.4f, 0, 0, 0, 0, 0});
}

TEST_CASE("A model with NaN never replaces a good checkpoint") {
  const TemporaryDirectory directory;
  const auto path = directory / "model.safetensors";
  write(path, small_checkpoint(1));
  Checkpoint broken = small_checkpoint(2);
  broken.model[3] = std::numeric_limits<float>::quiet_NaN();
  CHECK(write_checkpoint(path, small_schema(), broken).error().code == "not-finite");
  CHECK(load_checkpoint(path, small_schema())->checkpoint.step == 1);
}

TEST_CASE("A checkpoint that is refused at either look leaves what lies there as it is") {
  const TemporaryDirectory directory;
  const auto path = directory / "model.safetensors";
  write(path, small_checkpoint(1));
  for (const int refused_at : {1, 2}) {
    int looks = 0;
    const auto refuses = [&] {
      return ++looks < refused_at ? std::nullopt : std::optional(Error{"io-error", "another's"});
    };
    const auto written = write_checkpoint(path, small_schema(), small_checkpoint(2), {}, refuses);
    REQUIRE_FALSE(written);
    CHECK(written.error().text == "another's");
    CHECK(load_checkpoint(path, small_schema())->checkpoint.step == 1);
    CHECK_FALSE(std::filesystem::exists(previous_checkpoint_path(path)));
  }
}

TEST_CASE("A checkpoint keeps what a local segment holds, infinities included") {
  const TemporaryDirectory directory;
  const auto path = directory / "model.safetensors";
  Checkpoint masked = small_checkpoint();
  masked.model[6] = -std::numeric_limits<float>::infinity();
  write(path, masked);
  CHECK(load_checkpoint(path, small_schema())->checkpoint.model == masked.model);
}

TEST_CASE("A checkpoint into a missing directory fails with the path and the reason") {
  const TemporaryDirectory directory;
  const auto path = directory / "none/model.safetensors";
  const auto written = write_checkpoint(path, small_schema(), small_checkpoint());
  REQUIRE(!written);
  CHECK(written.error().code == "state-gone");
  CHECK(contains(written.error().text, path.string() + ".tmp: open failed: No such file"));
  CHECK(contains(written.error().text, "its directory was removed"));
}

TEST_CASE("On a full disk only a checkpoint that was there is said to be untouched") {
  const TemporaryDirectory directory;
  const auto path = directory / "model.safetensors";
  const auto full = [&] {
    std::filesystem::create_symlink("/dev/full", path.string() + ".tmp");
    const auto written = write_checkpoint(path, small_schema(), small_checkpoint());
    CHECK(written.error().code == "no-space");
    return written.error().text;
  };
  CHECK_FALSE(contains(full(), "untouched"));
  write(path, small_checkpoint());
  CHECK(contains(full(), "the checkpoint before this one is untouched"));
}

TEST_CASE("A checkpoint's metadata can be read without its schema") {
  const TemporaryDirectory directory;
  write(directory / "model.safetensors", small_checkpoint());
  const auto metadata = read_checkpoint_metadata(directory / "model.safetensors");
  REQUIRE(metadata);
  CHECK(metadata->at("step") == "7");
  CHECK(metadata->at("job_hash") == "0000000000abcdef");
}

// ---- weights ----

TEST_CASE(
    "The weights of a checkpoint are its model without what the optimiser knows, and fit the "
    "model") {
  const TemporaryDirectory directory;
  write(directory / "c.safetensors", small_checkpoint());
  const auto weights = read_weights(directory / "c.safetensors");
  REQUIRE(weights);
  CHECK(weights->tensors.size() == 3);
  CHECK(weights->metadata.at("step") == "7");
  std::vector<float> model(7, -1.0f);
  CHECK_FALSE(take_weights(*weights, small_schema(), model).has_value());
  CHECK(model == small_checkpoint().model);
}

TEST_CASE("Integers are no weights but where the model has a counter; half floats are") {
  const TemporaryDirectory directory;
  const auto refusal = [&](TensorType w, TensorType mean) -> std::string {
    std::vector<TensorEntry> tensors{
        {"bn.count", TensorType::i64, {}}, {"w", w, {2, 2}}, {"bn.mean", mean, {2}}};
    const std::uint64_t bytes = 8 + 4 * bytes_of(w) + 2 * bytes_of(mean);
    write_file(directory / "w.safetensors",
               safetensors_header(tensors, {}) + std::string(bytes, '\0'));
    const auto weights = read_weights(directory / "w.safetensors");
    REQUIRE_MESSAGE(weights, (weights ? "" : weights.error().text));
    std::vector<float> model(7, 1.0f);
    const auto error = take_weights(*weights, small_schema(), model);
    CHECK(model == std::vector<float>(7, error ? 1.0f : 0.0f));
    return error ? error->text : "";
  };
  CHECK(refusal(TensorType::f16, TensorType::f64).empty());
  CHECK(refusal(TensorType::bf16, TensorType::f32).empty());
  const std::string text = refusal(TensorType::i64, TensorType::boolean);
  CHECK_MESSAGE(text.find("integers or booleans, are in w (I64), bn.mean (BOOL)") != text.npos,
                text);
  CHECK_FALSE(refusal(TensorType::u8, TensorType::f32).empty());
  CHECK_FALSE(refusal(TensorType::f32, TensorType::i8).empty());
}

TEST_CASE("Weights that were written read back the same, as no checkpoint of ours") {
  const TemporaryDirectory directory;
  write(directory / "c.safetensors", small_checkpoint());
  const auto weights = read_weights(directory / "c.safetensors");
  REQUIRE(weights);
  REQUIRE_FALSE(write_weights(directory / "w.safetensors", *weights).has_value());
  const auto again = read_weights(directory / "w.safetensors");
  REQUIRE_MESSAGE(again, (again ? "" : again.error().text));
  std::vector<float> model(7, -1.0f);
  CHECK_FALSE(take_weights(*again, small_schema(), model).has_value());
  CHECK(model == small_checkpoint().model);
  CHECK(again->metadata.at("format") == "pt");
  CHECK(again->metadata.at("node") == small_checkpoint().metadata.at("node"));
  CHECK_FALSE(load_checkpoint(directory / "w.safetensors", small_schema()));
}

TEST_CASE("Weights whose file is cut short while it is read leave nothing behind") {
  const TemporaryDirectory directory;
  const auto source = directory / "c.safetensors";
  write(source, small_checkpoint());
  const auto weights = read_weights(source);
  REQUIRE(weights);
  std::filesystem::resize_file(source, std::filesystem::file_size(source) - 48);
  const auto error = write_weights(directory / "w.safetensors", *weights);
  REQUIRE(error);
  CHECK(error->code == "io-error");
  std::size_t files = 0;
  for ([[maybe_unused]] const auto& each : std::filesystem::directory_iterator(directory.string()))
    ++files;
  CHECK(files == 1);
}

TEST_CASE(
    "Nobody else may read a checkpoint, its previous one, or one that takes the place of a dead "
    "process's") {
  const TemporaryDirectory directory;
  write_file(directory / "c.safetensors.tmp", "half a checkpoint, as others may read it");
  std::filesystem::permissions(directory / "c.safetensors.tmp", std::filesystem::perms(0644));
  for (const Step step : {1, 2}) write(directory / "c.safetensors", small_checkpoint(step));
  for (const char* name : {"c.safetensors", "c.previous.safetensors"})
    CHECK(std::filesystem::status(directory / name).permissions() == std::filesystem::perms(0600));
}

TEST_CASE("A checkpoint that is damaged gives no weights") {
  const TemporaryDirectory directory;
  write(directory / "c.safetensors", small_checkpoint());
  std::string bytes = read_file(directory / "c.safetensors");
  bytes.back() ^= 1;
  write_file(directory / "c.safetensors", bytes);
  const auto weights = read_weights(directory / "c.safetensors");
  REQUIRE_FALSE(weights);
  CHECK(contains(weights.error().text, "checksum"));
}

TEST_CASE("Weights that do not fit change nothing, and one error names all that differs") {
  const auto tensor = [](std::vector<std::int64_t> shape, float value) {
    return Weights::Tensor{std::move(shape),
                           [value](std::span<float> out) { std::ranges::fill(out, value); }};
  };
  const Weights weights{
      "x.safetensors",
      {{"w", tensor({2, 3}, 1)}, {"bn.count", tensor({}, NAN)}, {"head", tensor({1}, 1)}},
      {}};
  std::vector<float> model{1, 2, 3, 4, 5, 6, 7};
  const auto error = take_weights(weights, small_schema(), model);
  REQUIRE(error);
  CHECK(error->code == "bad-weights");
  for (const char* words :
       {"x.safetensors", "w is [2, 3] but the model's is [2, 2]", "it lacks bn.mean;",
        "the model has no head;", "NaN or infinity is in bn.count;"}) {
    CAPTURE(words);
    CHECK(contains(error->text, words));
  }
  CHECK(model == std::vector<float>{1, 2, 3, 4, 5, 6, 7});
}
