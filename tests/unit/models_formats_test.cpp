#include <algorithm>
#include <fstream>
#include <set>

#include "data_test_support.h"
#include "models/data/cifar.h"
#include "models/data/count_epoch.h"
#include "models/data/idx.h"
#include "models/data/token_set.h"
#include "models/files/data_file.h"

using namespace gossipd;
using test::bytes_of;
using test::contains;
using test::data_spec;
using test::load;
using test::load_error;
using test::refused_data_spec;
using test::safetensors;
using test::sample;
using test::TemporaryDirectory;
using test::tensor;
using test::Tensor;
using test::write_file;

namespace {

std::string cifar_record(const std::string& labels, char first, char last) {
  std::string record = labels + std::string(3072, '\x33');
  record[labels.size()] = first;
  record.back() = last;
  return record;
}

const std::string one_cifar_file = "kind = 'cifar10'\ntrain_files = ['a.bin']\n";

std::string little_endian(const std::vector<int>& tokens) {
  std::string out;
  for (const int token : tokens) {
    out += static_cast<char>(token & 0xff);
    out += static_cast<char>(token >> 8);
  }
  return out;
}

std::vector<int> counting(int count) {
  std::vector<int> tokens(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) tokens[static_cast<std::size_t>(i)] = i;
  return tokens;
}

const std::string four_tokens =
    "kind = 'tokens'\nvocabulary = 1000\nlength = 4\ntrain_files = ['t.bin']\n";

const std::string pairs = "kind = 'safetensors'\nshape = [2]\ntrain_files = ['p.safetensors']\n";

}  // namespace

TEST_CASE("The canonical text of every kind of data parses to the same data and to itself") {
  for (const std::string table :
       {"kind = 'idx'\ndivision = 'shared'\nvalidation_fraction = 0.1\nrandom_crop = "
        "2\nrandom_flip = true\n",
        "kind = 'cifar10'\nmean = [0.49, 0.48, 0.45]\n",
        "kind = 'cifar100'\nlabels = 'coarse'\nvalidation_fraction = 0.25\n",
        "kind = 'images'\nclass_names = ['cat', 'dog']\nlabels = 'file_name'\n",
        "kind = 'images'\nclasses = 4\nshape = [1, 32, 48]\nfit = 'stretch'\nvalidation_fraction = "
        "0.5\n",
        "kind = 'tokens'\nvocabulary = 50257\ntrain_files = ['train.bin']\ntest_files = "
        "['val.bin']\n",
        "kind = 'text'\nlength = 64\ntrain_files = ['GPL-2', 'GPL-3']\nvalidation_fraction = 0.1\n",
        "kind = 'safetensors'\nshape = [3, 8, 8]\ntarget_shape = [2]\ntrain_files = "
        "['a.safetensors']\nmean = -2\ndeviation = [1, 2, 3]\n",
        "kind = 'safetensors'\nshape = [8]\nvocabulary = 9\nclasses = 5\ninputs = 'x'\ntrain_files "
        "= ['a.safetensors']\n"}) {
    const DataSpec data = data_spec(table);
    CanonicalText text;
    write_data_spec(data, text);
    CHECK(data_spec(text.text.substr(text.text.find("kind"))) == data);
  }
}

TEST_CASE("A [data] table that makes no sense is refused with the way out") {
  CHECK(contains(refused_data_spec("kind = 'imagse'\n"), "did you mean 'images'"));
  CHECK(
      contains(refused_data_spec("kind = 'text'\n"), "train_files: is missing; write train_files"));
  for (const std::string name : {"../secret", "", "..", "a\\nb", "a\\\"b"})
    CHECK(contains(refused_data_spec("kind = 'text'\ntrain_files = ['good', \"" + name + "\"]\n"),
                   "train_files: '"));
  CHECK(contains(refused_data_spec("kind = 'cifar10'\nshape = [3, 32, 32]\n"), "shape"));
  CHECK(contains(refused_data_spec("kind = 'cifar10'\nmean = [0.1, 0.2]\n"),
                 "one for each of the 3 channels"));
  CHECK(contains(refused_data_spec("kind = 'cifar10'\nmean = [0.1, 'x', 0.2]\n"),
                 "every element must be a number"));
  CHECK(contains(refused_data_spec("kind = 'images'\n"), "class_names: is missing"));
  CHECK(contains(refused_data_spec("kind = 'images'\nclass_names = ['a', 'b', 'a']\n"),
                 "names a class twice"));
  CHECK(contains(refused_data_spec("kind = 'images'\nclasses = 3\nlabels = 'file_name'\n"),
                 "file names are matched with it"));
  CHECK(contains(refused_data_spec("kind = 'tokens'\ntrain_files = ['a']\n"),
                 "vocabulary: is missing"));
  CHECK(contains(
      refused_data_spec(
          "kind = 'text'\ntrain_files = ['a']\ntest_files = ['b']\nvalidation_fraction = 0.1\n"),
      "exclude each other"));
  CHECK(contains(refused_data_spec("kind = 'safetensors'\ntrain_files = ['a']\n"),
                 "shape: is missing"));
  CHECK(contains(
      refused_data_spec(
          "kind = 'safetensors'\nshape = [60000, 60000, 60000, 60000]\ntrain_files = ['a']\n"),
      "more than"));
  CHECK(contains(refused_data_spec("kind = 'text'\ntrain_files = ['a']\nrandom_flip = true\n"),
                 "random_flip"));
}

