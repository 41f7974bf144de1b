// models/devices/model_traffic.h - the model on its way between devices and the host, beside the
// steps of training.
//
// A snapshot is first copied on the device, which takes a moment, and from there by a stream of its
// own into pinned memory while steps go on. An update comes in the same way, through the same
// memory of the device, and is added between two steps once it is there. Neither the host thread
// that trains nor its streams wait for what crosses the bus. For any kind of device that LibTorch
// knows; on the CPU, where copies are done when they are called, only the host's half goes on
// beside.
//
// Belongs to the training thread. `values` and `out` stay where they are until settle(), or until
// added() or copied() says so. Errors of the library come out of the next call. Only sources of
// models/ that compile against LibTorch include this.
#pragma once

#include <future>

#include "models/devices/device_work.h"
#include "models/networks/flat_model.h"

namespace gossipd {

class ModelTraffic {
 public:
  // The same model on one or more devices; the first is the one that is copied. All outlive this.
  explicit ModelTraffic(const std::vector<FlatModel*>& models);
  ~ModelTraffic();
  ModelTraffic(const ModelTraffic&) = delete;
  ModelTraffic& operator=(const ModelTraffic&) = delete;

  // P floats, to be added to all models by a later take_update().
  void begin_add(std::span<const float> values);
  // Adds the update if it is there; with `wait` once it is. Before a step, and before anybody looks
  // at the model.
  void take_update(bool wait);

  // The first model as it is now, P floats. Waits for an update that is under way, so is begun when
  // there is none.
  void begin_copy(std::span<float> out);
  [[nodiscard]] bool update_under_way() const;
  [[nodiscard]] bool copied();
  // Of the copy that is there, as the device found it beside the copying.
  [[nodiscard]] bool copy_is_finite() { return finite_.take() != 0; }

  void settle();

 private:
  struct Lane {
    explicit Lane(FlatModel& model);
    FlatModel& model;
    torch::Device device;
    c10::Stream side;
    torch::Tensor& passing();  // [P] of the device, for an update or a snapshot; made when wanted
    torch::Tensor memory;
    Mark arrived;  // of the update, on `side`
    Mark added;    // on the training stream: an update may come
  };
  void send(std::span<const float> values);
  void read_off(std::span<float> out);

  std::vector<std::unique_ptr<Lane>> lanes_;
  torch::Tensor pinned_;      // [P] host memory, exactly so large, for one direction at a time
  Mark taken_, crossed_;      // the snapshot: on the device, and in pinned memory
  LateNumber finite_;         // 1 or 0, of the snapshot
  std::future<void> adding_;  // the host's half
  std::future<void> copying_;
};

}  // namespace gossipd
