// core/node/patience.h - when a job ends early because it no longer gets better.
//
// A job may say how many evaluations in a row it bears without a better one. Each node counts its
// own; the first whose patience is over ends the job for the whole cluster. Pure; one owner.
#pragma once

#include <cstdint>
#include <string>

namespace gossipd {

class Patience {
 public:
  explicit Patience(std::uint32_t limit) : limit_(limit) {}  // 0: never over

  void on_evaluation(bool better) { in_vain_ = better ? 0 : in_vain_ + 1; }
  // The job has been given more samples: it may try again.
  void renew() { in_vain_ = 0; }

  [[nodiscard]] bool over() const { return limit_ > 0 && in_vain_ >= limit_; }
  // For the log.
  [[nodiscard]] std::string words() const {
    return std::to_string(in_vain_) + " evaluations without a better one";
  }

 private:
  std::uint32_t limit_;
  std::uint32_t in_vain_ = 0;  // evaluations since the best one
};

}  // namespace gossipd
