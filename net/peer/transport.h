// net/peer/transport.h - connections to other nodes: whole messages in two lanes, plain or over
// TLS.
//
// A session is one TCP connection. Before it opens, both ends prove that they hold a key of the
// cluster (TLS 1.3 with an external PSK) or a certificate of its authority; without either,
// connections are plain and confined to loopback. The control lane overtakes the bulk lane at every
// chunk, so a large delta on a thin link delays no heartbeat. Every queue is bounded; a peer that
// does not drain its session loses it.
//
// Loop thread only. No call below calls back into the handler: callbacks come from the loop,
// later. After close() the session delivers no more messages, only its one on_session_closed.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/base/types.h"
#include "net/event_loop.h"
#include "net/peer/certificates.h"
#include "net/peer/frame.h"
#include "net/peer/keyring.h"
#include "net/peer/tcp_path.h"

namespace gossipd {

struct PeerLimits {
  FrameLimits frame;  // sizes of messages and chunks
  // messages waiting to be written, per session
  std::size_t control_queue_max = 1024;
  // Bytes waiting to be written, per session: more than the core's largest window, so that only a
  // mistake reaches it.
  std::size_t bulk_queue_bytes_max = std::size_t{1} << 30;
  std::size_t sessions_max = 256;  // open, or dialled and in handshake
  // inbound and not yet open, from strangers and as many from members (admission.h)
  std::size_t handshakes_max = 128;
  // the same, from one IPv4 address or IPv6 network
  std::size_t handshakes_per_source_max = 16;
  std::size_t dials_max = 64;     // under way at once
  std::size_t addresses_max = 8;  // tried per host name
  // in the kernel, not yet on the wire (TCP_NOTSENT_LOWAT)
  std::size_t unsent_bytes_max = 128 * 1024;
  std::chrono::milliseconds resolve_timeout{5'000};
  std::chrono::milliseconds connect_timeout{5'000};       // per address
  std::chrono::milliseconds handshake_timeout{5'000};     // of silence, then until session open
  std::chrono::milliseconds write_stall_timeout{30'000};  // one write of at most 64 KiB
  std::chrono::milliseconds close_timeout{2'000};  // to flush the control lane and say goodbye
};

struct SessionInfo {
  bool outbound = false;
  Endpoint dialled;  // as given to dial(); empty if inbound
  Endpoint local;    // this end's address on the connection
  Endpoint remote;   // the other end's; numeric; not a port to dial if inbound
};

// The dial failed for want of something of this machine's own, whoever is at the other end.
[[nodiscard]] bool is_own_shortage(const Error& reason);

// Implemented by the driver. Every Error is {stable code, sentence for people}.
class PeerHandler {
 public:
  virtual ~PeerHandler() = default;
  virtual void on_session_open(SessionId, const SessionInfo&) = 0;
  // Exactly once per open. Codes: "closed-by-us" and others given to close(); "closed-by-peer"
  // with the peer's words; "cut"; "write-stalled"; "control-queue-full"; "bulk-queue-full";
  // "frame-…".
  virtual void on_session_closed(SessionId, const Error& reason) = 0;
  // The dial failed. Codes: "resolve", "connect-refused", "connect-timeout", "connect",
  // "wrong-key", "key-retired", "wrong-certificate", "certificate", "peer-speaks-plain",
  // "peer-speaks-tls", "tls", "not-a-peer", "frame-version", "handshake-timeout", "handshake-cut",
  // "plain-not-loopback", "too-many", "short-of", "stopping".
  virtual void on_dial_failed(const Endpoint& dialled, const Error& reason) = 0;
  // `message` is valid during the call only.
  virtual void on_message(SessionId, Lane, std::span<const std::byte> message) = 0;
  // Bytes arrived, a sign of life, even if no whole message did. Once per read.
  virtual void on_bytes(SessionId) = 0;
  // `bytes` of the bulk queue went to the kernel, so there is room for as many.
  virtual void on_bulk_sent(SessionId, std::size_t bytes) = 0;
  // An inbound connection did not become a session. Same codes as on_dial_failed.
  virtual void on_rejected_inbound(const Endpoint& remote, const Error& reason) = 0;
};

// Bytes of the TCP stream, below TLS: handshakes, record and frame headers included.
struct WireBytes {
  std::uint64_t in = 0;
  std::uint64_t out = 0;
};

struct SessionCounters {
  WireBytes wire;
  std::uint64_t control_in = 0, control_out = 0;  // messages
  std::uint64_t bulk_in = 0, bulk_out = 0;        // messages
};

struct PeerCounters {
  SessionCounters total;  // since the transport exists; closed and failed sessions included
  std::uint64_t sessions_opened = 0;
  std::map<std::string, std::uint64_t> sessions_closed;   // by reason code
  std::map<std::string, std::uint64_t> dials_failed;      // by reason code
  std::map<std::string, std::uint64_t> inbound_rejected;  // by reason code
};

class PeerTransport {
 public:
  // `keys` empty: plain, loopback only. `loop` and `handler` must outlive the transport.
  PeerTransport(EventLoop& loop, PeerHandler& handler, const std::optional<Keyring>& keys,
                PeerLimits limits = {});
  // Certificates instead of keys; there are no sessions by key then.
  PeerTransport(EventLoop& loop, PeerHandler& handler, const PeerCertificates& certificates,
                PeerLimits limits = {});
  // Drops what is still open, silently; call stop() first to end politely.
  ~PeerTransport();
  PeerTransport(const PeerTransport&) = delete;
  PeerTransport& operator=(const PeerTransport&) = delete;

  // Accepts peers; may be called more than once. Host "" or "*" means every address, IPv6 and IPv4;
  // port 0 lets the system choose. Returns what was bound. Errors: "listen", "plain-not-loopback",
  // each with a remedy.
  [[nodiscard]] Result<Endpoint> listen(const Endpoint& where);

  // Connections from this host wait in places that strangers cannot take (admission.h). A host that
  // has opened a session is added automatically. No effect for a name.
  void know(const std::string& host);

  // Ends in exactly one of on_session_open (with `dialled` = peer) and on_dial_failed.
  void dial(const Endpoint& peer);

  // Queues one message (not empty, within the lane's maximum). False if the session is not open,
  // and nothing is queued. A full queue closes the session and returns false.
  bool send(SessionId session, Lane lane, SharedBytes message);
  [[nodiscard]] std::size_t bulk_queue_bytes(SessionId session) const;  // 0 if not open

  // Sends the waiting control messages (not bulk), tells the peer the reason, then closes, all
  // within close_timeout. No effect on a session that is not open.
  void close(SessionId session, const Error& reason);

  // Replaces the keys; the transport must have had some from the start. Sessions under other keys
  // are closed ("key-retired").
  void set_keys(const Keyring& keys);
  [[nodiscard]] std::map<std::uint64_t, std::size_t> sessions_by_key() const;  // open ones
  // Replaces the certificates of a transport that began with some. Sessions whose peer would now be
  // refused are closed, and those in handshake fail ("certificate").
  void set_certificates(const PeerCertificates& certificates);

  // Stops listening and dialling, closes every session as by close(), then calls `done` once from
  // the loop when nothing of the transport is running. A look-up in the system's resolver cannot be
  // interrupted: its answer is ignored, but ~EventLoop waits for it.
  void stop(std::function<void()> done);

  [[nodiscard]] const PeerCounters& counters() const;
  // open sessions only
  [[nodiscard]] std::optional<SessionCounters> counters(SessionId session) const;
  [[nodiscard]] std::optional<TcpPath> path(SessionId session) const;
  [[nodiscard]] std::vector<Endpoint> listening() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;  // shared with the running coroutines
};

}  // namespace gossipd
