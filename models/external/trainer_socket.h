// models/external/trainer_socket.h - where training processes attach: listens, hears them out, and
// hands one at a time to the engine.
//
// A thread of its own accepts, checks who is there, and reads ATTACH and SEGMENTS. What it answers
// is set from any thread: wait() while there is no model, serve() once its segments are known,
// refuse() where none can attach just now, close() where none ever will. The engine takes who has
// been let in, and says vacate() when that one is gone. See ATTACH.md.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "models/external/packet_socket.h"
#include "models/external/packets.h"

namespace gossipd {

inline constexpr std::size_t guests_max = 16;  // that are heard out or wait
// Between two tries to accept while this process has no file descriptor left.
inline constexpr auto accept_pause = std::chrono::milliseconds(100);

class TrainerSocket {
 public:
  struct Guest {
    PacketSocket socket;
    PeerProcess peer;
    attach::Attach attach;
  };

  // Codes of listen_for_packets(). `directory`-relative paths are as the process sees them.
  [[nodiscard]] static Result<std::unique_ptr<TrainerSocket>> open(const std::string& path);
  ~TrainerSocket();
  TrainerSocket(const TrainerSocket&) = delete;
  TrainerSocket& operator=(const TrainerSocket&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }

  // ---- any thread ----
  // `code` and `text` as in ATTACH.md. At first "no-cluster".
  void wait(const std::string& code, const std::string& text);
  void refuse(const std::string& code, const std::string& text);
  // Who has these segments is let in, one at a time. `on_guest` comes on the socket's thread.
  void serve(const Schema& schema, std::function<void()> on_guest);
  [[nodiscard]] std::optional<Guest> take();
  void vacate();
  // Refuses who is there, listens no more, removes the path. Once, and nothing after it.
  void close(const std::string& code, const std::string& text);
  // Tries to accept that failed for want of a file descriptor or memory.
  [[nodiscard]] std::uint64_t accepts_failed() const { return accepts_failed_.load(); }
  // Blocks until somebody has said all of a model's segments; that one goes on waiting.
  [[nodiscard]] Schema first_schema();

 private:
  using WallClock = std::chrono::steady_clock;
  enum class Mode { waiting, refusing, serving };
  struct Visitor {
    Guest guest;
    WallClock::time_point until;    // by then all is said
    std::vector<Segment> segments;  // so far
    std::optional<Schema> schema;   // of all
    attach::Notice told;            // the last WAITING
    bool attach_came = false;
    bool gone = false;
  };

  TrainerSocket(std::string path, Descriptor listening, gid_t group);
  void run();
  [[nodiscard]] int until_next_deadline() const;
  void accept_all();
  void greet(PacketSocket socket);
  void hear(Visitor&);
  [[nodiscard]] std::optional<Error> take_in(Visitor&, const attach::FromTrainer&);
  void answer(Visitor&);
  void let_in(Visitor&);
  static void turn_away(Visitor&, const std::string& code, const std::string& text);

  const std::string path_;
  Descriptor listening_;
  const gid_t group_;
  const Alarm alarm_;
  std::vector<Visitor> visitors_;                       // the thread's, as the next one
  std::optional<WallClock::time_point> accepts_again_;  // set: out of descriptors until then
  std::atomic<std::uint64_t> accepts_failed_{0};

  std::mutex mutex_;  // guards everything below
  std::condition_variable schema_came_;
  bool stopping_ = false;
  Mode mode_ = Mode::waiting;
  std::string code_ = "no-cluster";
  std::string text_ = "the daemon has no job yet";
  Schema schema_;  // while serving
  std::function<void()> on_guest_;
  std::optional<Guest> let_in_;  // until it is taken
  std::optional<pid_t> seated_;  // let in and not gone
  std::optional<Schema> first_schema_;

  std::thread thread_;
};

}  // namespace gossipd
