#include "net/peer/transport.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <list>
#include <map>
#include <utility>

#include "net/addresses.h"
#include "net/peer/admission.h"
#include "net/peer/session.h"

namespace gossipd {

namespace asio = boost::asio;

namespace {

constexpr auto as_values = asio::as_tuple(asio::use_awaitable);
constexpr std::chrono::milliseconds accept_retry_delay{100};  // usually out of file descriptors

struct Listener {
  explicit Listener(tcp::acceptor acceptor_in)
      : acceptor(std::move(acceptor_in)), retry(acceptor.get_executor()) {}
  tcp::acceptor acceptor;
  asio::steady_timer retry;
};

// A silent inbound connection. It costs only a descriptor, since TLS begins with its first byte.
struct Silent {
  explicit Silent(tcp::socket socket_in) : socket(std::move(socket_in)) {}
  tcp::socket socket;
  std::optional<Error> ended;  // by us, with the reason

  void end(const Error& why) {
    if (!ended) ended = why;
    error_code ignored;
    // a reset leaves nothing in the kernel
    socket.set_option(asio::socket_base::linger(true, 0), ignored);
    socket.close(ignored);
  }
};

// The part of a dial, before its session, that stop() must interrupt.
struct Dial {
  explicit Dial(asio::io_context& io) : socket(io), waiting(io) {}
  tcp::socket socket;
  asio::steady_timer waiting;
  bool timed_out = false;
};

Error crowded_out_error() {
  return Error{"too-many",
               "more connections have not finished their handshake than this node keeps, so this "
               "one made room for another"};
}

Error stopping_error() { return Error{"stopping", "this node is stopping"}; }

Error plain_error(const std::string& what) {
  return Error{
      "plain-not-loopback",
      "refused to " + what +
          " without encryption: without a cluster key or certificates gossipd stays on loopback "
          "(127.0.0.1 or [::1]); start it with --key-file or peer_tls.*"};
}

Error connect_error(const Endpoint& peer, const tcp::endpoint& address, const error_code& error,
                    bool timed_out) {
  const Endpoint numeric = to_endpoint(address);
  const std::string where = to_string(peer) + (numeric == peer ? "" : " (" + numeric.host + ")");
  if (timed_out)
    return Error{"connect-timeout",
                 "no answer from " + where + ": the host is down, or a firewall drops the port"};
  if (error == asio::error::connection_refused) {
    return Error{"connect-refused",
                 "connection to " + where +
                     " refused: nothing listens there; is gossipd running on that host?"};
  }
  const bool own = error == asio::error::no_descriptors || error == asio::error::no_memory ||
                   error == asio::error::no_buffer_space ||
                   error == boost::system::errc::too_many_files_open_in_system;
  return Error{own ? "short-of" : "connect", "cannot connect to " + where + ": " + error.message()};
}

void configure(tcp::socket& socket, const PeerLimits& limits) {
  error_code ignored;  // without these options a connection is only slower
  socket.set_option(tcp::no_delay(true), ignored);
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
  // Queued bulk data waits here, where control messages can overtake it, not in the kernel.
  const int unsent = static_cast<int>(limits.unsent_bytes_max);
  ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof unsent);
}

}  // namespace

bool is_own_shortage(const Error& reason) {
  return reason.code == "too-many" || reason.code == "short-of" || reason.code == "stopping";
}

class PeerTransport::Impl : public std::enable_shared_from_this<PeerTransport::Impl> {
 public:
  Impl(asio::io_context& io, PeerHandler& handler, std::shared_ptr<TlsContext> tls,
       const PeerLimits& limits)
      : shared_(std::make_shared<TransportShared>(io, handler, std::move(tls), limits)),
        look_ups_(io),
        admission_({.places_max = limits.handshakes_max,
                    .places_per_source_max = limits.handshakes_per_source_max}) {}

  Result<Endpoint> listen(const Endpoint& where);
  void know(const std::string& host);
  void dial(const Endpoint& peer);
  bool send(SessionId id, Lane lane, SharedBytes message);
  void close(SessionId id, const Error& reason);
  void set_keys(const Keyring& keys);
  void set_certificates(const PeerCertificates& certificates);
  [[nodiscard]] std::map<std::uint64_t, std::size_t> sessions_by_key() const;
  void stop(std::function<void()> done);
  void abandon();

