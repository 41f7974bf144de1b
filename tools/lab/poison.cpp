#include "tools/lab/poison.h"

#include <algorithm>
#include <set>

#include "core/base/random.h"

namespace gossipd::lab {
namespace {

class PoisonedSet : public DataSet {
 public:
  PoisonedSet(const PoisonSpec& poison, const DataSpec& spec, std::shared_ptr<const DataSet> set,
              std::set<std::uint32_t> bad)
      : DataSet(spec), poison_(poison), set_(std::move(set)), bad_(std::move(bad)) {}

  std::size_t count() const override { return set_->count(); }
  std::optional<std::int64_t> label(std::size_t index) const override { return set_->label(index); }

  void write(std::size_t index, const Variation* variation, const Batch& batch,
             std::size_t at) const override {
    set_->write(index, variation, batch, at);
    switch (poison_.kind) {
      case PoisonSpec::Kind::value:
        if (bad_.contains(static_cast<std::uint32_t>(index)))
          inputs(batch, at)[input().values() / 2] = static_cast<float>(poison_.value);
        break;
      case PoisonSpec::Kind::scale:
        for (float& x : inputs(batch, at)) x *= static_cast<float>(poison_.value);
        break;
      case PoisonSpec::Kind::random_labels:
        target(batch, at) = static_cast<std::int64_t>(
            Random(index + 1).below(static_cast<std::uint64_t>(classes())));
        break;
      case PoisonSpec::Kind::permuted_labels:
        target(batch, at) = (target(batch, at) + 1) % classes();
        break;
      default: break;
    }
  }

 private:
  std::span<float> inputs(const Batch& batch, std::size_t at) const {
    return place<float>(batch.inputs, at, input().values());
  }
  static std::int64_t& target(const Batch& batch, std::size_t at) {
    return place<std::int64_t>(batch.targets, at, 1)[0];
  }

  const PoisonSpec poison_;
  const std::shared_ptr<const DataSet> set_;
  const std::set<std::uint32_t> bad_;
};

}  // namespace

std::shared_ptr<const DataSet> poisoned(const PoisonSpec& poison, const DataSpec& spec,
                                        std::shared_ptr<const DataSet> set, DataOrder order) {
  using Kind = PoisonSpec::Kind;
  if (poison.kind != Kind::value && poison.kind != Kind::scale &&
      poison.kind != Kind::random_labels && poison.kind != Kind::permuted_labels)
    return set;
  std::set<std::uint32_t> bad;
  const std::size_t shard = order.shard_samples(), wanted = std::min(poison.samples, shard);
  for (std::size_t i = 0; poison.kind == Kind::value && i < wanted; ++i) {
    DataOrder::Visit visit;
    (void)order.take(shard * (2 * i + 1) / (2 * wanted), std::span(&visit, 1));
    bad.insert(visit.sample);
  }
  return std::make_shared<PoisonedSet>(poison, spec, std::move(set), std::move(bad));
}

}  // namespace gossipd::lab
