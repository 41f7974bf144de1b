#include "core/node/control_allowance.h"

#include <algorithm>

namespace gossipd {
namespace {

double price_of(const Control& message, std::size_t bytes) {
  if (std::holds_alternative<FileRequest>(message)) return price_of_file_request;
  if (std::holds_alternative<JobRequest>(message)) return price_of_job_request;
  if (std::holds_alternative<Digest>(message)) return price_of_digest;
  return price_of_message + price_of_byte * static_cast<double>(bytes);
}

}  // namespace

bool ControlAllowance::admit(const Control& message, std::size_t bytes, Instant now) {
  return take(price_of(message, bytes), now);
}

bool ControlAllowance::take(double price, Instant now) {
  const double since = std::max(0.0, seconds(now - filled_.value_or(now)));
  left_ = std::min(allowance_max, left_ + since * allowance_per_second);
  filled_ = now;
  if (price > left_) return false;
  left_ -= price;
  return true;
}

}  // namespace gossipd
