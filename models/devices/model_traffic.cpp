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

// One pass, without memory of its own: a smallest or largest that is NaN is passed on.
Tensor is_finite(const Tensor& values) {
  const auto [least, most] = at::aminmax(values);
  return torch::isfinite(least).logical_and(torch::isfinite(most)).to(torch::kFloat64);
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

Tensor& ModelTraffic::Lane::passing() {
  if (!memory.defined()) memory = torch::empty_like(model.values());
  return memory;
}

ModelTraffic::ModelTraffic(const std::vector<FlatModel*>& models)
    : taken_(models.front()->trained().device()),
      crossed_(models.front()->trained().device()),
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
    lane->passing().copy_(pinned_, non_blocking);
    lane->arrived.set(lane->side);
  }
}

void ModelTraffic::take_update(bool wait) {
  if (!adding_.valid() || (!wait && !is_done(adding_))) return;
  adding_.get();
  for (const auto& lane : lanes_) {
    lane->arrived.hold_back(current_stream(lane->device));
    lane->model.add(lane->passing());
    lane->added.set();
  }
}

void ModelTraffic::begin_copy(std::span<float> out) {
  settle();
  const torch::NoGradGuard no_gradient;
  Lane& lane = *lanes_.front();
  lane.model.pull_counters();
  lane.passing().copy_(lane.model.values());
  taken_.set();
  {
    const c10::StreamGuard guard(lane.side);
    // they have read the pinned memory
    for (const auto& other : lanes_) other->arrived.hold_back(lane.side);
    taken_.hold_back(lane.side);
    pinned_.copy_(lane.passing(), non_blocking);
    finite_.put(is_finite(lane.passing()));
    crossed_.set(lane.side);
  }
  copying_ = std::async(std::launch::async, [this, out] { read_off(out); });
}

// Beside the training thread: waits for the device, then pinned to host memory.
void ModelTraffic::read_off(std::span<float> out) {
  crossed_.wait();
  std::memcpy(out.data(), pinned_.data_ptr<float>(), out.size_bytes());
}

bool ModelTraffic::update_under_way() const { return adding_.valid() && !is_done(adding_); }

bool ModelTraffic::copied() {
  if (!copying_.valid()) return true;
  if (!is_done(copying_)) return false;
  copying_.get();
  return true;
}

void ModelTraffic::settle() {
  take_update(/*wait=*/true);
  if (copying_.valid()) copying_.get();
}

}  // namespace gossipd
