// What an operator asks of the driver: each command is an event of the node like any other.
#include "daemon/node_driver.h"

namespace gossipd {

std::optional<Error> NodeDriver::join(std::vector<Endpoint> seeds) {
  const auto error = node_->join(std::move(seeds), begin_event());
  after_event();
  return error;
}

std::optional<Error> NodeDriver::leave() {
  const auto error = node_->leave(begin_event());
  after_event();
  return error;
}

std::optional<Error> NodeDriver::pause() {
  const auto error = node_->pause(begin_event());
  after_event();
  return error;
}

std::optional<Error> NodeDriver::resume() {
  const auto error = node_->resume(begin_event());
  after_event();
  return error;
}

std::optional<Error> NodeDriver::extend_budget(Samples more) {
  const auto error = node_->extend_budget(more, begin_event());
  after_event();
  return error;
}

std::optional<Error> NodeDriver::forget(NodeId member) {
  const auto error = node_->forget(member, begin_event());
  after_event();
  return error;
}

}  // namespace gossipd
