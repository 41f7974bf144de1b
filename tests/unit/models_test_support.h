// tests/unit/models_test_support.h - a temporary directory, small data sets, a trainer to drive.
#pragma once

#include <doctest/doctest.h>
#include <unistd.h>

#include <cmath>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <mutex>

#include "models/data/data_order.h"
#include "models/training/engine.h"
#include "models/training/trainer.h"

namespace gossipd::test {

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "gossipd-test-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  [[nodiscard]] std::filesystem::path operator/(const std::string& name) const {
    return path_ / name;
  }
  [[nodiscard]] std::string string() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

inline void write_file(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

inline Job parse_job(const std::string& text) {
  auto job = Job::parse(text, "test.toml");
  REQUIRE_MESSAGE(job, (job ? "" : job.error().text));
  return *job;
}

// The samples of `count` visits.
inline std::vector<std::uint32_t> taken(DataOrder& order, Samples position, std::size_t count) {
  std::vector<DataOrder::Visit> visits(count);
  order.take(position, visits);
  std::vector<std::uint32_t> out;
  for (const DataOrder::Visit& visit : visits) out.push_back(visit.sample);
  return out;
}

[[nodiscard]] inline std::vector<float> model_of(Engine& engine) {
  std::vector<float> out(engine.schema().floats());
  engine.copy_model(out);
  return out;
}

// ‖a − b‖ / ‖b‖
[[nodiscard]] inline double relative_distance(const std::vector<float>& a,
                                              const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double apart = 0, size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    apart += difference * difference;
    size += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return std::sqrt(apart / size);
}

// Waits for the results of the trainer's callbacks.
class Desk {
 public:
  Trainer::Callbacks callbacks() {
    return {[this](Snapshot s) { put(snapshots_, std::move(s)); },
            [this](Evaluation e) { put(evaluations_, e); },
            [this](Error e) { put(failures_, std::move(e)); },
            [this](Error e) { put(evaluation_failures_, std::move(e)); }};
  }
  std::function<void(Result<WrittenCheckpoint>)> on_written() {
    return [this](Result<WrittenCheckpoint> r) { put(written_, std::move(r)); };
  }
  Snapshot snapshot() { return take(snapshots_); }
  Evaluation evaluation() { return take(evaluations_); }
  Error failure() { return take(failures_); }
  Error evaluation_failure() { return take(evaluation_failures_); }
  Result<WrittenCheckpoint> written() { return take(written_); }

 private:
  template <typename T>
  void put(std::deque<T>& queue, T value) {
    const std::lock_guard lock(mutex_);
    queue.push_back(std::move(value));
    wakes_.notify_all();
  }
  template <typename T>
  T take(std::deque<T>& queue) {
    std::unique_lock lock(mutex_);
    REQUIRE_MESSAGE(
        wakes_.wait_for(lock, std::chrono::seconds(120), [&] { return !queue.empty(); }),
        "nothing came from the trainer");
    T value = std::move(queue.front());
    queue.pop_front();
    return value;
  }

  std::mutex mutex_;  // guards the queues
  std::condition_variable wakes_;
  std::deque<Snapshot> snapshots_;
  std::deque<Evaluation> evaluations_;
  std::deque<Error> failures_;
  std::deque<Error> evaluation_failures_;
  std::deque<Result<WrittenCheckpoint>> written_;
};

}  // namespace gossipd::test
