#include "tools/lab/references/worker.h"

#include <algorithm>

namespace gossipd::lab {
namespace {

bool has_statistics(const Schema& schema) {
  return std::ranges::any_of(schema.segments(), [](const Segment& segment) {
    return segment.kind == SegmentKind::statistic;
  });
}

}  // namespace

Vector statistics_of(const Schema& schema, std::span<const float> model) {
  Vector statistics;
  for (const Segment& segment : schema.segments()) {
    if (segment.kind != SegmentKind::statistic) continue;
    const auto values = model.subspan(segment.offset, segment.size);
    statistics.insert(statistics.end(), values.begin(), values.end());
  }
  return statistics;
}

void set_statistics(const Schema& schema, std::span<const float> statistics,
                    std::span<float> model) {
  for (const Segment& segment : schema.segments()) {
    if (segment.kind != SegmentKind::statistic) continue;
    std::ranges::copy(statistics.first(segment.size),
                      model.subspan(segment.offset, segment.size).begin());
    statistics = statistics.subspan(segment.size);
  }
}

void add_to_statistics(const Schema& schema, const Vector& moved, std::span<float> model) {
  Vector statistics = statistics_of(schema, model);
  for (std::size_t k = 0; k < moved.size(); ++k) statistics[k] += moved[k];
  set_statistics(schema, statistics, model);
}

void Worker::gradient(const Vector& at, std::uint32_t batch, std::function<void(Gradient)> done) {
  auto result = std::make_shared<Gradient>();
  result->values.resize(at.size());
  result->batch = batch;
  result->worker = index_;
  GradientEngine* engine = setup_.engines[index_].get();
  const Samples position = position_;
  position_ += batch;
  const Instant began = setup_.world.now();
  auto work = [result, engine, position, batch, at] {
    const double loss = engine->gradient(at, position, batch, result->values);
    if (has_statistics(engine->schema())) {
      Vector model(at.size());
      engine->copy_model(model);
      result->statistics = result->statistics_moved = statistics_of(engine->schema(), model);
      const Vector before = statistics_of(engine->schema(), at);
      for (std::size_t k = 0; k < before.size(); ++k) result->statistics_moved[k] -= before[k];
    }
    return loss;
  };
  setup_.world.compute(index_, batch, std::move(work),
                       [this, result, began, done = std::move(done)](double loss) {
                         result->loss = loss;
                         result->took = setup_.world.now() - began;
                         done(std::move(*result));
                       });
}

Vector initial_model(Setup& setup) {
  Vector model(setup.engines[0]->schema().floats());
  setup.engines[0]->copy_model(model);
  return model;
}

}  // namespace gossipd::lab
