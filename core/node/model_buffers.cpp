#include "core/node/model_buffers.h"

#include <algorithm>
#include <utility>

#include "core/base/result.h"
#include "core/codec/kernels.h"

namespace gossipd {

void ModelBuffers::prepare(RoundBuffers buffers, Step step) {
  GOSSIPD_ASSERT(buffers.base.size() == buffers.update.size());
  handed_out_ = std::move(buffers.base);
  update_ = std::move(buffers.update);
  handed_out_step_ = step;
  update_is_zero_ = true;
}

void ModelBuffers::take_snapshot(std::vector<float> model) {
  GOSSIPD_ASSERT(snapshot_.empty() && update_.empty() && model.size() == handed_out_.size());
  snapshot_ = std::move(model);
}

void ModelBuffers::begin_update(Step step) {
  update_ = std::exchange(handed_out_, {});
  handed_out_known_ = true;
  handed_out_step_ = step;
}

double ModelBuffers::apply(std::size_t first, std::size_t count) {
  return kernels().axpy(std::span(snapshot_).subspan(first, count),
                        std::span<const float>(update_).subspan(first, count), 1.0f);
}

std::vector<float> ModelBuffers::give_update() {
  handed_out_ = std::exchange(snapshot_, {});
  return std::exchange(update_, {});
}

std::vector<float> ModelBuffers::give_back_handed_out(Step step) {
  handed_out_step_ = step;
  std::ranges::copy(handed_out_, snapshot_.begin());
  return std::exchange(snapshot_, {});
}

void ModelBuffers::undo_steps() { std::ranges::copy(handed_out_, snapshot_.begin()); }

std::vector<float> ModelBuffers::give_model() {
  handed_out_ = std::exchange(snapshot_, {});
  std::ranges::copy(handed_out_, update_.begin());
  return std::exchange(update_, {});
}

std::vector<float> ModelBuffers::give_zeros() {
  // A model that broke has left something here.
  if (!std::exchange(update_is_zero_, false)) std::ranges::fill(update_, 0.0f);
  return std::exchange(update_, {});
}

void ModelBuffers::abandon() {
  if (snapshot_.empty()) return;
  (handed_out_.empty() ? handed_out_ : update_) = std::exchange(snapshot_, {});
}

std::vector<float> ModelBuffers::adopt(Step step) {
  update_is_zero_ = false;
  handed_out_known_ = true;
  handed_out_step_ = step;
  return std::exchange(update_, {});
}

}  // namespace gossipd
