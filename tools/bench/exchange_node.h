// tools/bench/exchange_node.h - a node of `gossip-bench exchange`: the daemon's core and net, and a
// trainer that only pretends to train.
//
// The node is driven as daemon/node_driver.cpp does it, on a thread of its own, over real sockets;
// disk, REST and log are left out. The trainer has a thread as well: a step is one pass over the
// parameters, as an optimiser makes it, and then idle or busy time up to the step's length.
#pragma once

#include <array>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "core/node.h"
#include "net/event_loop.h"
#include "net/peer/transport.h"
#include "tools/bench/thread_time.h"

namespace gossipd::bench {

enum class Pace : std::uint8_t {
  free,      // one step after the other
  exchange,  // a step only when the node wants a snapshot: exchanges follow each other
};

struct TrainerOptions {
  Pace pace = Pace::free;
  double step_seconds = 0;
  bool busy = false;  // the rest of a step computes instead of sleeping
  std::uint64_t seed = 1;
};

// The trainer of core/exchange/trainer_port.h. Any thread may call it; `on_snapshot` comes on its
// own thread.
class SyntheticTrainer {
 public:
  SyntheticTrainer(std::size_t floats, const TrainerOptions& options,
                   std::function<void(Snapshot)> on_snapshot);
  ~SyntheticTrainer();
  SyntheticTrainer(const SyntheticTrainer&) = delete;
  SyntheticTrainer& operator=(const SyntheticTrainer&) = delete;

  void give(Update update);
  void recall();  // the snapshot is wanted at the end of this step
  [[nodiscard]] Step steps() const;

 private:
  void run();
  void take_update();
  void step();
  void give_snapshot();
  [[nodiscard]] bool snapshot_is_due() const;

  const TrainerOptions options_;
  const std::function<void(Snapshot)> on_snapshot_;
  std::vector<float> model_;
  std::vector<float> moves_;  // what a step adds, from a place that changes
  std::vector<float> buffer_;
  bool has_buffer_ = false;
  Step snapshot_step_ = 0;
  bool training_ = false;

  mutable std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::optional<Update> given_;
  bool recalled_ = false;
  bool stopping_ = false;
  Step steps_ = 0;
  std::thread thread_;  // last: it uses all of this
};

// What the protocol thread was doing.
enum class Event : std::uint8_t {
  time,
  work,
  message,
  snapshot,
  bulk_sent,
  session,
  transport,  // between two of them: sockets and TLS
  count_,
};
[[nodiscard]] const char* to_string(Event);

// The longest time for which the protocol thread did one thing.
struct Stall {
  double wall_seconds = 0;  // with whatever else the machine did meanwhile
  double cpu_seconds = 0;   // of this thread
};

struct NodeFigures {
  std::array<Stall, raw(Event::count_)> stalls{};  // each figure for itself
  double protocol_cpu_seconds = 0;                 // of the thread, all of it
  double worker_cpu_seconds = 0;                   // of the other threads of the exchange, at work
  std::uint64_t exchanges = 0;                     // that this node opened and finished
  std::vector<double> exchange_seconds;            // of each of these
  std::uint64_t turns = 0;                         // spoken and heard
  std::uint64_t bytes_sent = 0;
  Step steps = 0;
  bool linked = false;
};

struct ExchangeNodeOptions {
  NodeId id{};
  Schema schema;
  ExchangePolicy exchange;
  TrainerOptions trainer;
  std::optional<Endpoint> seed;
  std::optional<Keyring> keys;  // none: plain
  std::size_t threads = 1;      // that compute an exchange
};

class ExchangeNode {
 public:
  explicit ExchangeNode(const ExchangeNodeOptions& options);
  ~ExchangeNode();
  ExchangeNode(const ExchangeNode&) = delete;
  ExchangeNode& operator=(const ExchangeNode&) = delete;

  [[nodiscard]] const Endpoint& address() const;
  [[nodiscard]] NodeFigures figures();  // since the last reset
  void reset_figures();
  void stop();  // it handles nothing more; figures() stay

 private:
  class Driver;
  std::unique_ptr<Driver> driver_;
};

}  // namespace gossipd::bench
