#include "models/devices/model_traffic.h"

#include <c10/core/StreamGuard.h>

#include <chrono>
#include <cstring>

#include "models/devices/staging.h"

namespace gossipd {

namespace {

using torch::Tensor;

constexpr bool non_blocking = true;

c10::Stream side_of(torch::Device device) {
  return device.is_cpu() ? current_stream(device) : side_stream(device);
}

// One pass over each, without memory of its own: a smallest or largest that is NaN is passed on.
Tensor is_finite(const Tensor& trained, const Tensor& rest) {
  Tensor all = torch::ones({}, trained.options().dtype(torch::kBool).requires_grad(false));
  for (const Tensor& values : {trained, rest}) {
    if (values.numel() == 0) continue;
    const auto [least, most] = at::aminmax(values);
    all = all.logical_and(torch::isfinite(least)).logical_and(torch::isfinite(most));
  }
  return all.to(torch::kFloat64);
}

bool is_done(const std::future<void>& work) {
  return work.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

}  // namespace

ModelTraffic::Lane::Lane(FlatModel& flat)
    : model(flat),
      device(flat.trained().device()),
      side(side_of(device)),
      arrived(device),
      added(device) {}

ModelTraffic::ModelTraffic(const std::vector<FlatModel*>& models)
    : model_ready_(models.front()->trained().device()),
      model_read_(models.front()->trained().device()),
      finite_(models.front()->trained().device()) {
  for (FlatModel* model : models) lanes_.push_back(std::make_unique<Lane>(*model));
  const auto floats = static_cast<std::int64_t>(models.front()->schema().floats());
  pinned_ = pinned_tensor({floats}, torch::kFloat32, lanes_.front()->device);
}

ModelTraffic::~ModelTraffic() {
  for (const auto* work : {&adding_, &copying_})
    if (work->valid()) work->wait();
}

void ModelTraffic::begin_add(std::span<const float> values) {
  settle();
  adding_ = std::async(std::launch::async, [this, values] { send(values); });
}

// Beside the training thread: host memory to pinned, pinned to every device.
void ModelTraffic::send(std::span<const float> values) {
  const torch::NoGradGuard no_gradient;
  std::memcpy(pinned_.data_ptr<float>(), values.data(), values.size_bytes());
  for (const auto& lane : lanes_) {
    const c10::StreamGuard guard(lane->side);
    lane->added.hold_back(lane->side);
    if (!lane->update.defined())
      lane->update =
          torch::empty(pinned_.sizes(), lane->model.trained().options().requires_grad(false));
    lane->update.copy_(pinned_, non_blocking);
    lane->arrived.set(lane->side);
  }
}

void ModelTraffic::take_update(bool wait) {
  if (!adding_.valid() || (!wait && !is_done(adding_))) return;
  adding_.get();
  hold_back_writes();
  for (const auto& lane : lanes_) {
    lane->arrived.hold_back(current_stream(lane->device));
    lane->model.add(lane->update);
    lane->added.set();
  }
}

void ModelTraffic::begin_copy(std::span<float> out) {
  settle();
  const torch::NoGradGuard no_gradient;
  Lane& lane = *lanes_.front();
  lane.model.pull_counters();
  statistics_ = lane.model.untrained().clone();
  model_ready_.set();
  {
    const c10::StreamGuard guard(lane.side);
    // they have read the pinned memory
    for (const auto& other : lanes_) other->arrived.hold_back(lane.side);
    model_ready_.hold_back(lane.side);
    const std::int64_t trained = lane.model.trained().numel();
    pinned_.narrow(0, 0, trained).copy_(lane.model.trained(), non_blocking);
    if (statistics_.numel() > 0)
      pinned_.narrow(0, trained, statistics_.numel()).copy_(statistics_, non_blocking);
    finite_.put(is_finite(lane.model.trained(), statistics_));
    model_read_.set(lane.side);
  }
  being_read_ = true;
  copying_ = std::async(std::launch::async, [this, out] { read_off(out); });
}

// Beside the training thread: waits for the device, then pinned to host memory.
void ModelTraffic::read_off(std::span<float> out) {
  model_read_.wait();
  std::memcpy(out.data(), pinned_.data_ptr<float>(), out.size_bytes());
}

bool ModelTraffic::update_under_way() const { return adding_.valid() && !is_done(adding_); }

bool ModelTraffic::copied() {
  if (!copying_.valid()) return true;
  if (!is_done(copying_)) return false;
  copying_.get();
  return true;
}

void ModelTraffic::hold_back_writes() {
  if (std::exchange(being_read_, false))
    model_read_.hold_back(current_stream(lanes_.front()->device));
}

void ModelTraffic::settle() {
  take_update(/*wait=*/true);
  if (copying_.valid()) copying_.get();
  being_read_ = false;
}

}  // namespace gossipd
