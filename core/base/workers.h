// core/base/workers.h - work on many blocks at once, on threads that the driver has.
//
// The core starts no thread: a driver hands in its Workers, and without any everything happens on
// the caller's. Who uses them gives each piece of work its own place for what it finds, and adds
// these up afterwards in the order of the pieces: so no result depends on the number of threads.
#pragma once

#include <cstddef>
#include <functional>

namespace gossipd {

class Workers {
 public:
  virtual ~Workers() = default;
  // Threads that take part, the caller's included; at least 1.
  [[nodiscard]] virtual std::size_t threads() const = 0;
  // Calls work(i) once for each i below `count`, in any order and on any of the threads, and
  // returns when all calls have. `work` throws nothing and does not call run(). One caller.
  virtual void run(std::size_t count, const std::function<void(std::size_t)>& work) = 0;
};

// `workers` null: one after the other.
template <typename Work>
void for_each(Workers* workers, std::size_t count, const Work& work) {
  if (workers != nullptr && count > 1) return workers->run(count, work);
  for (std::size_t i = 0; i < count; ++i) work(i);
}

}  // namespace gossipd