TEST_CASE("A file that is named twice is refused, and one to train on and to test with") {
  for (const std::string lists :
       {"kind = 'text'\ntrain_files = ['a', 'b', 'a']\n",
        "kind = 'cifar10'\ntrain_files = ['a', 'a']\n",
        "kind = 'safetensors'\nshape = [2]\ntrain_files = ['a', 'b', 'a']\ntest_files = ['c']\n"})
    CHECK(contains(refused_data_spec(lists), "train_files: names 'a' twice; name it once"));
  for (const std::string lists :
       {"kind = 'text'\ntrain_files = ['b', 'a']\ntest_files = ['c', 'a']\n",
        "kind = 'safetensors'\nshape = [2]\ntrain_files = ['a']\ntest_files = ['a']\n",
        "kind = 'tokens'\nvocabulary = 9\ntrain_files = ['a']\ntest_files = ['a', 'b']\n"})
    CHECK(contains(refused_data_spec(lists),
                   "test_files: names 'a' as train_files does; name it once, or hold out"));
  CHECK(contains(refused_data_spec("kind = 'text'\ntrain_files = ['a']\ntest_files = ['b', 'b']\n"),
                 "test_files: names 'b' twice"));
  CHECK(contains(refused_data_spec("kind = 'images'\nclasses = 2\ntrain_folder = 'test'\n"),
                 "test_folder: names 'test' as train_folder does"));
  CHECK(contains(refused_data_spec("kind = 'idx'\ntest_images = 'train-images-idx3-ubyte'\n"),
                 "test_images: names 'train-images-idx3-ubyte' as train_images does"));
  // What is held out of the training files is not in the default for those to test with.
  const std::string part = "validation_fraction = 0.1\n";
  CHECK(data_spec("kind = 'images'\nclasses = 2\ntrain_folder = 'test'\n" + part).classes == 2);
  CHECK(data_spec("kind = 'cifar10'\ntrain_files = ['test_batch.bin']\n" + part).classes == 10);
}

TEST_CASE("Files and classes may have any name that a terminal shows as it is") {
  const DataSpec text = data_spec("kind = 'text'\ntrain_files = ['w\xc3\xb6rter und mehr.txt']\n");
  CHECK(text.train_files == std::vector<std::string>{"w\xc3\xb6rter und mehr.txt"});
  const DataSpec images =
      data_spec("kind = 'images'\nclass_names = ['gr\xc3\xbcn', 'golden retriever']\n");
  CHECK(images.class_names.at(1) == "golden retriever");
  CanonicalText canonical;
  write_data_spec(images, canonical);
  CHECK(data_spec(canonical.text.substr(canonical.text.find("kind"))) == images);
}

