#include "tools/lab/references/worker.h"

namespace gossipd::lab {

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
    return engine->gradient(at, position, batch, result->values);
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
