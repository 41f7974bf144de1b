#include "data_test_support.h"
#include "models/data/data_look.h"

using namespace gossipd;
using test::contains;
using test::safetensors;
using test::TemporaryDirectory;
using test::tensor;
using test::write_file;

namespace {

using Integers = std::vector<std::int64_t>;

constexpr std::int64_t samples = 40, width = 3;
const Integers two_labels{0, 1};

// As many as there are samples, over and over.
Integers repeated(const Integers& values, std::int64_t count = samples) {
  Integers out;
  for (std::int64_t i = 0; i < count; ++i)
    out.push_back(values[static_cast<std::size_t>(i) % values.size()]);
  return out;
}

// 0, 0.25, 0.5, ... 2.25 over and over, times `scale`, plus `offset`.
std::vector<float> steps(double scale, double offset = 0) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < samples * width; ++i)
    values.push_back(static_cast<float>(0.25 * static_cast<double>(i % 10) * scale + offset));
  return values;
}

std::string of_floats(const std::vector<float>& inputs, const Integers& labels = two_labels) {
  return safetensors({tensor("inputs", TensorType::f32, {samples, width}, inputs),
                      tensor("targets", TensorType::i64, {samples}, repeated(labels))});
}

std::string of_integers(const Integers& inputs, const Integers& labels = two_labels) {
  return safetensors(
      {tensor("inputs", TensorType::i64, {samples, width}, repeated(inputs, samples * width)),
       tensor("targets", TensorType::i64, {samples}, repeated(labels))});
}

struct Files {
  TemporaryDirectory directory;
  Files& add(const std::string& name, const std::string& bytes) {
    std::filesystem::create_directories((directory / name).parent_path());
    write_file(directory / name, bytes);
    return *this;
  }
  [[nodiscard]] DataLook look() const {
    auto found = look_at_data(directory.string());
    REQUIRE_MESSAGE(found, (found ? "" : found.error().text));
    return *found;
  }
  // Behind the directory.
  [[nodiscard]] std::string error() const {
    const auto found = look_at_data(directory.string());
    REQUIRE(!found);
    REQUIRE(found.error().text.starts_with(directory.string() + "/"));
    return found.error().text.substr(directory.string().size() + 1);
  }
};

// To test with as well: then all of it is trained on, and measured.
DataSpec look_at_floats(const std::vector<float>& inputs) {
  const std::string file = of_floats(inputs);
  return Files().add("train.safetensors", file).add("test.safetensors", file).look().spec;
}

std::string error_of(const std::string& file) {
  return Files().add("train.safetensors", file).add("test.safetensors", file).error();
}

std::string idx(const std::string& extents, const std::string& values) {
  std::string file = {0, 0, 8, static_cast<char>(extents.size())};
  for (const char extent : extents) file += std::string(3, '\0') + extent;
  return file + values;
}

const std::string images = idx("\x04\x02\x02", std::string("\x10\x80\xff\x00", 4) + "abcdefghijkl");
const std::string tiny_png("\x89PNG", 4);  // as far as it is looked at

// 1 x 1, black.
const std::string whole_png(
    "\211PNG\015\012\032\012\000\000\000\015IHDR\000\000\000\001\000\000\000\001\010\000"
    "\000\000\000\072\176\233U\000\000\000\012IDAT\170\332\143\140\000\000\000\002\000"
    "\001\345\047\336\374\000\000\000\000IEND\256B\140\202",
    67);

}  // namespace

TEST_CASE("Inputs of any scale that a job takes are measured, and keep four digits") {
  for (const double scale : {1e-5, 1e-3, 1.0, 1e3, 1e5}) {
    CAPTURE(scale);
    const DataSpec spec = look_at_floats(steps(scale));
    CHECK(spec.mean.at(0) == doctest::Approx(1.125 * scale).epsilon(1e-3));
    CHECK(spec.deviation.at(0) == doctest::Approx(0.71807 * scale).epsilon(1e-3));
  }
  CHECK(look_at_floats(steps(1)).deviation.at(0) == 0.7181);  // four decimals, as ever
}