TEST_CASE("CIFAR-10 records become normalised planes and labels, file after file") {
  const TemporaryDirectory directory;
  write_file(directory / "a.bin",
             cifar_record("\x07", '\x00', '\xff') + cifar_record("\x02", '\x01', '\x02'));
  write_file(directory / "b.bin", cifar_record("\x09", '\x05', '\x06'));
  write_file(directory / "c.bin", cifar_record("\x09", '\x05', '\x06'));
  const DataSets sets = load(
      "kind = 'cifar10'\ntrain_files = ['a.bin', 'b.bin']\ntest_files = ['c.bin']\nmean = [0.5, "
      "0.2, 0.1]\ndeviation = 0.5\n",
      directory);
  CHECK(sets.train->count() == 3);
  CHECK(sets.held_out->count() == 1);
  CHECK(sets.train->input().shape == std::vector<std::int64_t>{3, 32, 32});
  const auto first = sample(*sets.train, 0);
  CHECK(first->targets()[0] == 7);
  CHECK(first->inputs()[0] == doctest::Approx((0.0 - 0.5) / 0.5));
  CHECK(first->inputs()[1024] == doctest::Approx((0.2 - 0.2) / 0.5));
  CHECK(first->inputs()[3071] == doctest::Approx((1.0 - 0.1) / 0.5));
  CHECK(sample(*sets.train, 2)->targets()[0] == 9);
  CHECK(sets.train->label(1) == 2);
}

TEST_CASE(
    "CIFAR-100 has fine and coarse labels, and is found in the folder that its archive unpacks "
    "to") {
  const TemporaryDirectory directory;
  std::filesystem::create_directory(directory / "cifar-100-binary");
  for (const char* name : {"train.bin", "test.bin"})
    write_file(directory / "cifar-100-binary" / name, cifar_record("\x0b\x5f", 1, 2));
  CHECK(sample(*load("kind = 'cifar100'\n", directory).train, 0)->targets()[0] == 95);
  CHECK(sample(*load("kind = 'cifar100'\nlabels = 'coarse'\n", directory).train, 0)->targets()[0] ==
        11);
}

TEST_CASE(
    "CIFAR files that are cut, empty, missing or have labels out of range are refused by name") {
  const TemporaryDirectory directory;
  CHECK(load_error(one_cifar_file, directory).code == "no-data");
  CHECK(contains(load_error(one_cifar_file, directory).text,
                 "'a.bin' is not there; point --data at"));
  write_file(directory / "a.bin", "");
  CHECK(contains(load_error(one_cifar_file, directory).text, "a.bin: is empty"));
  write_file(directory / "a.bin", cifar_record("\x01", 0, 0).substr(0, 3000));
  const Error cut = load_error(one_cifar_file, directory);
  CHECK(cut.code == "bad-data");
  CHECK(contains(cut.text, "not a multiple of the 3073"));
  write_file(directory / "a.bin", cifar_record("\x01", 0, 0) + cifar_record("\x0a", 0, 0));
  CHECK(contains(load_error(one_cifar_file, directory).text,
                 "record 1 has label 10 but there are 10 classes"));
}

TEST_CASE(
    "A part held out by fraction is the same for one seed, another for another, and shares nothing "
    "with the rest") {
  const TemporaryDirectory directory;
  std::string file;
  for (int i = 0; i < 40; ++i) file += cifar_record("\x01", static_cast<char>(i), 0);
  write_file(directory / "a.bin", file);
  const auto pixels_of = [](const DataSet& set) {
    std::vector<int> out;
    for (std::size_t i = 0; i < set.count(); ++i)
      out.push_back(static_cast<int>(sample(set, i)->inputs()[0] * 255 + 0.5f));
    return out;
  };
  const std::string table = one_cifar_file + "validation_fraction = 0.25\n";
  const DataSets sets = load(table, directory, 7);
  const std::vector<int> held_out = pixels_of(*sets.held_out), train = pixels_of(*sets.train);
  CHECK(held_out.size() == 10);
  std::set<int> all(held_out.begin(), held_out.end());
  all.insert(train.begin(), train.end());
  CHECK(all.size() == 40);
  CHECK(pixels_of(*load(table, directory, 7).held_out) == held_out);
  CHECK(pixels_of(*load(table, directory, 8).held_out) != held_out);
}

TEST_CASE(
    "Windows of tokens are the stream cut to length, with the next token as target, across files") {
  const TemporaryDirectory directory;
  write_file(directory / "t.bin", little_endian({0, 1, 2, 300, 4}));
  write_file(directory / "u.bin", little_endian({5, 6, 7, 8, 9, 10, 11}));
  const DataSets sets =
      load("kind = 'tokens'\nvocabulary = 301\nlength = 4\ntrain_files = ['t.bin', 'u.bin']\n",
           directory);
  CHECK(sets.held_out == nullptr);
  REQUIRE(sets.train->count() == 2);
  CHECK(sets.train->target().shape == std::vector<std::int64_t>{4});
  CHECK(sample(*sets.train, 0)->tokens() == std::vector<std::int64_t>{0, 1, 2, 300});
  CHECK(sample(*sets.train, 0)->targets() == std::vector<std::int64_t>{1, 2, 300, 4});
  CHECK(sample(*sets.train, 1)->targets() == std::vector<std::int64_t>{5, 6, 7, 8});
}

