#include "tools/bench/made_sets.h"

#include <turbojpeg.h>

#include <algorithm>
#include <chrono>
#include <fstream>

#include "core/base/random.h"
#include "models/data/batch_source.h"
#include "models/files/safetensors.h"
#include "tools/bench/commands.h"

namespace gossipd::bench {
namespace {

namespace fs = std::filesystem;

std::string noise(std::size_t bytes) {
  Random random(1);
  std::string out(bytes, '\0');
  for (char& byte : out) byte = static_cast<char>(random.next());
  return out;
}

void write(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

void make_idx(const fs::path& directory) {
  const std::string big_endian_10000("\0\0\x27\x10", 4), side("\0\0\0\x1c", 4);
  write(directory / "train-images-idx3-ubyte",
        std::string("\0\0\x08\x03", 4) + big_endian_10000 + side + side + noise(10000 * 784));
  write(directory / "train-labels-idx1-ubyte",
        std::string("\0\0\x08\x01", 4) + big_endian_10000 + std::string(10000, '\3'));
}

void make_cifar(const fs::path& directory) {
  std::string file;
  for (int i = 0; i < 10000; ++i) file += '\3' + noise(3072);
  write(directory / "a.bin", file);
}

// Of the usual size and detail of a data set's photographs.
void make_images(const fs::path& directory) {
  constexpr int columns = 500, rows = 375;
  const tjhandle encoder = tjInitCompress();
  for (int number = 0; number < 200; ++number) {
    std::vector<std::uint8_t> pixels(columns * rows * 3);
    for (std::size_t i = 0; i < pixels.size(); ++i) {
      const std::size_t x = i / 3 % columns, y = i / 3 / columns;
      pixels[i] = static_cast<std::uint8_t>(
          (x * y / 50 + x * 3 + i % 3 * 40 + static_cast<std::size_t>(number)) & 0xff);
    }
    unsigned char* out = nullptr;
    unsigned long size = 0;
    if (tjCompress2(encoder, pixels.data(), columns, 0, rows, TJPF_RGB, &out, &size, TJSAMP_420, 85,
                    0) != 0)
      throw CLI::RuntimeError(1);
    const fs::path folder = directory / "train" / (number % 2 == 0 ? "cat" : "dog");
    fs::create_directories(folder);
    write(folder / (std::to_string(number) + ".jpg"),
          std::string(reinterpret_cast<char*>(out), size));
    tjFree(out);
  }
  tjDestroy(encoder);
}

void make_tensors(const fs::path& directory) {
  std::vector<TensorEntry> tensors = {{"inputs", TensorType::f32, {4000, 3, 32, 32}, 0, 0},
                                      {"targets", TensorType::i64, {4000}, 0, 0}};
  std::string file = safetensors_header(tensors, {});
  file.append(tensors.back().end, '\0');
  write(directory / "a", file);
}

const MadeSet sets[] = {
    {"idx 1x28x28", "kind = 'idx'\n", 0, make_idx},
    {"cifar10", "kind = 'cifar10'\ntrain_files = ['a.bin']\ntest_files = []\n", 0, make_cifar},
    {"cifar10, crop, flip",
     "kind = 'cifar10'\ntrain_files = ['a.bin']\ntest_files = []\nrandom_crop = 4\nrandom_flip = "
     "true\n",
     0, make_cifar},
    {"images 500x375 to 64x64",
     "kind = 'images'\nclass_names = ['cat', 'dog']\nshape = [3, 64, 64]\n", 0, make_images},
    {"images 500x375 to 224x224",
     "kind = 'images'\nclass_names = ['cat', 'dog']\nshape = [3, 224, 224]\n", 0, make_images},
    {"images 224x224, kept",
     "kind = 'images'\nclass_names = ['cat', 'dog']\nshape = [3, 224, 224]\n", 1u << 30,
     make_images},
    {"tokens, length 1024",
     "kind = 'tokens'\nvocabulary = 65536\nlength = 1024\ntrain_files = ['a']\n", 0,
     [](const fs::path& directory) { write(directory / "a", noise(32 << 20)); }},
    {"text, length 256", "kind = 'text'\nlength = 256\ntrain_files = ['a']\n", 0,
     [](const fs::path& directory) { write(directory / "a", noise(8 << 20)); }},
    {"safetensors 3x32x32",
     "kind = 'safetensors'\nshape = [3, 32, 32]\nclasses = 10\ntrain_files = ['a']\n", 0,
     make_tensors},
};

struct Memory {
  std::vector<float> floats;
  std::vector<std::int64_t> integers;
  Batch::Values room(const SampleShape& shape, std::size_t samples) {
    if (shape.element == SampleShape::Element::float32) {
      floats.resize(samples * shape.values());
      return std::span(floats);
    }
    integers.resize(samples * shape.values());
    return std::span(integers);
  }
};

}  // namespace

std::span<const MadeSet> made_sets() { return sets; }

const MadeSet& made_set(const std::string& name) {
  const auto found = std::ranges::find(sets, name, &MadeSet::name);
  GOSSIPD_ASSERT(found != std::end(sets));
  return *found;
}

TemporaryDirectory::TemporaryDirectory() {
  std::string pattern = (fs::temp_directory_path() / "gossip-bench-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr)
    throw CLI::ValidationError("no temporary directory could be made");
  path_ = pattern;
}
TemporaryDirectory::~TemporaryDirectory() { fs::remove_all(path_); }

double samples_per_second(const std::shared_ptr<const DataSet>& set, const Reading& reading) {
  using Clock = std::chrono::steady_clock;
  Memory inputs, targets;
  const Batch batch{inputs.room(set->input(), reading.batch),
                    targets.room(set->target(), reading.batch)};
  BatchSource source(set, DataOrder(1, set->count(), {}), reading.threads);
  Samples position = 0;
  // Reads one epoch, or the loader's ring, before the clock starts.
  for (; position < std::max<Samples>(set->count(), 2 * prefetch_samples_max) && position < 20'000;
       position += reading.batch)
    source.fill(position, reading.batch, batch);
  const Samples first = position;
  const auto began = Clock::now();
  double passed = 0;
  while (passed < reading.seconds) {
    source.fill(position, reading.batch, batch);
    position += reading.batch;
    passed = std::chrono::duration<double>(Clock::now() - began).count();
  }
  return static_cast<double>(position - first) / passed;
}

}  // namespace gossipd::bench
