#include "models/data/data_set.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/base/random.h"
#include "models/data/cifar.h"
#include "models/data/idx.h"
#include "models/data/image_set.h"
#include "models/data/tensor_set.h"
#include "models/data/token_set.h"

namespace gossipd {

namespace {

// Some samples of another set.
class Part : public DataSet {
 public:
  Part(const DataSpec& spec, std::shared_ptr<const DataSet> whole,
       std::vector<std::uint32_t> members)
      : DataSet(spec), whole_(std::move(whole)), members_(std::move(members)) {}
  std::size_t count() const override { return members_.size(); }
  void write(std::size_t index, const Variation* variation, const Batch& batch,
             std::size_t at) const override {
    whole_->write(members_[index], variation, batch, at);
  }
  std::optional<std::int64_t> label(std::size_t index) const override {
    return whole_->label(members_[index]);
  }

 private:
  const std::shared_ptr<const DataSet> whole_;
  const std::vector<std::uint32_t> members_;
};

// The same samples on every node that has the same files, since only the job's seed says which.
Result<DataSets> hold_out(const DataSpec& spec, std::shared_ptr<const DataSet> whole,
                          std::uint64_t seed) {
  const std::size_t count = whole->count();
  const auto held =
      static_cast<std::size_t>(std::ceil(spec.validation_fraction * static_cast<double>(count)));
  if (count < 2)
    return Error{"bad-data",
                 "there is " + std::to_string(count) +
                     " sample to train on, of which a part is to be held out, and that takes 2 or "
                     "more; add samples, or files to test with"};
  if (held >= count)
    return Error{"bad-data", "validation_fraction leaves nothing of the " + std::to_string(count) +
                                 " training samples; make it smaller"};
  std::vector<std::uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0u);
  Random random(seed ^ 0x76616c6964617465ull);
  for (std::size_t left = count; left > 1; --left)
    std::swap(order[left - 1], order[random.below(left)]);
  // In file order: neighbours in a file are neighbours on the disk.
  const auto border = order.begin() + static_cast<std::ptrdiff_t>(held);
  std::sort(order.begin(), border);
  std::sort(border, order.end());
  DataSets sets;
  sets.held_out = std::make_shared<Part>(spec, whole, std::vector(order.begin(), border));
  sets.train = std::make_shared<Part>(spec, whole, std::vector(border, order.end()));
  return sets;
}

Result<std::shared_ptr<const DataSet>> load_part(const DataSpec& spec, SamplePart part,
                                                 const LoadOptions& options, LeftOut& left_out) {
  const std::vector<std::string>& names =
      part == SamplePart::train ? spec.train_files : spec.test_files;
  if (spec.kind == DataSpec::Kind::images)
    return ImageSet::open(spec, names.at(0), options, left_out);
  if (spec.kind == DataSpec::Kind::safetensors) return TensorSet::open(spec, names, options);
  auto samples = spec.kind == DataSpec::Kind::idx ? load_samples(spec, part, options.directory)
                                                  : load_cifar(spec, names, options.directory);
  if (!samples) return samples.error();
  return std::shared_ptr<const DataSet>(std::make_shared<PixelSet>(spec, std::move(*samples)));
}

}  // namespace

Result<DataSets> load_data(const DataSpec& spec, const LoadOptions& options) {
  if (spec.kind == DataSpec::Kind::tokens || spec.kind == DataSpec::Kind::text)
    return load_tokens(spec, options);
  LeftOut left_out;
  auto train = load_part(spec, SamplePart::train, options, left_out);
  if (!train) return train.error();
  const bool has_files = spec.kind == DataSpec::Kind::idx || !spec.test_files.empty();
  Result<DataSets> sets = DataSets{std::move(*train), nullptr};
  if (spec.validation_fraction > 0) {
    sets = hold_out(spec, std::move(sets->train), options.seed);
    if (!sets) return sets;
  } else if (options.held_out && has_files) {
    auto held_out = load_part(spec, SamplePart::test, options, left_out);
    if (!held_out) return held_out.error();
    sets->held_out = std::move(*held_out);
  }
  sets->left_out = in_words(left_out);
  return sets;
}

}  // namespace gossipd