  [[nodiscard]] std::shared_ptr<Session> find_open(SessionId id) const;
  [[nodiscard]] const PeerCounters& counters() const { return shared_->counters; }
  [[nodiscard]] std::vector<Endpoint> listening() const;

 private:
  using Self = std::shared_ptr<Impl>;  // first parameter of every coroutine: keeps the transport

  asio::awaitable<void> accept_loop(Self self, std::shared_ptr<Listener> listener);
  asio::awaitable<void> welcome(Self self, SessionId id, std::shared_ptr<Silent> silent,
                                tcp::endpoint remote);
  asio::awaitable<std::optional<Error>> first_byte(Silent& silent);
  asio::awaitable<void> shake_hands(SessionId id, std::shared_ptr<Session> session, Source source);
  void cut_waiting(SessionId id);
  [[nodiscard]] bool is_full() const {
    return shared_->sessions.size() - handshakes_ >= shared_->limits.sessions_max;
  }
  asio::awaitable<void> dial_loop(Self self, Endpoint peer, std::list<Dial>::iterator dial);
  asio::awaitable<std::optional<Error>> dial_host(Endpoint peer, Dial& dial);
  asio::awaitable<std::optional<Error>> connect(const Endpoint& peer, tcp::endpoint address,
                                                Dial& dial);
  [[nodiscard]] std::vector<std::uint64_t> keys_to_offer() const;
  void admit(tcp::socket socket);
  std::shared_ptr<Session> add_session(SessionId id, tcp::socket socket, bool outbound,
                                       const Endpoint& dialled);
  void reject(const Endpoint& remote, const Error& reason);
  void fail_dial(const Endpoint& peer, const Error& reason);

  std::shared_ptr<TransportShared> shared_;
  std::list<std::shared_ptr<Listener>> listeners_;
  std::list<Dial> dials_;
  LookUps look_ups_;
  // all inbound and not open: silent_ and handshakes_
  Admission admission_;
  std::map<SessionId, std::shared_ptr<Silent>> silent_;
  std::size_t handshakes_ = 0;
  std::uint64_t last_session_ = 0;
  bool stopping_ = false;
};

Result<Endpoint> PeerTransport::Impl::listen(const Endpoint& where) {
  const auto address = listen_address(shared_->io, where);
  if (!address) return address.error();
  if (!shared_->tls && !is_loopback(address->address()))
    return plain_error("listen on " + to_string(to_endpoint(*address)));
  auto acceptor = open_acceptor(shared_->io, *address);
  if (!acceptor) return acceptor.error();
  const auto listener = std::make_shared<Listener>(std::move(*acceptor));
  listeners_.push_back(listener);
  shared_->tasks.spawn(accept_loop(shared_from_this(), listener));
  return to_endpoint(listener->acceptor.local_endpoint());
}

asio::awaitable<void> PeerTransport::Impl::accept_loop([[maybe_unused]] Self self,
                                                       std::shared_ptr<Listener> listener) {
  while (listener->acceptor.is_open()) {
    auto [error, socket] = co_await listener->acceptor.async_accept(as_values);
    if (!listener->acceptor.is_open()) break;
    if (!error) {
      admit(std::move(socket));
      continue;
    }
    if (error == asio::error::connection_aborted) continue;
    // Usually out of file descriptors: the weakest waiting connection gives up its own.
    if (const auto gone = admission_.give_up_one()) cut_waiting(*gone);
    listener->retry.expires_after(accept_retry_delay);
    (void)co_await listener->retry.async_wait(as_values);
  }
}

void PeerTransport::Impl::admit(tcp::socket socket) {
  error_code error;
  const tcp::endpoint remote = socket.remote_endpoint(error);
  if (error) return;  // already gone
  if (is_full())
    return reject(to_endpoint(remote),
                  Error{"too-many", "this node has as many connections as it may"});
  const SessionId id{++last_session_};
  if (const auto gone = admission_.enter(id, source_of(remote.address()))) cut_waiting(*gone);
  const auto silent = std::make_shared<Silent>(std::move(socket));
  silent_.emplace(id, silent);
  shared_->tasks.spawn(welcome(shared_from_this(), id, silent, remote));
}

