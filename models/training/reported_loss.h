// models/training/reported_loss.h - which loss a step reports, where a device says it late.
//
// Steps take turns (0 and 1) with the place that their loss is kept in. Reading a step's own loss
// would make the host wait for the device, so a step reports that of the step before, which is
// there already. The first step of a model has none before it: what is known is of another model,
// perhaps a broken one, so it waits for its own. Plain values; one thread.
#pragma once

#include <cmath>
#include <cstddef>
#include <utility>

namespace gossipd {

class ReportedLoss {
 public:
  // `late`: reading the newest loss would make the host wait.
  explicit ReportedLoss(bool late) : late_(late) {}

  [[nodiscard]] bool is_first() const { return first_; }
  // The model has been replaced.
  void begin_anew() { first_ = true; }
  // Whose loss to read, once the step whose turn it is has begun.
  [[nodiscard]] std::size_t turn_to_read(std::size_t turn) {
    return std::exchange(first_, false) || !late_ ? turn : 1 - turn;
  }
  // The loss to report, of the one that was read. Where fp16 has overflowed and its scale can still
  // fall, it is `inconclusive`, and the last known one holds.
  [[nodiscard]] double report(double loss, bool inconclusive) {
    if (std::isfinite(loss) || !inconclusive) last_ = loss;
    return last_;
  }

 private:
  bool late_;
  bool first_ = true;
  double last_ = 0;  // that was known
};

}  // namespace gossipd