TEST_CASE(
    "Every epoch shifts all windows alike by less than their length, and every shift stays inside "
    "the stream") {
  const TemporaryDirectory directory;
  write_file(directory / "t.bin", little_endian(counting(12)));
  const DataSets sets = load(four_tokens, directory);
  std::set<std::int64_t> shifts;
  for (std::uint64_t epoch = 0; epoch < 64; ++epoch) {
    const Variation variation{epoch * 977, epoch};
    const std::int64_t shift = sample(*sets.train, 0, &variation)->tokens()[0];
    CHECK(sample(*sets.train, 1, &variation)->tokens()[0] == shift + 4);
    shifts.insert(shift);
  }
  CHECK(shifts == std::set<std::int64_t>{0, 1, 2, 3});
}

TEST_CASE("The end of a stream is held out, unshifted, and no training window reaches into it") {
  const TemporaryDirectory directory;
  write_file(directory / "t.bin", little_endian(counting(100)));
  const DataSets sets = load(four_tokens + "validation_fraction = 0.2\n", directory);
  const Variation variation{5, 6};
  CHECK(sample(*sets.held_out, 0, &variation)->tokens()[0] == 80);
  CHECK(sample(*sets.held_out, sets.held_out->count() - 1)->targets().back() ==
        80 + 4 * static_cast<std::int64_t>(sets.held_out->count()));
  for (std::uint64_t epoch = 0; epoch < 16; ++epoch) {
    const Variation shifted{0, epoch};
    CHECK(sample(*sets.train, sets.train->count() - 1, &shifted)->targets().back() < 80);
  }
}

TEST_CASE("Plain text is tokenised by byte") {
  const TemporaryDirectory directory;
  write_file(directory / "a.txt", "Zürich");
  const DataSets sets = load("kind = 'text'\nlength = 3\ntrain_files = ['a.txt']\n", directory);
  CHECK(sets.train->classes() == 256);
  CHECK(sample(*sets.train, 0)->tokens() == std::vector<std::int64_t>{'Z', 0xc3, 0xbc});
}

TEST_CASE(
    "Token files that are missing, empty, odd, too short or out of range are refused by name") {
  const TemporaryDirectory directory;
  CHECK(load_error(four_tokens, directory).code == "no-data");
  write_file(directory / "t.bin", "");
  CHECK(contains(load_error(four_tokens, directory).text, "t.bin: is empty"));
  write_file(directory / "t.bin", "abc");
  CHECK(contains(load_error(four_tokens, directory).text, "odd number of bytes"));
  write_file(directory / "t.bin", little_endian(counting(7)));
  CHECK(contains(load_error(four_tokens, directory).text, "7 tokens are too few for windows of 4"));
  std::vector<int> tokens = counting(20);
  tokens[13] = 1000;
  write_file(directory / "t.bin", little_endian(tokens));
  const Error range = load_error(four_tokens, directory);
  CHECK(range.code == "bad-data");
  CHECK(contains(range.text, "token 13 is 1000 but the vocabulary has 1000"));
}

TEST_CASE("A token file cut while it is in use is an exception that names it") {
  const TemporaryDirectory directory;
  write_file(directory / "t.bin", little_endian(counting(20)));
  const DataSets sets = load(four_tokens, directory);
  std::filesystem::resize_file(directory / "t.bin", 6);
  CHECK_THROWS_WITH_AS(sample(*sets.train, 1), doctest::Contains("t.bin: ends before byte"),
                       DataError);
}

TEST_CASE("What the system does not read is no wrong content") {
  const TemporaryDirectory directory;
  const auto missing = read_data_file(directory / "gone.bin", 10);
  REQUIRE(!missing);
  CHECK(missing.error().code == "data-unreadable");
  CHECK(contains(missing.error().text, "gone.bin: cannot be opened: No such file"));
  const auto file = DataFile::open("/proc/self/mem");  // nothing is mapped at its beginning
  REQUIRE(file);
  std::byte byte{};
  try {
    file->read_at(0, {&byte, 1});
    FAIL("read");
  } catch (const DataError& error) {
    CHECK(error.code() == "data-unreadable");
    CHECK(contains(error.what(), "/proc/self/mem: cannot be read: Input/output error"));
    CHECK(bad_data("/proc/self/mem", error).code == "data-unreadable");
  }
  CHECK(bad_data("a", DataError("a: ends before byte 7")).code == "bad-data");
}