// A connection whose place was given to another.
void PeerTransport::Impl::cut_waiting(SessionId id) {
  if (const auto silent = silent_.find(id); silent != silent_.end())
    return silent->second->end(crowded_out_error());
  if (const auto session = shared_->sessions.find(id); session != shared_->sessions.end())
    session->second->abort(crowded_out_error());
}

asio::awaitable<void> PeerTransport::Impl::welcome([[maybe_unused]] Self self, SessionId id,
                                                   std::shared_ptr<Silent> silent,
                                                   tcp::endpoint remote) {
  const auto error = co_await first_byte(*silent);
  silent_.erase(id);
  if (error) {
    admission_.leave(id);
    reject(to_endpoint(remote), *error);
    co_return;
  }
  const auto session = add_session(id, std::move(silent->socket), false, {});
  const Source source = source_of(remote.address());
  co_await shake_hands(id, session, source);
}

asio::awaitable<std::optional<Error>> PeerTransport::Impl::first_byte(Silent& silent) {
  Timer deadline(shared_->io, [&silent] {
    silent.end(Error{"handshake-timeout", "the peer connected and said nothing"});
  });
  deadline.arm_after(shared_->limits.handshake_timeout);
  const auto [error] = co_await silent.socket.async_wait(tcp::socket::wait_read, as_values);
  if (silent.ended) co_return silent.ended;
  if (error)
    co_return Error{"handshake-cut",
                    "the connection ended before the peer said anything: " + error.message()};
  co_return std::nullopt;
}

asio::awaitable<void> PeerTransport::Impl::shake_hands(SessionId id,
                                                       std::shared_ptr<Session> session,
                                                       Source source) {
  ++handshakes_;
  admission_.advance(id, Admission::Stage::speaking);
  session->when_proved([this, id] { admission_.advance(id, Admission::Stage::proved); });
  const auto error = co_await session->establish();
  if (!error) {
    --handshakes_;
    admission_.leave(id);
    admission_.know(source);
    session->open();
    co_return;
  }
  admission_.advance(id, Admission::Stage::refused);
  reject(session->info().remote, *error);
  co_await session->linger();
  --handshakes_;
  admission_.leave(id);
  shared_->sessions.erase(id);
}

void PeerTransport::Impl::know(const std::string& host) {
  if (const auto source = source_of(host)) admission_.know(*source);
}

std::shared_ptr<Session> PeerTransport::Impl::add_session(SessionId id, tcp::socket socket,
                                                          bool outbound, const Endpoint& dialled) {
  configure(socket, shared_->limits);
  error_code ignored;  // unknown if the connection is gone; the handshake then fails
  const SessionInfo info{.outbound = outbound,
                         .dialled = dialled,
                         .local = to_endpoint(socket.local_endpoint(ignored)),
                         .remote = to_endpoint(socket.remote_endpoint(ignored))};
  auto session = std::make_shared<Session>(id, shared_, std::move(socket), info);
  shared_->sessions.emplace(id, session);
  return session;
}

void PeerTransport::Impl::dial(const Endpoint& peer) {
  if (stopping_ || dials_.size() >= shared_->limits.dials_max || is_full()) {
    const Error reason = stopping_
                             ? stopping_error()
                             : Error{"too-many", "this node has as many connections as it may"};
    return asio::post(shared_->io,
                      [self = shared_from_this(), peer, reason] { self->fail_dial(peer, reason); });
  }
  dials_.emplace_back(shared_->io);
  shared_->tasks.spawn(dial_loop(shared_from_this(), peer, std::prev(dials_.end())));
}

asio::awaitable<void> PeerTransport::Impl::dial_loop([[maybe_unused]] Self self, Endpoint peer,
                                                     std::list<Dial>::iterator dial) {
  const auto error = co_await dial_host(peer, *dial);
  dials_.erase(dial);
  if (error) fail_dial(peer, *error);
}

