#include "models/data/prefetcher.h"

#include <algorithm>

namespace gossipd {

namespace {

constexpr std::size_t chunk_samples_max = 16;
constexpr Samples no_position = ~Samples{0};

std::size_t bytes_of(const SampleShape& shape) {
  return shape.values() *
         (shape.element == SampleShape::Element::float32 ? sizeof(float) : sizeof(std::int64_t));
}

}  // namespace

Prefetcher::Prefetcher(std::shared_ptr<const DataSet> set, DataOrder order, int threads)
    : set_(std::move(set)),
      thread_count_(std::clamp(threads, 1, prefetch_threads_max)),
      order_(std::move(order)) {
  const std::size_t sample_bytes =
      std::max<std::size_t>(1, bytes_of(set_->input()) + bytes_of(set_->target()));
  const std::size_t samples =
      std::clamp<std::size_t>(prefetch_bytes_max / sample_bytes, 1, prefetch_samples_max);
  const auto chunks_wanted = static_cast<std::size_t>(2 * thread_count_ + 1);
  chunk_samples_ = std::clamp<std::size_t>(samples / chunks_wanted, 1, chunk_samples_max);
  ring_.resize(std::max<std::size_t>(2, samples / chunk_samples_));
}

Prefetcher::~Prefetcher() {
  {
    const Lock lock(mutex_);
    stop_ = true;
    work_waits_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
}

void Prefetcher::start() {
  for (int i = 0; i < thread_count_; ++i) threads_.emplace_back([this] { work(); });
}

// What is under way is waited for, and forgotten with the rest.
void Prefetcher::restart(Samples position) {
  Lock lock(mutex_);
  claimed_ = first_ + ring_.size();  // nothing more is claimed meanwhile
  chunk_ready_.wait(lock, [&] { return under_way_ == 0; });
  for (Chunk& chunk : ring_) chunk.ready = false;
  next_ = expected_ = position;
  first_ = claimed_ = taken_ = 0;
  work_waits_.notify_all();
}

void Prefetcher::restrict_to(BucketSet buckets) {
  const Lock lock(mutex_);
  order_.restrict_to(std::move(buckets));
  expected_ = no_position;
}

Samples Prefetcher::take(Samples position, std::size_t samples, const Batch& batch) {
  if (threads_.empty() || position != expected_) restart(position);
  if (threads_.empty()) start();
  for (std::size_t done = 0; done < samples;) {
    Lock lock(mutex_);
    Chunk& chunk = ring_[first_ % ring_.size()];
    chunk_ready_.wait(lock, [&] { return chunk.ready; });
    lock.unlock();
    if (chunk.failure) {
      expected_ = no_position;  // whoever tries again finds the file repaired, or the same failure
      std::rethrow_exception(chunk.failure);
    }
    const std::size_t count = std::min(samples - done, chunk_samples_ - taken_);
    copy(chunk, taken_, count, batch, done);
    done += count;
    taken_ += count;
    expected_ = chunk.visits[taken_ - 1].position + 1;
    if (taken_ < chunk_samples_) continue;
    lock.lock();
    chunk.ready = false;
    taken_ = 0;
    ++first_;
    work_waits_.notify_one();
  }
  return expected_;
}

void Prefetcher::work() {
  Lock lock(mutex_);
  while (true) {
    work_waits_.wait(lock, [&] { return stop_ || claimed_ < first_ + ring_.size(); });
    if (stop_) return;
    const std::uint64_t number = claimed_++;
    Chunk& chunk = ring_[number % ring_.size()];
    chunk.visits.resize(chunk_samples_);
    next_ = order_.take(next_, chunk.visits);
    ++under_way_;
    lock.unlock();
    chunk.failure = nullptr;
    try {
      const Batch room = room_in(chunk);
      for (std::size_t i = 0; i < chunk_samples_; ++i) {
        const Variation variation = order_.variation(chunk.visits[i].position);
        set_->write(chunk.visits[i].sample, &variation, room, i);
      }
    } catch (...) {
      chunk.failure = std::current_exception();
    }
    lock.lock();
    --under_way_;
    chunk.ready = true;
    chunk_ready_.notify_all();
  }
}

Batch Prefetcher::room_in(Chunk& chunk) const {
  const auto room = [&](const SampleShape& shape, int which) -> Batch::Values {
    const std::size_t values = chunk_samples_ * shape.values();
    if (shape.element == SampleShape::Element::int64) {
      chunk.integers[which].resize(values);
      return std::span(chunk.integers[which]);
    }
    chunk.floats[which].resize(values);
    return std::span(chunk.floats[which]);
  };
  return {room(set_->input(), 0), room(set_->target(), 1)};
}

void Prefetcher::copy(const Chunk& chunk, std::size_t from, std::size_t count, const Batch& batch,
                      std::size_t at) const {
  const auto part = [&](const SampleShape& shape, int which, const Batch::Values& to) {
    const std::size_t values = shape.values();
    std::visit(
        [&](auto out) {
          const auto copied = [&](const auto& source) {
            std::copy_n(source.begin() + static_cast<std::ptrdiff_t>(from * values), count * values,
                        out.begin() + static_cast<std::ptrdiff_t>(at * values));
          };
          if constexpr (std::is_same_v<typename decltype(out)::value_type, float>)
            copied(chunk.floats[which]);
          else
            copied(chunk.integers[which]);
        },
        to);
  };
  part(set_->input(), 0, batch.inputs);
  part(set_->target(), 1, batch.targets);
}

}  // namespace gossipd