TEST_CASE("Pairs of tensors are read in every type of number, normalised by channel") {
  const TemporaryDirectory directory;
  const auto inputs_of = [&](const Tensor& inputs, const std::string& more) {
    write_file(directory / "p.safetensors",
               safetensors({inputs, tensor<float>("targets", TensorType::f32, {1}, {0.25f})}));
    const DataSets sets = load(pairs + more, directory);
    CHECK(sample(*sets.train, 0)->float_targets() == std::vector<float>{0.25f});
    return sample(*sets.train, 0)->inputs();
  };
  using Floats = std::vector<float>;
  CHECK(inputs_of(tensor<float>("inputs", TensorType::f32, {1, 2}, {1.5f, -3}), "") ==
        Floats{1.5f, -3});
  CHECK(inputs_of(tensor<double>("inputs", TensorType::f64, {1, 2}, {1.5, -3}), "") ==
        Floats{1.5f, -3});
  CHECK(inputs_of(tensor<std::uint16_t>("inputs", TensorType::bf16, {1, 2}, {0x3fc0, 0xc040}),
                  "") == Floats{1.5f, -3});
  CHECK(inputs_of(tensor<std::uint16_t>("inputs", TensorType::f16, {1, 2}, {0x3e00, 0xc200}), "") ==
        Floats{1.5f, -3});
  CHECK(inputs_of(tensor<std::uint16_t>("inputs", TensorType::f16, {1, 2}, {0x0001, 0x8400}), "") ==
        Floats{0x1p-24f, -0x1p-14f});
  CHECK(inputs_of(tensor<std::int8_t>("inputs", TensorType::i8, {1, 2}, {7, -3}), "") ==
        Floats{7, -3});
  CHECK(inputs_of(tensor<std::int64_t>("inputs", TensorType::i64, {1, 2}, {7, -3}),
                  "mean = [5, 1]\ndeviation = 2\n") == Floats{1, -2});
  CHECK(inputs_of(tensor<std::uint8_t>("inputs", TensorType::u8, {1, 2}, {255, 0}), "") ==
        Floats{1, 0});
}

TEST_CASE("Pairs of tensors may be tokens and classes, over several files") {
  const TemporaryDirectory directory;
  write_file(directory / "a",
             safetensors({tensor<std::int32_t>("x", TensorType::i32, {2, 3}, {0, 1, 2, 3, 4, 5}),
                          tensor<std::uint8_t>("y", TensorType::u8, {2}, {1, 0})}));
  for (const std::string name : {"b", "c"})
    write_file(directory / name,
               safetensors({tensor<std::int64_t>("x", TensorType::i64, {1, 3}, {5, 5, 5}),
                            tensor<std::int16_t>("y", TensorType::i16, {1}, {1})}));
  const DataSets sets = load(
      "kind = 'safetensors'\nshape = [3]\nvocabulary = 6\nclasses = 2\ninputs = 'x'\ntargets = "
      "'y'\ntrain_files = ['a', 'b']\ntest_files = ['c']\n",
      directory);
  CHECK(sets.train->count() == 3);
  CHECK(sample(*sets.train, 1)->tokens() == std::vector<std::int64_t>{3, 4, 5});
  CHECK(sample(*sets.train, 1)->targets() == std::vector<std::int64_t>{0});
  CHECK(sample(*sets.train, 2)->tokens() == sample(*sets.held_out, 0)->tokens());
}

TEST_CASE("Targets of bce are probabilities, those of other losses any floats") {
  const TemporaryDirectory directory;
  write_file(directory / "p.safetensors",
             safetensors({tensor<float>("inputs", TensorType::f32, {3, 2}, {1, 2, 3, 4, 5, 6}),
                          tensor<float>("targets", TensorType::f32, {3}, {0, 1, -1})}));
  CHECK(load(pairs, directory).train->count() == 3);
  DataSpec spec = data_spec(pairs);
  spec.probabilities = true;
  const auto sets = load_data(spec, {.directory = directory.string()});
  REQUIRE(!sets);
  CHECK(sets.error().code == "bad-data");
  CHECK(contains(sets.error().text, "sample 2: target -1.000000 is not in [0, 1]"));
}

