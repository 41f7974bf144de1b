#include "core/node/final_model.h"

#include <cmath>

#include "core/base/mean_square.h"

namespace gossipd {
namespace {

double norm_squared(std::span<const float> values) {
  return mean_square(values) * static_cast<double>(values.size());
}

}  // namespace

void RestMove::look(std::span<const float> block) { norm_squared_ += norm_squared(block); }

void RestMove::move(std::span<const float> update) { moved_squared_ += norm_squared(update); }

double RestMove::share() const {
  if (moved_squared_ <= 0) return 0;
  return norm_squared_ > 0 ? std::sqrt(moved_squared_ / norm_squared_) : 1.0;
}

std::string why_not_at_end(const Directory::Entry& member) {
  const MemberRecord& record = member.record;
  if (record.state != MemberState::alive) return "";
  if (member.suspect) return record.name + " is suspected to be dead";
  if (record.phase != Phase::finishing && record.phase != Phase::finished)
    return record.name + " is " + to_string(record.phase);
  return "";
}

}  // namespace gossipd
