// daemon/disk/bounded_answers.h - answers that come in bounded time, whatever they wait for.
//
// bounded() wraps a callback: it is called once, with what comes, or with `late` if expire() finds
// that its time is up; what comes afterwards goes to `afterwards`, or is dropped where there is
// none. Loop thread only.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <utility>

#include "core/base/types.h"

namespace gossipd {

class BoundedAnswers {
 public:
  template <typename T>
  [[nodiscard]] std::function<void(T)> bounded(std::function<void(T)> done, T late, Instant due,
                                               std::function<void(T)> afterwards = nullptr) {
    auto answer = std::make_shared<Answer>();
    answer->due = due;
    answer->say_late = [done, late = std::move(late)] { done(late); };
    answers_.push_back(answer);
    return [answer, done = std::move(done), afterwards = std::move(afterwards)](T value) {
      if (!std::exchange(answer->said, true))
        done(std::move(value));
      else if (afterwards)
        afterwards(std::move(value));
    };
  }

  void expire(Instant now) {
    std::list<std::shared_ptr<Answer>> late;
    for (auto at = answers_.begin(); at != answers_.end();) {
      const auto here = at++;
      if ((*here)->said || now >= (*here)->due) late.splice(late.end(), answers_, here);
    }
    for (const auto& answer : late)
      if (!std::exchange(answer->said, true)) answer->say_late();
  }

 private:
  struct Answer {
    Instant due{};
    bool said = false;
    std::function<void()> say_late;
  };
  std::list<std::shared_ptr<Answer>> answers_;  // shared with the callbacks that wait
};

}  // namespace gossipd
