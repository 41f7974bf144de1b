#include <algorithm>
#include <atomic>
#include <stdexcept>

#include "data_test_support.h"
#include "models/data/batch_source.h"

using namespace gossipd;
using test::data_spec;
using test::Room;

namespace {

// Sample i is a picture of noise drawn from i with label i, augmented; sample `broken` throws. Says
// how many were made.
class NoiseSet : public DataSet {
 public:
  explicit NoiseSet(std::size_t count, std::size_t broken = ~std::size_t{0})
      : DataSet(spec()), count_(count), broken_(broken), writer_(spec()) {}
  std::size_t count() const override { return count_; }
  void write(std::size_t index, const Variation* variation, const Batch& batch,
             std::size_t at) const override {
    if (index == broken_) throw std::runtime_error("sample is broken");
    std::vector<std::uint8_t> image(25);
    for (std::size_t i = 0; i < image.size(); ++i)
      image[i] = static_cast<std::uint8_t>(index * 7 + i * 13 + 1);
    writer_.write(image.data(), variation, place<float>(batch.inputs, at, image.size()));
    place<std::int64_t>(batch.targets, at, 1)[0] = static_cast<std::int64_t>(index);
    ++made;
  }
  mutable std::atomic<std::size_t> made = 0;

 private:
  static DataSpec spec() {
    return data_spec("shape = [1, 5, 5]\nrandom_crop = 1\nrandom_flip = true\n");
  }
  const std::size_t count_;
  const std::size_t broken_;
  const PixelWriter writer_;
};

struct Read {
  Samples position;
  std::size_t samples;
};

void check_same(BatchSource& one, BatchSource& other, const std::vector<Read>& reads) {
  for (const Read& read : reads) {
    Room a(one.set(), read.samples), b(one.set(), read.samples);
    one.fill(read.position, read.samples, a.batch);
    other.fill(read.position, read.samples, b.batch);
    CHECK(a.inputs() == b.inputs());
    CHECK(a.targets() == b.targets());
  }
}

const DataOrder::Shard shard{1, 3};

}  // namespace

TEST_CASE(
    "Batches are the same with loader threads as without, whatever their sizes, over several "
    "epochs and after jumps") {
  const auto set = std::make_shared<NoiseSet>(400);
  const DataOrder order(9, set->count(), shard);
  BatchSource plain(set, order);
  std::vector<Read> reads;
  Samples position = 5;
  for (const std::size_t samples : {1u, 32u, 7u, 64u, 200u, 3u, 2500u, 16u, 16u, 1u}) {
    reads.push_back({position, samples});
    position += samples;
  }
  for (const Samples jump : {0u, 1000u, 999u, 999u}) reads.push_back({jump, 20});
  for (const int threads : {1, 4}) {
    BatchSource loaded(set, order, threads);
    check_same(loaded, plain, reads);
  }
}

TEST_CASE(
    "Of a divided set the loader hands out the node's buckets as the reader alone would, also when "
    "they change on the way") {
  const auto set = std::make_shared<NoiseSet>(500);
  const DataOrder order(9, set->count(), {});
  const auto buckets = [](std::size_t every) {
    std::vector<bool> in(500);
    for (std::size_t i = 0; i < in.size(); i += every) in[i] = true;
    return std::make_shared<const std::vector<bool>>(in);
  };
  for (const int threads : {1, 4}) {
    BatchSource plain(set, order), loaded(set, order, threads);
    Samples position = 3;
    for (const BucketSet& in : {buckets(3), buckets(50), BucketSet(), buckets(2)}) {
      plain.restrict_to(in);
      loaded.restrict_to(in);
      for (const std::size_t samples : {1u, 32u, 7u, 64u, 16u, 16u, 90u}) {
        Room a(*set, samples), b(*set, samples);
        const Samples next = plain.fill(position, samples, a.batch);
        REQUIRE(loaded.fill(position, samples, b.batch) == next);
        CHECK(a.inputs() == b.inputs());
        CHECK(a.targets() == b.targets());
        CHECK(next >= position + samples);
        position = next;
      }
    }
    CHECK(position > 20 * set->count());
  }
}

TEST_CASE("Augmentation differs from epoch to epoch and from shard to shard") {
  const auto set = std::make_shared<NoiseSet>(3);
  const auto epochs = [&](DataOrder::Shard which) {
    BatchSource source(set, DataOrder(9, std::vector<std::uint32_t>{0}, which));
    Room room(*set, 20);
    source.fill(0, 20, room.batch);
    return room.inputs();
  };
  const std::vector<float> first = epochs({0, 2});
  std::vector<std::vector<float>> images;
  for (auto at = first.begin(); at != first.end(); at += 25) images.emplace_back(at, at + 25);
  std::ranges::sort(images);
  CHECK(std::unique(images.begin(), images.end()) - images.begin() > 5);
  CHECK(first == epochs({0, 2}));
  CHECK(first != epochs({1, 2}));
}

TEST_CASE("The loader makes samples ahead of the reader, but not without bound") {
  const auto set = std::make_shared<NoiseSet>(100);
  {
    BatchSource source(set, DataOrder(1, set->count(), {}), 2);
    Room room(*set, 8);
    source.fill(0, 8, room.batch);
    while (set->made < prefetch_samples_max) std::this_thread::yield();
  }
  CHECK(set->made <= prefetch_samples_max + 16);
}

TEST_CASE(
    "A sample that cannot be read fails the batch that holds it, not an earlier one, and again "
    "when tried again") {
  DataOrder order(1, 300, {});
  const auto set = std::make_shared<NoiseSet>(300, test::taken(order, 0, 101).back());
  BatchSource source(set, order, 3);
  Room room(*set, 10);
  for (Samples position = 0; position < 90; position += 10)
    CHECK_NOTHROW(source.fill(position, 10, room.batch));
  for (int attempt = 0; attempt < 2; ++attempt) {
    Room wide(*set, 20);
    CHECK_THROWS_WITH_AS(source.fill(90, 20, wide.batch), "sample is broken", std::runtime_error);
  }
  CHECK_NOTHROW(source.fill(0, 10, room.batch));
}

TEST_CASE("A loader that is never read, or in the middle of its work, stops") {
  for (int round = 0; round < 50; ++round) {
    const auto set = std::make_shared<NoiseSet>(1000);
    BatchSource unread(set, DataOrder(1, set->count(), {}), 3);
    BatchSource read(set, DataOrder(1, set->count(), {}), 3);
    Room room(*set, 1);
    read.fill(static_cast<Samples>(round), 1, room.batch);
    CHECK(room.targets()[0] >= 0);
  }
}
