// tools/lab/world.h - virtual time, machines that take time to compute, and wires that take time to
// carry.
//
// Everything in the lab is an event at a virtual Instant; events of equal times run in the order of
// their requests. Real work (gradients) runs on a pool of threads and is awaited when its virtual
// duration is over, so a run gives the same bytes on any machine and number of threads. One owner,
// one thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <queue>

#include "core/base/random.h"
#include "core/base/types.h"
#include "tools/lab/pool.h"

namespace gossipd::lab {

// How long a machine computes: (base + per_sample · batch) / speed · jitter.
struct MachineSpec {
  double speed = 1.0;          // 2 is twice as fast
  double step_base_s = 0.002;  // the part independent of the batch
  double step_per_sample_s = 0.00025;
  // Jitter multiplies every step's time and has mean 1.
  enum class Jitter { none, lognormal, pareto };
  Jitter jitter = Jitter::none;
  // lognormal: sigma of the logarithm; pareto: tail index (above 1; 1.5 is heavy)
  double jitter_scale = 0.1;
  double uplink_bps = 1e9;  // bits/s out of this machine, for all that it sends
  double downlink_bps = 1e9;
};

// Between two machines, in each direction.
struct WireSpec {
  double latency_s = 0.0002;
  double jitter_s = 0;       // mean of an exponential, added to the latency; order is kept
  double bandwidth_bps = 0;  // of this pair; 0: only the machines' own limits
  // of each packet of packet_bytes. TCP repairs it: a round trip more for each loss
  double loss = 0;
};
inline constexpr std::uint64_t packet_bytes = 1448;

class World {
 public:
  using Action = std::function<void()>;

  // `threads` of real computation, each begun with `prepare_thread`; `seed` of jitter and loss.
  World(std::vector<MachineSpec> machines, WireSpec wire, std::uint64_t seed, int threads,
        std::function<void()> prepare_thread = {});

  [[nodiscard]] Instant now() const { return now_; }
  [[nodiscard]] double seconds_now() const { return seconds(now_ - begin); }
  [[nodiscard]] std::size_t machines() const { return machines_.size(); }
  void at(Instant when, Action);
  void after(Duration delay, Action action) { at(now_ + delay, std::move(action)); }
  // Runs the next event; false when there is none.
  bool advance();

  // ---- wires. A machine beyond the last one may be added as a server: add_machine(). ----
  std::size_t add_machine(const MachineSpec&);
  void set_wire(std::size_t a, std::size_t b, const WireSpec&);
  // While a wire is cut nothing arrives. TCP keeps its data and sends it again, so it arrives in
  // order after the healing.
  void cut(std::size_t a, std::size_t b, bool cut);
  [[nodiscard]] bool is_cut(std::size_t a, std::size_t b) const;
  // `arrived` runs when the last byte has arrived, `sent` when it has left the sender. Control
  // overtakes bulk, as on a session with chunks of 64 KiB; (from, to, lane) keep their order.
  // Counted as sent at once.
  void send(std::size_t from, std::size_t to, std::uint64_t bytes, Lane lane, Action arrived,
            Action sent = {});

  // ---- machines ----
  // What is left of the steps under way goes on at the new speed.
  void set_speed(std::size_t machine, double speed);
  // Draws the duration of a step that begins now.
  [[nodiscard]] Duration step_time(std::size_t machine, std::uint32_t batch);
  // The nominal step time, without jitter.
  [[nodiscard]] double mean_step_seconds(std::size_t machine, std::uint32_t batch) const;
  // Starts `work` on the pool and runs `done` with its result (a loss) after step_time(batch).
  void compute(std::size_t machine, std::uint32_t batch, std::function<double()> work,
               std::function<void(double)> done);

  // Waits until no gradient is being computed.
  void settle() { pool_.settle(); }

  struct Traffic {
    std::uint64_t bytes = 0;
    std::uint64_t messages = 0;
  };
  [[nodiscard]] const Traffic& traffic() const { return total_; }

  static constexpr Instant begin{std::chrono::seconds(1000)};

 private:
  void arrive(std::size_t from, std::size_t to, Action arrived);
  void end_step(std::uint64_t step);

  struct Event {
    Instant at;
    std::uint64_t order;
    mutable Action run;
    bool operator<(const Event& other) const {
      return at != other.at ? at > other.at : order > other.order;
    }
  };
  struct Step {
    std::size_t machine;
    Instant end;
    Action done;
  };
  struct Lines {  // when a machine's uplink and downlink are free again
    Instant out{}, in{};
  };
  const WireSpec& wire(std::size_t a, std::size_t b) const;

  std::vector<MachineSpec> machines_;
  std::vector<Lines> lines_;
  // when a pair with a limit of its own is free again, from one to the other
  std::map<std::pair<std::size_t, std::size_t>, Instant> pairs_;
  WireSpec wire_;
  std::map<std::pair<std::size_t, std::size_t>, WireSpec> wires_;
  // what waits for healing
  std::map<std::pair<std::size_t, std::size_t>, std::vector<Action>> cuts_;
  std::map<std::tuple<std::size_t, std::size_t, Lane>, Instant> last_arrival_;
  std::map<std::uint64_t, Step> steps_;  // under way
  std::uint64_t steps_begun_ = 0;
  std::priority_queue<Event> events_;
  Random random_;
  Pool pool_;
  Traffic total_;
  Instant now_ = begin;
  std::uint64_t order_ = 0;
};

}  // namespace gossipd::lab
