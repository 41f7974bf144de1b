#include "tools/lab/references/reference.h"

#include "tools/lab/wire.h"

namespace gossipd::lab {

void Reference::start(Setup& setup) {
  setup_ = &setup;
  initial_ = initial_model(setup);
  for (std::size_t i = 0; i < setup.nodes(); ++i) workers_.emplace_back(setup, i);
  ++under_way_;
  begin();
  settle();
}

std::size_t Reference::parameter_floats() const {
  std::size_t floats = 0;
  for (const Segment& segment : schema().segments())
    if (segment.kind == SegmentKind::parameter) floats = segment.offset + segment.size;
  return floats;
}

bool Reference::take(std::uint64_t batch) {
  if (exhausted()) return false;
  taken_ += batch;
  return true;
}

void Reference::gradient(std::size_t worker, const Vector& at, std::uint32_t batch,
                         std::function<void(Gradient)> done) {
  ++under_way_;
  workers_[worker].gradient(at, batch, [this, done = std::move(done)](Gradient gradient) {
    done(std::move(gradient));
    settle();
  });
}

std::optional<std::string> Reference::sgd_only(const Job& job, const std::string& reason) {
  if (job.optimizer.kind == OptimizerSpec::Kind::sgd) return std::nullopt;
  return reason + ": not defined for AdamW; set job.optimizer.kind = \"sgd\" or choose another row";
}

void Reference::send(std::size_t from, std::size_t to, std::uint64_t bytes, Action arrived) {
  ++under_way_;
  setup_->world.send(from, to, on_the_wire(bytes), Lane::bulk,
                     [this, arrived = std::move(arrived)] {
                       arrived();
                       settle();
                     });
}

void Reference::settle() {
  --under_way_;
  if (under_way_ > 0 || closed_ || !exhausted()) return;
  closed_ = true;
  close();
}

}  // namespace gossipd::lab
