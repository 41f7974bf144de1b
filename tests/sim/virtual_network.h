// tests/sim/virtual_network.h - TCP as its users see it, between hosts in one process.
//
// A session is two directions of messages, each in order and without loss until the session ends.
// It models TCP as its users see it: latency, a narrow or held direction (nothing arrives until
// release, and nothing is lost), an end by reset with any prefix delivered and the last message cut
// in the middle, an end that only one side notices, a side that vanishes silently. Hosts are
// numbered; the Handler knows them. Single owner, one thread.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "core/base/random.h"
#include "tests/sim/event_queue.h"

namespace gossipd::sim {

class VirtualNetwork {
 public:
  struct Handler {
    virtual ~Handler() = default;
    virtual void session_opened(std::size_t host, SessionId, bool outbound,
                                const Endpoint& remote) = 0;
    virtual void session_closed(std::size_t host, SessionId, const std::string& reason) = 0;
    virtual void dial_failed(std::size_t host, const Endpoint&, const std::string& reason) = 0;
    // of a message that will never be whole
    virtual void part_arrived(std::size_t host, SessionId) = 0;
    virtual void message_arrived(std::size_t from, std::size_t to, SessionId, Lane,
                                 const Bytes&) = 0;
    virtual void bulk_sent(std::size_t host, SessionId, std::size_t bytes) = 0;
    [[nodiscard]] virtual bool is_up(std::size_t host) const = 0;  // its process runs
    // another one after each death
    [[nodiscard]] virtual std::uint64_t life(std::size_t host) const = 0;
    // takes nothing in before
    [[nodiscard]] virtual Instant frozen_until(std::size_t host) const = 0;
  };
  // From one host to another.
  struct Way {
    Duration latency = std::chrono::milliseconds(1);
    Duration jitter{};       // up to this much more, drawn for each message
    double bytes_per_s = 0;  // 0: no limit
    bool held = false;
  };
  struct Queued {  // of one end of a session
    std::size_t control_messages = 0;
    std::size_t bulk_bytes = 0;
  };
  struct Pair {
    std::size_t hosts[2];
    SessionId ids[2];
  };

  VirtualNetwork(EventQueue& events, Handler& handler) : events_(events), handler_(handler) {}

  void set_random(std::uint64_t seed) { random_ = Random(seed); }
  void set_latency(Duration one_way);  // of all ways
  [[nodiscard]] Way& way(std::size_t from, std::size_t to);
  void release(std::size_t from, std::size_t to);  // what was held arrives
  void heal();                                     // every way is as it was made

  void dial(std::size_t from, std::size_t to, const Endpoint& endpoint);
  // False if the session no longer exists.
  bool send(std::size_t from, SessionId, Lane, SharedBytes);
  void close(std::size_t from, SessionId, const std::string& reason);

  // Both directions end after any prefix of their data; an end that does not notice goes on sending
  // into the void.
  void reset(const Pair&, bool first_hears, bool second_hears);
  // As reset(), with nothing more delivered.
  void reset_all();
  // The process has died. `silently`: by a power cut; otherwise its kernel ends the sessions.
  void host_down(std::size_t host, bool silently);

  [[nodiscard]] std::vector<Pair> sessions() const;
  [[nodiscard]] std::vector<Pair> sessions_of(std::size_t host) const;
  [[nodiscard]] bool is_open(std::size_t host, SessionId) const;
  [[nodiscard]] std::optional<std::size_t> peer_of(std::size_t host, SessionId) const;
  // open at both ends, nothing in transit
  [[nodiscard]] bool is_quiet(std::size_t host, SessionId) const;
  [[nodiscard]] Queued queued(std::size_t host, SessionId) const;

 private:
  struct Item {
    enum class What : std::uint8_t { message, part, end } what = What::message;
    Lane lane = Lane::control;
    Instant departs{}, arrives{};
    SharedBytes message;
    std::string reason;  // of an end
  };
  struct Session {
    Pair pair{};
    bool open[2] = {true, true};  // at that end
    bool silent[2] = {};          // that end has vanished silently
    bool broken = false;          // reset; later messages are lost
    std::deque<Item> items[2];    // from that end
    bool scheduled[2] = {};
    Instant free_at[2] = {};  // the wire from that end
  };
  using SessionPtr = std::shared_ptr<Session>;  // events may outlive it

  struct Found {
    SessionPtr session;
    int end = 0;
    explicit operator bool() const { return session != nullptr; }
  };
  [[nodiscard]] Found find(std::size_t host, SessionId id) const;
  void open(std::size_t from, std::size_t to, const Endpoint& endpoint);
  void push(const SessionPtr&, int from, Item);
  void schedule(const SessionPtr&, int from);
  void arrive(const SessionPtr&, int from);
  void truncate(Session&, int from, std::size_t keep);
  void end_here(Session&, int end);
  void say_end(const SessionPtr&, int from, const std::string& reason);

  EventQueue& events_;
  Handler& handler_;
  Random random_{1};
  Way default_;
  std::map<std::pair<std::size_t, std::size_t>, Way> ways_;
  std::map<std::pair<std::size_t, SessionId>, SessionPtr> sessions_;  // by each end that is open
  std::uint64_t next_session_ = 0;
};

}  // namespace gossipd::sim
