#include <zlib.h>

#include <algorithm>

#include "models/data/batch_source.h"
#include "models/data/data_order.h"
#include "models/data/idx.h"
#include "models_test_support.h"

using namespace gossipd;
using test::bytes_of;
using test::contains;
using test::taken;
using test::TemporaryDirectory;
using test::write_file;

namespace {

std::string idx_file(const std::vector<std::uint32_t>& shape, const std::string& values) {
  std::string out{0, 0, 8, static_cast<char>(shape.size())};
  for (const std::uint32_t extent : shape)
    for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(extent >> shift & 0xff);
  return out + values;
}

std::string gzipped(const std::string& plain) {
  z_stream stream{};
  REQUIRE(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string out(plain.size() + 1000, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(plain.data()));
  stream.avail_in = static_cast<uInt>(plain.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  REQUIRE(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

const std::string good = idx_file({3, 2, 2}, "abcdefghijkl");

DataSpec small_data() {
  DataSpec data;
  data.shape = {1, 2, 2};
  data.classes = 3;
  return data;
}

void write_small_set(const TemporaryDirectory& directory, const std::string& labels) {
  write_file(directory / "train-images-idx3-ubyte", good);
  write_file(directory / "train-labels-idx1-ubyte.gz",
             gzipped(idx_file({static_cast<std::uint32_t>(labels.size())}, labels)));
}

}  // namespace

TEST_CASE("An IDX file reads the same plain and gzipped") {
  for (const std::string& file : {good, gzipped(good)}) {
    const auto array = parse_idx(bytes_of(file), "f");
    REQUIRE(array);
    CHECK(array->shape == std::vector<std::uint32_t>{3, 2, 2});
    CHECK(array->values[11] == 'l');
  }
}

TEST_CASE("An IDX file cut at any byte is refused, plain and gzipped") {
  for (const std::string& file : {good, gzipped(good)})
    for (std::size_t length = 0; length < file.size(); ++length) {
      const auto array = parse_idx(bytes_of(file.substr(0, length)), "f");
      CHECK_MESSAGE(!array, length);
    }
}

TEST_CASE("IDX bytes after the end are refused, plain and gzipped") {
  CHECK(!parse_idx(bytes_of(good + "x"), "f"));
  CHECK(!parse_idx(bytes_of(gzipped(good) + "x"), "f"));
}

TEST_CASE("An IDX file with another magic or element type is refused by name") {
  std::string magic = good;
  magic[0] = 'P';
  CHECK(contains(parse_idx(bytes_of(magic), "f").error().text, "f: is not an IDX file"));
  std::string type = good;
  type[2] = 0x0d;
  CHECK(contains(parse_idx(bytes_of(type), "f").error().text, "element type 13"));
  std::string rank = good;
  rank[3] = 9;
  CHECK(!parse_idx(bytes_of(rank), "f"));
}

TEST_CASE("IDX dimensions whose product overflows are refused before anything is allocated") {
  CHECK(contains(
      parse_idx(bytes_of(idx_file({0xffffffff, 0xffffffff, 0xffffffff}, "")), "f").error().text,
      "impossible dimensions"));
}

TEST_CASE("A gzip file that inflates beyond the bound is refused") {
  CHECK(contains(parse_idx(bytes_of(gzipped(std::string(100000, '\0'))), "f", 1000).error().text,
                 "inflates to more than 1000"));
}

TEST_CASE("A gzip file with a flipped bit is refused") {
  std::string file = gzipped(good);
  file[file.size() - 6] ^= 1;  // of the checksum
  CHECK(!parse_idx(bytes_of(file), "f"));
}

TEST_CASE("A data set is found in its directory, whichever of its files are gzipped") {
  const TemporaryDirectory directory;
  write_small_set(directory, std::string{0, 2, 1});
  const auto set = load_samples(small_data(), SamplePart::train, directory.string());
  REQUIRE_MESSAGE(set, (set ? "" : set.error().text));
  CHECK(set->count == 3);
  CHECK(set->sample_bytes == 4);
  CHECK(set->labels == std::vector<std::uint8_t>{0, 2, 1});
}

TEST_CASE("A label outside the job's classes is refused with its place") {
  const TemporaryDirectory directory;
  write_small_set(directory, std::string{0, 3, 1});
  const auto set = load_samples(small_data(), SamplePart::train, directory.string());
  REQUIRE(!set);
  CHECK(contains(set.error().text, "sample 1 has label 3 but the job has 3 classes"));
}

TEST_CASE("Labels and images of different number are refused") {
  const TemporaryDirectory directory;
  write_small_set(directory, std::string{0, 1});
  CHECK(contains(load_samples(small_data(), SamplePart::train, directory.string()).error().text,
                 "2 labels for the 3 images"));
}

TEST_CASE("A missing data set says what to put where") {
  const TemporaryDirectory directory;
  const auto set = load_samples(small_data(), SamplePart::test, directory.string());
  REQUIRE(!set);
  CHECK(set.error().code == "no-data");
  CHECK(contains(set.error().text, "t10k-images-idx3-ubyte"));
  CHECK(contains(set.error().text, "--data"));
  CHECK_FALSE(contains(set.error().text, "is no directory"));
  const auto nowhere = load_samples(small_data(), SamplePart::test, directory.string() + "/nope");
  REQUIRE(!nowhere);
  CHECK(contains(nowhere.error().text, "/nope: is no directory, so neither 't10k-images"));
}

TEST_CASE("All shards together train on every sample exactly once per epoch") {
  constexpr std::size_t set_samples = 1001;
  std::vector<int> seen(set_samples, 0);
  std::size_t total = 0;
  for (std::uint32_t i = 0; i < 3; ++i) {
    DataOrder order(7, set_samples, {i, 3});
    for (const std::uint32_t sample :
         taken(order, 2 * order.shard_samples(), order.shard_samples()))
      ++seen[sample];
    total += order.shard_samples();
  }
  CHECK(total == set_samples);
  CHECK(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }));
}

TEST_CASE("The order of the data is a function of the position, however it is read") {
  const DataOrder::Shard shard{1, 4};
  DataOrder order(3, 1000, shard);
  const std::vector<std::uint32_t> whole = taken(order, 0, 2500);
  for (const Samples position : {2400u, 17u, 249u, 0u, 251u, 1999u}) {
    const std::vector<std::uint32_t> part = taken(order, position, 64);
    CHECK(std::equal(part.begin(), part.end(),
                     whole.begin() + static_cast<std::ptrdiff_t>(position)));
  }
}

TEST_CASE("Another epoch, seed or shard has another order") {
  const auto first = [](std::uint64_t seed, std::uint32_t shard, Samples position) {
    DataOrder order(seed, 200, {shard, 2});
    return taken(order, position, 50);
  };
  CHECK(first(1, 0, 0) != first(1, 0, 100));
  CHECK(first(1, 0, 0) != first(2, 0, 0));
  CHECK(first(1, 0, 0) != first(1, 1, 0));
}

TEST_CASE("Walkers of one shard each visit all of it once per epoch, in orders of their own") {
  const auto epoch_of = [](std::uint64_t walker, Samples epoch) {
    DataOrder order(1, 100, {0, 1, walker});
    return taken(order, epoch * 100, 100);
  };
  CHECK(epoch_of(7, 0) != epoch_of(8, 0));
  CHECK(epoch_of(7, 0) != epoch_of(7, 1));
  CHECK(epoch_of(7, 3) == epoch_of(7, 3));
  for (const std::uint64_t walker : {7, 8}) {
    std::vector<std::uint32_t> all = epoch_of(walker, 2);
    std::ranges::sort(all);
    for (std::uint32_t i = 0; i < 100; ++i) CHECK(all[i] == i);
  }
}

TEST_CASE("A batch holds the shard's samples, normalised") {
  const SampleSet samples{
      4, 4, {0, 255, 51, 102, 1, 2, 3, 4, 9, 8, 7, 6, 50, 60, 70, 80}, {5, 6, 7, 8}};
  DataSpec data = small_data();
  data.classes = 10;
  data.mean = {0.5};
  data.deviation = {0.25};
  DataOrder order(1, 4, {});
  const std::vector<std::uint32_t> picked = taken(order, 0, 4);
  BatchSource source(std::make_shared<PixelSet>(data, samples), order);
  std::vector<float> images(16);
  std::vector<std::int64_t> labels(4);
  source.fill(0, 4, {images, labels});
  for (std::size_t i = 0; i < 4; ++i) {
    const std::size_t sample = picked[i];
    CHECK(labels[i] == samples.labels[sample]);
    CHECK(images[4 * i + 1] ==
          doctest::Approx((samples.images[4 * sample + 1] / 255.0 - 0.5) / 0.25));
  }
}