TEST_CASE("Small differences of large inputs are measured, and are no constant") {
  const DataSpec spec = look_at_floats(steps(0.25, 1000));
  CHECK(spec.mean.at(0) == doctest::Approx(1000.28125).epsilon(1e-7));
  CHECK(spec.deviation.at(0) == doctest::Approx(0.17952).epsilon(1e-3));
}

TEST_CASE("A negative mean that is almost 0 is written without a sign") {
  std::vector<float> inputs = steps(1, -1.125);
  inputs[0] -= 1e-4f;
  CHECK_FALSE(std::signbit(look_at_floats(inputs).mean.at(0)));
}

TEST_CASE("Only inputs that are all the same have the deviation 1, and it is said") {
  for (const double value : {0.0, 1e-5, 3.0, 1e5}) {
    CAPTURE(value);
    Files files;
    files.add("train.safetensors", of_floats(steps(0, value)));
    CHECK(files.look().constant_channels == width);
    CHECK(files.look().spec.deviation == std::vector<double>(width, 1));
  }
  CHECK(Files().add("train.safetensors", of_floats(steps(1e-5))).look().constant_channels == 0);
}

TEST_CASE("Each column of a table is measured, and each channel of a series") {
  const auto look = [](const Integers& shape, double (*value)(std::int64_t)) {
    std::int64_t values = 1;
    for (const std::int64_t extent : shape) values *= extent;
    std::vector<float> inputs;
    for (std::int64_t i = 0; i < values; ++i) inputs.push_back(static_cast<float>(value(i)));
    const std::string file =
        safetensors({tensor("inputs", TensorType::f32, shape, inputs),
                     tensor("targets", TensorType::i64, {shape[0]}, repeated({0, 1}, shape[0]))});
    return Files().add("train.safetensors", file).add("test.safetensors", file).look();
  };
  // Ages, incomes, one and the same, and what rounding left.
  const DataLook table = look({samples, 4}, [](std::int64_t i) {
    const double sign = i / 4 % 2 == 0 ? 1 : -1;
    return std::array{40 + sign * 15, 5e4 + sign * 2e4, 7.0, sign * 1e-9}[std::size_t(i % 4)];
  });
  CHECK(table.spec.mean == std::vector<double>{40, 50000, 7, 0});
  CHECK(table.spec.deviation == std::vector<double>{15, 20000, 1, 1});
  CHECK(table.constant_channels == 2);
  const DataLook series = look({samples, 2, 6}, [](std::int64_t i) {
    return (i % 2 == 0 ? 1 : -1) * (i / 6 % 2 == 0 ? 3.0 : 500.0);
  });
  CHECK(series.spec.deviation == std::vector<double>{3, 500});
  const auto ones = [](std::int64_t i) { return i % 2 == 0 ? 1.0 : -1.0; };
  CHECK(look({3, 2048}, ones).spec.mean.size() == 2048);
  CHECK(look({3, 2049}, ones).spec.mean.size() == 1);
}

TEST_CASE("A column beyond what a job takes is named") {
  std::vector<float> inputs = steps(1);
  for (std::size_t i = 1; i < inputs.size(); i += width) inputs[i] *= 1e9f;
  CHECK(contains(error_of(of_floats(inputs)), " in column 1, from 0, and a job takes means up to"));
}

TEST_CASE("Inputs beyond what a job takes are refused with their file, their scale, the way out") {
  for (const double scale : {1e-8, 1e8, 1e37}) {
    CAPTURE(scale);
    const std::string error = error_of(of_floats(steps(scale)));
    CHECK(error.starts_with("train.safetensors: the inputs have a mean of 1.125e"));
    CHECK(contains(error, "write the inputs times a factor"));
  }
  Files two;
  two.add("a.safetensors", of_floats(steps(1e8))).add("b.safetensors", of_floats(steps(1e8)));
  CHECK(two.error().starts_with("a.safetensors and 1 more: the inputs have a mean"));
}

TEST_CASE("Inputs that are integers from 0 on are a vocabulary, of training and test files") {
  Files files;
  files.add("train.safetensors", of_integers({0, 7, 49}));
  CHECK(files.look().spec.vocabulary == 50);
  CHECK(files.look().spec.classes == 2);
  files.add("test.safetensors", of_integers({0, 99}));
  CHECK(files.look().spec.vocabulary == 100);
}

