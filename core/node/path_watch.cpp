#include "core/node/path_watch.h"

namespace gossipd {
namespace {

constexpr Duration silence_min =
    std::chrono::seconds(3);  // a session that ends sooner was cut, which says nothing about sizes
constexpr Duration found_after = std::chrono::seconds(20);
constexpr int lost_min = 2;

}  // namespace

void PathWatch::on_large_sent(Instant now) {
  if (!unproved_) unproved_ = now;
}

void PathWatch::on_answer(Instant asked) {
  small_passed_ = true;
  if (!unproved_ || asked <= *unproved_) return;
  unproved_.reset();
  first_lost_.reset();
  lost_ = 0;
  found_ = false;
}

void PathWatch::on_session_end(Instant now) {
  if (small_passed_ && unproved_ && now - *unproved_ >= silence_min) {
    if (!first_lost_) first_lost_ = unproved_;
    ++lost_;
  }
  small_passed_ = false;
  unproved_.reset();
}

bool PathWatch::found_out(Instant now) {
  // The peer must answer again: else it is dead, frozen or cut off, and that has names of its own.
  if (found_ || lost_ < lost_min || !small_passed_ || now - *first_lost_ < found_after)
    return false;
  return found_ = true;
}

}  // namespace gossipd