// Tries each address in turn. The reason of an address that answered outranks another's silence.
asio::awaitable<std::optional<Error>> PeerTransport::Impl::dial_host(Endpoint peer, Dial& dial) {
  auto found = co_await look_ups_.resolve(peer, shared_->limits.resolve_timeout, dial.waiting);
  if (stopping_) co_return stopping_error();
  if (!found) co_return found.error();
  const std::vector<tcp::endpoint> addresses = own_last(std::move(*found), listening());
  std::optional<Error> failure;
  bool answered = false;
  for (std::size_t i = 0; i < addresses.size() && i < shared_->limits.addresses_max; ++i) {
    // A peer that does not know the key in use yet is asked with the others.
    const std::vector<std::uint64_t> keys = keys_to_offer();
    for (const std::uint64_t key : keys) {
      auto error = co_await connect(peer, addresses[i], dial);
      if (stopping_) co_return stopping_error();
      if (error) {
        if (!answered) failure = error;
        break;
      }
      const SessionId id{++last_session_};
      const auto session = add_session(id, std::move(dial.socket), true, peer);
      error = co_await session->establish(key);
      if (!error) {
        if (const auto source = source_of(session->info().remote.host)) admission_.know(*source);
        session->open();
        co_return std::nullopt;
      }
      shared_->sessions.erase(id);
      if (!failure || !answered || failure->code != "wrong-key" || error->code != "wrong-key")
        failure = error;
      answered = true;
      if (error->code != "wrong-key") break;
    }
  }
  co_return failure;
}

std::vector<std::uint64_t> PeerTransport::Impl::keys_to_offer() const {
  return shared_->tls ? shared_->tls->keys_to_offer() : std::vector<std::uint64_t>{0};
}

asio::awaitable<std::optional<Error>> PeerTransport::Impl::connect(const Endpoint& peer,
                                                                   tcp::endpoint address,
                                                                   Dial& dial) {
  if (!shared_->tls && !is_loopback(address.address()))
    co_return plain_error("dial " + to_string(peer));
  dial.socket = tcp::socket(shared_->io);
  dial.timed_out = false;
  Timer deadline(shared_->io, [&dial] {
    dial.timed_out = true;
    error_code ignored;
    dial.socket.close(ignored);
  });
  deadline.arm_after(shared_->limits.connect_timeout);
  const auto [error] = co_await dial.socket.async_connect(address, as_values);
  if (error || !dial.socket.is_open())
    co_return connect_error(peer, address, error, dial.timed_out);
  co_return std::nullopt;
}

bool PeerTransport::Impl::send(SessionId id, Lane lane, SharedBytes message) {
  const auto session = find_open(id);
  if (!session) return false;
  session->send(lane, std::move(message));
  return session->is_open();
}

void PeerTransport::Impl::close(SessionId id, const Error& reason) {
  if (const auto session = find_open(id)) session->close(reason);
}

void PeerTransport::Impl::set_keys(const Keyring& keys) {
  GOSSIPD_ASSERT(shared_->tls != nullptr);
  shared_->tls->set_keys(keys);
  const auto sessions = shared_->sessions;  // close() may change it
  for (const auto& [id, session] : sessions)
    if (session->is_open() && !shared_->tls->accepts(session->key()))
      session->close(session->key_retired());
}

void PeerTransport::Impl::set_certificates(const PeerCertificates& certificates) {
  GOSSIPD_ASSERT(shared_->tls != nullptr && !shared_->tls->has_keys());
  shared_->tls = std::make_shared<TlsContext>(certificates);
  const auto sessions = shared_->sessions;
  for (const auto& [id, session] : sessions) {
    if (!session->is_open()) continue;
    if (const auto objection = certificates.objection(session->tls()))
      session->close(
          Error{"certificate",
                "the certificate of this session is not accepted any more: " + *objection});
  }
}

std::map<std::uint64_t, std::size_t> PeerTransport::Impl::sessions_by_key() const {
  std::map<std::uint64_t, std::size_t> counts;
  for (const auto& [id, session] : shared_->sessions)
    if (session->is_open()) ++counts[session->key()];
  return counts;
}