TEST_CASE("Bytes are pixels, and integers below 0 are quantities: both are normalised") {
  const std::vector<std::uint8_t> bytes(samples * width, 51);
  Files files;
  files.add("train.safetensors",
            safetensors({tensor("inputs", TensorType::u8, {samples, width}, bytes),
                         tensor("targets", TensorType::i64, {samples}, repeated({0, 1}))}));
  CHECK(files.look().spec.vocabulary == 0);
  CHECK(files.look().spec.mean == std::vector<double>{0.2});
  files.add("train.safetensors", of_integers({-1, 1}));
  files.add("test.safetensors", of_integers({-1, 1}));
  CHECK(files.look().spec.vocabulary == 0);
  CHECK(files.look().spec.deviation == std::vector<double>(width, 1));
  CHECK(files.look().constant_channels == 0);
}

TEST_CASE("Test files of other numbers than the training files are named") {
  Files files;
  files.add("train.safetensors", of_integers({0, 7}));
  files.add("test.safetensors", of_integers({-1, 7}));
  CHECK(files.error().starts_with("test.safetensors: tensor 'inputs' holds other numbers"));
  files.add("test.safetensors", of_integers({0, 7}, {-1}));
  CHECK(files.error().starts_with("test.safetensors: tensor 'targets' holds other numbers"));
}

TEST_CASE("A label that is to be ignored makes no quantities of the classes") {
  Files files;
  files.add("train.safetensors", of_integers({0, 7}, {0, 1, -1}));
  CHECK(contains(files.error(), "'targets' holds -1 beside integers from 0 on; leave out"));
  CHECK(contains(files.error(), "write floats where they are quantities"));
}

TEST_CASE("A column of integers is as good a list of classes as a row of them") {
  const auto file = [](const Integers& labels) {
    return safetensors({tensor("inputs", TensorType::f32, {samples, width}, steps(1)),
                        tensor("targets", TensorType::i64, {samples, 1}, repeated(labels))});
  };
  const DataLook look = Files().add("train.safetensors", file({0, 1, 2})).look();
  CHECK(look.spec.classes == 3);
  CHECK(look.spec.target_shape.empty());
  CHECK(look.train_samples + look.held_out_samples == samples);
  // Quantities stay what they are.
  CHECK(Files().add("train.safetensors", file({-5, 1})).look().spec.target_shape == Integers{1});
}

TEST_CASE("Files of one class only are refused, in whatever number it is") {
  for (const std::int64_t only : {0, 3}) {
    const std::string one = of_floats(steps(1), {only});
    CHECK(error_of(one).starts_with("train.safetensors: tensor 'targets' holds one class only, " +
                                    std::to_string(only) + "; a model learns to tell two or more"));
    Files two;
    two.add("a.safetensors", one).add("b.safetensors", of_floats(steps(1), {only + 1}));
    CHECK(two.look().spec.classes == only + 2);
  }
  Files pixels;
  pixels.add("train-images-idx3-ubyte", images)
      .add("train-labels-idx1-ubyte", idx("\x04", std::string("\1\1\1\1", 4)));
  CHECK(pixels.error().starts_with("train-labels-idx1-ubyte: holds one class only, 1"));
}

TEST_CASE("Classes of which most have no sample are noted, with the way to number them") {
  Files files;
  files.add("train.safetensors", of_floats(steps(1), {0, 1000, 2000}));
  const DataLook look = files.look();
  CHECK(look.spec.classes == 2001);
  REQUIRE(look.notes.size() == 1);
  CHECK(look.notes[0].starts_with("of 2001 classes, as the largest is 2000, only 3 have a sample"));
  CHECK(contains(look.notes[0], "number them 0 to 2"));
  files.add("train.safetensors", of_floats(steps(1), {0, 1, 3}));
  CHECK(files.look().notes.empty());
}