TEST_CASE("Pairs of tensors that do not fit the job are refused, naming file, tensor and sample") {
  const TemporaryDirectory directory;
  const auto refusal = [&](const std::string& file, const std::string& more = "") {
    write_file(directory / "p.safetensors", file);
    const Error error = load_error(pairs + more, directory);
    CHECK(error.code == "bad-data");
    CHECK(contains(error.text, "p.safetensors: "));
    return error.text;
  };
  const Tensor inputs = tensor<float>("inputs", TensorType::f32, {2, 2}, {1, 2, 3, 4});
  const Tensor targets = tensor<float>("targets", TensorType::f32, {2}, {1, 2});
  const std::string good = safetensors({inputs, targets});
  for (std::size_t length = 0; length < good.size(); ++length)
    (void)refusal(good.substr(0, length));
  CHECK(contains(refusal(safetensors({targets})), "has no tensor 'inputs'"));
  CHECK(
      contains(refusal(safetensors({inputs, tensor<float>("targets", TensorType::f32, {1}, {1})})),
               "2 inputs but 1 targets"));
  CHECK(contains(
      refusal(safetensors({tensor<float>("inputs", TensorType::f32, {2, 1}, {1, 2}), targets})),
      "has shape [2, 1] but the job's samples are [2]"));
  CHECK(contains(refusal(safetensors({inputs, targets}), "classes = 3\n"),
                 "holds F32 but the job wants integers"));
  CHECK(contains(
      refusal(safetensors({inputs, tensor<std::int64_t>("targets", TensorType::i64, {2}, {1, 3})}),
              "classes = 3\n"),
      "sample 1: target 3 is not below the number of classes of 3; write the file again"));
  CHECK(contains(
      refusal(safetensors({inputs, tensor<std::int64_t>("targets", TensorType::i64, {2}, {1, -1})}),
              "classes = 3\n"),
      "sample 1: target -1 is not from 0 on and below the number of classes of 3"));
  CHECK(contains(
      refusal(safetensors({tensor<float>("inputs", TensorType::f32, {2, 2},
                                         {1, 2, 3, std::numeric_limits<float>::quiet_NaN()}),
                           targets})),
      "sample 1: input holds NaN or infinity, or more than a float can; write the file again"));
}

TEST_CASE("An epoch is counted without reading the values, and a whole load refuses them") {
  const TemporaryDirectory directory;
  const std::vector<std::int64_t> labels{0, 1, 7};
  write_file(directory / "p.safetensors",
             safetensors({tensor("inputs", TensorType::f32, {3, 2}, std::vector<float>(6)),
                          tensor("targets", TensorType::i64, {3}, labels)}));
  write_file(directory / "t.bin", little_endian(counting(2000)));
  for (const auto& [table, model, samples] :
       {std::tuple(pairs + "classes = 2\n", "mlp", Samples{3}),
        {four_tokens, "gpt", Samples{499}}}) {
    write_file(directory / "job.toml", "name = 'x'\nepochs = 2\n[model]\nkind = '" +
                                           std::string(model) + "'\n[data]\n" + table);
    const auto counted = count_epoch((directory / "job.toml").string(), directory.string());
    REQUIRE_MESSAGE(counted, (counted ? "" : counted.error().text));
    CHECK(*counted == samples);
    CHECK(load_error(table, directory).code == "bad-data");
  }
}

TEST_CASE("Tensors are checked in large pieces, not sample by sample") {
  const auto reads = [] {
    std::ifstream file("/proc/self/io");
    std::string word;
    std::int64_t number = -1;
    while (file >> word >> number && word != "syscr:") {
    }
    return number;
  };
  const TemporaryDirectory directory;
  constexpr std::int64_t samples = 20'000;
  std::vector<float> inputs(2 * samples);
  for (std::size_t i = 0; i < inputs.size(); ++i) inputs[i] = static_cast<float>(i);
  inputs[30'001] = std::numeric_limits<float>::infinity();
  const std::vector<float> targets(samples, 0.5f);
  write_file(directory / "p.safetensors",
             safetensors({tensor("inputs", TensorType::f32, {samples, 2}, inputs),
                          tensor("targets", TensorType::f32, {samples}, targets)}));
  const std::int64_t before = reads();
  CHECK(contains(load_error(pairs, directory).text, "sample 15000: input holds NaN or infinity"));
  CHECK(reads() - before < 100);
}
