// net/peer/session.h - one connection to one peer: its handshake, its reader and its writer.
//
// A session is established, then open, then closing (it sends the waiting control messages and a
// goodbye with the reason, and drops what still arrives), then closed. It ends when both coroutines
// have ended; only then is the handler told. Includes Asio: for net only.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "net/event_loop.h"
#include "net/peer/stream.h"
#include "net/peer/tls.h"
#include "net/peer/transport.h"
#include "net/task_group.h"

namespace gossipd {

class Session;

// State shared by the transport and its sessions; lives as long as any of them.
struct TransportShared {
  TransportShared(boost::asio::io_context& io_in, PeerHandler& handler_in,
                  std::shared_ptr<TlsContext> tls_in, const PeerLimits& limits_in);

  boost::asio::io_context& io;
  PeerHandler* handler;  // null once the transport is destroyed
  PeerLimits limits;
  std::shared_ptr<TlsContext> tls;  // null: plain; shared with its sessions
  PeerCounters counters;
  TaskGroup tasks;
  std::map<SessionId, std::shared_ptr<Session>> sessions;  // including those in handshake
};

class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(SessionId id, std::shared_ptr<TransportShared> shared, tcp::socket socket,
          SessionInfo info);

  // Set before establish(), for a peer that dialled: called when its first words turn out to use a
  // key of ours. Never with certificates, which come last.
  void when_proved(std::function<void()> call) { stream_.when_proved(std::move(call)); }
  // Does TLS, then the preamble in both directions. nullopt: ready to open(). `offer`: the key to
  // dial with.
  [[nodiscard]] boost::asio::awaitable<std::optional<Error>> establish(std::uint64_t offer = 0);
  // After a failed establish(): lets the peer read the reason before the connection closes.
  [[nodiscard]] boost::asio::awaitable<void> linger();
  // Tells the handler and starts reader and writer.
  void open();

  [[nodiscard]] bool is_open() const { return state_ == State::open; }
  // its last words are being sent
  [[nodiscard]] bool is_closing() const { return state_ == State::closing; }
  [[nodiscard]] const SessionInfo& info() const { return info_; }
  [[nodiscard]] std::uint64_t key() const { return stream_.key(); }
  [[nodiscard]] Error key_retired() const;            // why a session under that key ends
  [[nodiscard]] SSL* tls() { return stream_.tls(); }  // nullptr: plain
  [[nodiscard]] std::size_t bulk_queue_bytes() const { return bulk_queued_bytes_; }
  [[nodiscard]] SessionCounters counters() const;
  [[nodiscard]] std::optional<TcpPath> path() { return stream_.path(); }

  void send(Lane lane, SharedBytes message);
  void close(const Error& reason);  // ends an open session gracefully
  void abort(const Error& reason);  // ends any session at once; the first reason counts

 private:
  enum class State { establishing, open, closing, closed };

  [[nodiscard]] boost::asio::awaitable<std::optional<Error>> exchange_preamble();
  [[nodiscard]] boost::asio::awaitable<void> read_loop(std::shared_ptr<Session> self);
  [[nodiscard]] boost::asio::awaitable<void> write_loop(std::shared_ptr<Session> self);
  void deliver(FrameDecoder& decoder);
  bool fill_batch();
  void append_control();
  void append_bulk_chunk();
  void append_goodbye();
  void after_write();
  void on_deadline();
  void part_ended();
  void check_invariants() const;

  const SessionId id_;
  const std::shared_ptr<TransportShared> shared_;
  const SessionInfo info_;
  PeerStream stream_;
  State state_ = State::establishing;
  std::optional<Error> reason_;  // of the end
  std::optional<Error> broken_;  // why a write failed; the reader still looks for a goodbye
  int parts_ = 0;                // reader and writer still running
  Timer deadline_;               // of the handshake, one write, or the close, by state
  boost::asio::steady_timer wake_writer_;
  SessionCounters counters_;  // except bytes on the wire, which the stream counts

  std::deque<SharedBytes> control_;
  std::deque<SharedBytes> bulk_;
  std::size_t bulk_queued_bytes_ = 0;  // of bulk_, less what has been written
  std::size_t bulk_sent_ = 0;          // of bulk_.front()
  Bytes batch_;                        // being written
  std::size_t batch_bulk_bytes_ = 0;   // bulk payload in batch_
  bool goodbye_written_ = false;
};

}  // namespace gossipd