void PeerTransport::Impl::stop(std::function<void()> done) {
  stopping_ = true;
  error_code ignored;
  for (const auto& listener : listeners_) {
    listener->acceptor.close(ignored);
    listener->retry.cancel();
  }
  for (Dial& dial : dials_) {
    dial.socket.close(ignored);
    dial.waiting.cancel();
  }
  for (const auto& [id, silent] : silent_) silent->end(stopping_error());
  const auto sessions = shared_->sessions;
  for (const auto& [id, session] : sessions) {
    if (session->is_open()) {
      session->close(stopping_error());
    } else if (!session->is_closing()) {
      session->abort(stopping_error());
    }
  }
  shared_->tasks.when_empty(std::move(done));
}

void PeerTransport::Impl::abandon() {
  shared_->handler = nullptr;
  stop([] {});
  const auto sessions = std::exchange(shared_->sessions, {});
  for (const auto& [id, session] : sessions) session->abort(stopping_error());
}

std::shared_ptr<Session> PeerTransport::Impl::find_open(SessionId id) const {
  const auto found = shared_->sessions.find(id);
  return found != shared_->sessions.end() && found->second->is_open() ? found->second : nullptr;
}

std::vector<Endpoint> PeerTransport::Impl::listening() const {
  std::vector<Endpoint> where;
  for (const auto& listener : listeners_) {
    if (listener->acceptor.is_open())
      where.push_back(to_endpoint(listener->acceptor.local_endpoint()));
  }
  return where;
}

void PeerTransport::Impl::reject(const Endpoint& remote, const Error& reason) {
  ++shared_->counters.inbound_rejected[reason.code];
  if (shared_->handler != nullptr) shared_->handler->on_rejected_inbound(remote, reason);
}

void PeerTransport::Impl::fail_dial(const Endpoint& peer, const Error& reason) {
  ++shared_->counters.dials_failed[reason.code];
  if (shared_->handler != nullptr) shared_->handler->on_dial_failed(peer, reason);
}

PeerTransport::PeerTransport(EventLoop& loop, PeerHandler& handler,
                             const std::optional<Keyring>& keys, PeerLimits limits)
    : impl_(std::make_shared<Impl>(loop.io(), handler,
                                   keys ? std::make_shared<TlsContext>(*keys) : nullptr, limits)) {}
PeerTransport::PeerTransport(EventLoop& loop, PeerHandler& handler,
                             const PeerCertificates& certificates, PeerLimits limits)
    : impl_(std::make_shared<Impl>(loop.io(), handler, std::make_shared<TlsContext>(certificates),
                                   limits)) {}
PeerTransport::~PeerTransport() { impl_->abandon(); }

Result<Endpoint> PeerTransport::listen(const Endpoint& where) { return impl_->listen(where); }
void PeerTransport::know(const std::string& host) { impl_->know(host); }
void PeerTransport::dial(const Endpoint& peer) { impl_->dial(peer); }
bool PeerTransport::send(SessionId session, Lane lane, SharedBytes message) {
  return impl_->send(session, lane, std::move(message));
}
void PeerTransport::close(SessionId session, const Error& reason) { impl_->close(session, reason); }
void PeerTransport::set_keys(const Keyring& keys) { impl_->set_keys(keys); }
void PeerTransport::set_certificates(const PeerCertificates& certificates) {
  impl_->set_certificates(certificates);
}
std::map<std::uint64_t, std::size_t> PeerTransport::sessions_by_key() const {
  return impl_->sessions_by_key();
}
void PeerTransport::stop(std::function<void()> done) { impl_->stop(std::move(done)); }
const PeerCounters& PeerTransport::counters() const { return impl_->counters(); }
std::vector<Endpoint> PeerTransport::listening() const { return impl_->listening(); }

std::size_t PeerTransport::bulk_queue_bytes(SessionId session) const {
  const auto found = impl_->find_open(session);
  return found ? found->bulk_queue_bytes() : 0;
}

std::optional<SessionCounters> PeerTransport::counters(SessionId session) const {
  const auto found = impl_->find_open(session);
  if (!found) return std::nullopt;
  return found->counters();
}

std::optional<TcpPath> PeerTransport::path(SessionId session) const {
  const auto found = impl_->find_open(session);
  return found ? found->path() : std::nullopt;
}

}  // namespace gossipd
