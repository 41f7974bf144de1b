// models/devices/model_traffic.h - the model on its way between devices and the host, beside the
// steps of training.
//
// A snapshot is copied by a stream of its own into pinned memory while steps go on; only what would
// overwrite the parameters waits for it, on the device. An update comes in the same way and is
// added between two steps once it is there. Neither the host thread that trains nor its streams
// wait for a copy. For any kind of device that LibTorch knows; on the CPU, where copies are done
// when they are called, only the host's half goes on beside.
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
  // Before anything writes to the first model: what is still being read is written later. The host
  // does not wait.
  void hold_back_writes();

  void settle();

 private:
  struct Lane {
    explicit Lane(FlatModel& model);
    FlatModel& model;
    torch::Device device;
    c10::Stream side;
    torch::Tensor update;  // [P], made with the first update
    Mark arrived;          // of the update, on `side`
    Mark added;            // on the training stream: `update` may be overwritten
  };
  void send(std::span<const float> values);
  void read_off(std::span<float> out);

  std::vector<std::unique_ptr<Lane>> lanes_;
  torch::Tensor pinned_;  // [P] host memory, exactly so large, for one direction at a time
  // of the first model when the copy began: normalisation writes to them early in a step
  torch::Tensor statistics_;
  Mark model_ready_, model_read_;  // around the copy
  LateNumber finite_;              // 1 or 0, of the copy
  bool being_read_ = false;
  std::future<void> adding_;  // the host's half
  std::future<void> copying_;
};

}  // namespace gossipd