TEST_CASE("Targets that training does not reach are noted, with the way to write them") {
  const auto notes_on = [](double scale, double offset) {
    std::vector<float> targets;
    for (std::int64_t i = 0; i < samples; ++i)
      targets.push_back(static_cast<float>(offset + scale * (i % 2 == 0 ? 1 : -1)));
    return Files()
        .add("train.safetensors",
             safetensors({tensor("inputs", TensorType::f32, {samples, width}, steps(1)),
                          tensor("targets", TensorType::f32, {samples}, targets)}))
        .look()
        .notes;
  };
  for (const auto& [scale, offset] : {std::pair(1.0, 0.0), {20.0, -25.0}, {0.02, 1.0}})
    CHECK(notes_on(scale, offset).empty());
  const auto note = [&](double scale, double offset) {
    const std::vector<std::string> notes = notes_on(scale, offset);
    REQUIRE(notes.size() == 1);
    return notes[0];
  };
  CHECK(note(400'000, 0).starts_with("targets have a mean of "));
  CHECK(contains(note(400'000, 500'000), ": divide them by 400000 before training"));
  CHECK(contains(note(0.001, 0), ": divide them by 0.001 before"));
  CHECK(contains(note(1, 2000), " from them before training"));
  CHECK(contains(note(50, 2000), " from them and divide them by 50 before training"));
  CHECK(note(0, 7).starts_with("targets are all 7, or nearly, so there is nothing to learn"));
}

TEST_CASE("Images with their channels last are noted, and measured with one mean") {
  const auto look = [](const Integers& shape) {
    Integers whole{samples};
    whole.insert(whole.end(), shape.begin(), shape.end());
    std::int64_t values = samples;
    for (const std::int64_t extent : shape) values *= extent;
    const std::vector<std::uint8_t> bytes(static_cast<std::size_t>(values), 51);
    return Files()
        .add("train.safetensors",
             safetensors({tensor("inputs", TensorType::u8, whole, bytes),
                          tensor("targets", TensorType::i64, {samples}, repeated({0, 1}))}))
        .look();
  };
  for (const std::int64_t channels : {1, 3}) {
    const DataLook last = look({8, 12, channels});
    REQUIRE(last.notes.size() == 1);
    CHECK(contains(last.notes[0], "rows x columns x channels"));
    CHECK(contains(last.notes[0], "x.permute(0, 3, 1, 2)"));
    CHECK(last.spec.mean == std::vector<double>{0.2});
    const DataLook first = look({channels, 8, 12});
    CHECK(first.notes.empty());
    CHECK(first.spec.mean.size() == static_cast<std::size_t>(channels));
    CHECK(look({2, 50, channels}).notes.empty());  // a series
  }
}

TEST_CASE("What is missing of four IDX files is named") {
  Files files;
  const auto said = [&files] {
    const auto found = look_at_data(files.directory.string());
    REQUIRE(!found);
    return found.error().text.substr(files.directory.string().size());
  };
  files.add("t10k-labels-idx1-ubyte", "");
  CHECK(said().starts_with(": train-images-idx3-ubyte and train-labels-idx1-ubyte are missing"));
  files.add("train-images-idx3-ubyte.gz", "");
  CHECK(said().starts_with(": train-labels-idx1-ubyte is missing, plain or as .gz"));
  files.add("train-labels-idx1-ubyte", idx("\x04", std::string("\0\1\0\1", 4)));
  std::filesystem::remove(files.directory / "train-images-idx3-ubyte.gz");
  CHECK(said().starts_with(": train-images-idx3-ubyte is missing"));
  files.add("train-images-idx3-ubyte", images);
  REQUIRE(files.look().notes.size() == 1);
  CHECK(files.look().notes[0].starts_with("t10k-images-idx3-ubyte is missing, so a part of"));
}

TEST_CASE("Folders of classes that are not in train/ are told where to go") {
  const auto said = [](const Files& files) {
    const auto found = look_at_data(files.directory.string());
    REQUIRE(!found);
    return found.error().text;
  };
  Files files;
  files.add("cat/1.png", tiny_png).add("dog/1.JPG", tiny_png).add("test/cat/1.png", tiny_png);
  CHECK(contains(said(files),
                 "move the folders of images into a folder train, so that cat/ "
                 "becomes train/cat/; models/README.md"));
  Files others;
  others.add("cat/1.webp", "");
  CHECK_FALSE(contains(said(others), "move the folders"));
}

TEST_CASE("One sample is too few to hold out a part, and it is said so") {
  const std::string one =
      safetensors({tensor("inputs", TensorType::f32, {1, 2}, std::vector<float>{1, 2}),
                   tensor("targets", TensorType::f32, {1}, std::vector<float>{1})});
  Files files;
  files.add("train.safetensors", one);
  const auto found = look_at_data(files.directory.string());
  REQUIRE(!found);
  CHECK(contains(found.error().text, ": there is 1 sample to train on"));
  CHECK(contains(found.error().text, "takes 2 or more; add samples, or files to test with"));
}

TEST_CASE("A class that only test files hold counts among the classes") {
  Files files;
  files.add("train.safetensors", of_floats(steps(1), {0, 1}));
  files.add("test.safetensors", of_floats(steps(1), {0, 4}));
  CHECK(files.look().spec.classes == 5);
  Files pixels;
  pixels.add("train-images-idx3-ubyte", images)
      .add("train-labels-idx1-ubyte", idx("\x04", std::string("\0\1\0\1", 4)))
      .add("t10k-images-idx3-ubyte", images)
      .add("t10k-labels-idx1-ubyte", idx("\x04", std::string("\0\1\6\1", 4)));
  CHECK(pixels.look().spec.classes == 7);
  CHECK(pixels.look().held_out_samples == 4);
}

TEST_CASE("Labels and inputs beyond the range are refused as integers, whole as they are") {
  for (const std::int64_t large : {std::int64_t{1} << 24, std::int64_t{9000000159745},
                                   std::numeric_limits<std::int64_t>::max()}) {
    const std::string error = error_of(of_floats(steps(1), {0, large}));
    CHECK(error.starts_with("train.safetensors: tensor 'targets' holds " + std::to_string(large) +
                            ", and a job takes classes below 16777216; number them from 0 on"));
    CHECK(error_of(of_integers({0, large}))
              .starts_with("train.safetensors: tensor 'inputs' holds " + std::to_string(large)));
  }
  CHECK(Files()
            .add("train.safetensors", of_floats(steps(1), {0, (1 << 24) - 1}))
            .look()
            .spec.classes == 1 << 24);
}

TEST_CASE("Tensors that a job could not name are refused with the file and the way out") {
  const auto shaped = [](const std::string& name, const Integers& shape) {
    std::int64_t values = 1;
    for (const std::int64_t extent : shape) values *= extent;
    return safetensors(
        {tensor(name, TensorType::f32, shape, std::vector<float>(static_cast<std::size_t>(values))),
         tensor("targets", TensorType::i8, {2}, std::vector<std::int8_t>{0, 1})});
  };
  CHECK(error_of(shaped("inputs", {2, 0}))
            .starts_with("train.safetensors: tensor 'inputs' has shape [2, 0], so there is nothing "
                         "in it; write the file again"));
  CHECK(contains(error_of(shaped("inputs", {0, 2})), "so there is nothing in it"));
  CHECK(contains(error_of(shaped("inputs", {2})), "x.reshape(-1, 1)"));
  CHECK(contains(error_of(shaped("inputs", {2, 1, 1, 1, 1, 5})), "x.reshape(len(x), -1)"));
  CHECK(contains(error_of(shaped("my inputs", {2, 5})), "has a name that cannot stand in a job"));
  std::vector<float> inputs = steps(1);
  inputs[5] = std::numeric_limits<float>::quiet_NaN();
  CHECK(error_of(of_floats(inputs)).starts_with("train.safetensors: sample 1: input holds NaN"));
}

TEST_CASE("A file whose name cannot stand in a job is named before the draft is written") {
  const std::string text(1000, 'a');
  for (const std::string name : {"b\xff.txt", "it\"s.txt", "a\nb.txt"}) {
    const std::string error = Files().add("a.txt", text).add(name, text).error();
    CHECK(error.starts_with(name + ": its name cannot stand in a job"));
    CHECK(contains(error, "rename it"));
  }
}

TEST_CASE("UTF-16 is noted, with the way to UTF-8") {
  const std::string text = "\xff\xfe" + std::string(800, 'a');
  CHECK(contains(Files().add("a.txt", text).look().notes.at(0), "a.txt is UTF-16"));
  CHECK(Files().add("a.txt", text.substr(2)).look().notes.empty());
}

TEST_CASE("Files to test with begin with a word that says so, and not with a longer one") {
  const std::string text(1000, 'a');
  const std::vector<std::string> held_out{"dev_a.txt",     "test.txt",  "test1.txt",
                                          "testset.txt",   "val-0.txt", "valid.1.txt",
                                          "validation.txt"};
  const std::vector<std::string> trained_on{"device_03.txt", "testament.txt", "train.txt",
                                            "valence.txt",   "valley.txt",    "valr\u00e9as.txt"};
  Files files;
  for (const auto* names : {&held_out, &trained_on})
    for (const std::string& name : *names) files.add(name, text);
  const DataSpec spec = files.look().spec;
  CHECK(spec.test_files == held_out);
  CHECK(spec.train_files == trained_on);
}

TEST_CASE("More files than a job takes are refused with their number, and none is left out") {
  const std::string text(1000, 'a');
  for (const std::string part : {"", "test"}) {
    Files files;
    files.add("a.txt", text);
    for (int i = 0; i < 256; ++i) files.add(part + std::to_string(i) + ".txt", text);
    if (part.empty())
      CHECK(files.error() == "*.txt: are 257 files to train on, and a job takes 256; join some");
    else
      CHECK(files.look().spec.test_files.size() == 256);
    files.add("test-more.txt", text);
    if (!part.empty())
      CHECK(files.error() == "*.txt: are 257 files to test with, and a job takes 256; join some");
  }
}

TEST_CASE("Images without rows are refused with their file") {
  Files files;
  files.add("train-images-idx3-ubyte", idx(std::string("\x02\0\x05", 3), ""))
      .add("train-labels-idx1-ubyte", idx("\x02", std::string("\0\1", 2)));
  CHECK(files.error().starts_with("train-images-idx3-ubyte: holds images of 0 x 5"));
}

TEST_CASE("A folder without images is named, and removing it is the way out") {
  Files files;
  files.add("train/a/1.png", tiny_png).add("train/b/deep/1.PNG", tiny_png);
  files.add("train/c/notes.md", "nothing").add("train/c/.thumbnails/1.png", tiny_png);
  CHECK(files.error() == "train/c: holds no images (.jpg, .jpeg, .png): remove it");
  std::filesystem::remove_all(files.directory / "train/c");
  files.add("test/a/1.png", tiny_png).add("test/b/1.png", tiny_png).add("test/d/notes.md", "");
  CHECK(files.error() == "test/d: holds no images (.jpg, .jpeg, .png): remove it");
}

TEST_CASE("Folders of images that training and test do not share are named with the way out") {
  Files files;
  files.add("train/a/1.png", tiny_png).add("train/b/1.png", tiny_png);
  files.add("test/notes.md", "");
  CHECK(files.error().starts_with("test: holds no images of a class: put some into it"));
  files.add("test/a/1.png", tiny_png).add("test/b/notes.md", "");
  CHECK(files.error() ==
        "test/b: holds no images, and train/b does: put some into it, or remove it");
  files.add("test/b/1.png", tiny_png).add("test/c/1.png", tiny_png);
  CHECK(files.error() ==
        "test/c: is a class that train/ lacks, so no model would learn it: remove it, or put "
        "images of it into train/c");
}

TEST_CASE("All classes of images are named, of hundreds too, unless a job has no room for them") {
  Files files;
  std::vector<std::string> names;
  for (int i = 100; i < 300; ++i) {
    names.push_back("class " + std::to_string(i));
    files.add("train/" + names.back() + "/1.png", whole_png);
  }
  CHECK(files.look().spec.class_names == names);
  CHECK(files.look().spec.classes == 200);
  files.add("test/class 250/1.png", whole_png);
  CHECK(files.look().held_out_samples == 1);
  for (const std::string& name : names)
    std::filesystem::rename(files.directory / "train" / name,
                            files.directory / "train" / (name + std::string(240, 'x')));
  std::filesystem::remove_all(files.directory / "test");
  CHECK(files.look().spec.class_names.empty());
  CHECK(files.look().spec.classes == 200);
}
