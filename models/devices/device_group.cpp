#include "models/devices/device_group.h"

#include "models/devices/device_work.h"

#if defined(USE_C10D_GLOO) || defined(USE_C10D_NCCL)
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#endif
#ifdef USE_C10D_GLOO
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#endif
#ifdef USE_C10D_NCCL
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

namespace gossipd {

#if defined(USE_C10D_GLOO) || defined(USE_C10D_NCCL)

namespace {

// Backend of LibTorch 2.x and ProcessGroup of 1.x differ in their base class only.
template <typename Group>
class C10dGroup : public DeviceGroup {
 public:
  explicit C10dGroup(c10::intrusive_ptr<Group> group) : group_(std::move(group)) {}
  void sum(torch::Tensor& values) override {
    std::vector<torch::Tensor> list{values};
    group_->allreduce(list)->wait();
  }
  void copy_from_first(torch::Tensor& values) override {
    std::vector<torch::Tensor> list{values};
    group_->broadcast(list)->wait();
  }
  void give_up() noexcept override {
    if constexpr (requires { group_->abort(); }) {
      try {
        group_->abort();
      } catch (const std::exception&) {
        // The node fails with what made it give up.
      }
    }
  }

 private:
  const c10::intrusive_ptr<Group> group_;
};

#ifdef USE_C10D_GLOO
std::unique_ptr<DeviceGroup> join_gloo(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                       int ranks, std::chrono::milliseconds silence_max) {
  auto options = c10d::ProcessGroupGloo::Options::create(silence_max);
  // Nothing of it leaves the box.
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  return std::make_unique<C10dGroup<c10d::ProcessGroupGloo>>(
      c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, ranks, std::move(options)));
}
#endif

#ifdef USE_C10D_NCCL
std::unique_ptr<DeviceGroup> join_nccl(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                       int ranks, std::chrono::milliseconds silence_max) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = silence_max;
  return std::make_unique<C10dGroup<c10d::ProcessGroupNCCL>>(
      c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, ranks, std::move(options)));
}
#endif

}  // namespace

struct MeetingPlace::Store {
  c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::HashStore>();
};

std::unique_ptr<DeviceGroup> MeetingPlace::join(std::size_t rank, torch::Device device,
                                                std::chrono::milliseconds silence_max) {
  [[maybe_unused]] const int me = static_cast<int>(rank), all = static_cast<int>(ranks_);
#ifdef USE_C10D_NCCL
  if (device.is_cuda()) return join_nccl(store_->store, me, all, silence_max);
#endif
#ifdef USE_C10D_GLOO
  return join_gloo(store_->store, me, all, silence_max);
#endif
  throw std::runtime_error(why_no_group(device.type()).value_or("no group"));
}

#else

struct MeetingPlace::Store {};

std::unique_ptr<DeviceGroup> MeetingPlace::join(std::size_t, torch::Device device,
                                                std::chrono::milliseconds) {
  throw std::runtime_error(*why_no_group(device.type()));
}

#endif

void try_group(DeviceGroup& group, std::size_t ranks, torch::Tensor gradient,
               torch::Tensor statistics) {
  const torch::NoGradGuard no_gradient;
  torch::Tensor ones = torch::ones({1}, gradient.options());
  group.sum(ones);
  group.sum(gradient);  // zeros, before the first step
  if (statistics.numel() > 0) group.copy_from_first(statistics);
  LateNumber answer(gradient.device());
  answer.put(ones.to(torch::kFloat64).reshape({}));
  if (const double sum = answer.take(); sum != static_cast<double>(ranks))
    throw std::runtime_error("a sum of ones over " + std::to_string(ranks) + " devices is " +
                             std::to_string(sum) + "; the devices do not hear each other");
}

MeetingPlace::MeetingPlace(std::size_t ranks) : ranks_(ranks), store_(std::make_unique<Store>()) {}
MeetingPlace::~MeetingPlace() = default;

std::optional<std::string> why_no_group([[maybe_unused]] torch::DeviceType type) {
#ifdef USE_C10D_GLOO
  return std::nullopt;
#else
#ifdef USE_C10D_NCCL
  if (type == torch::kCUDA) return std::nullopt;
#endif
  return "this build of gossipd has no c10d backend for several " +
         c10::DeviceTypeName(type, /*lower_case=*/true) +
         " devices; install libgloo-dev and build it anew, or start one gossipd for each device";
#endif
}

}  // namespace gossipd
