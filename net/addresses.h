// net/addresses.h - from host names to sockets: look-ups with a deadline, and listening.
//
// Includes Asio: for the sources of net only.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/base/types.h"
#include "net/peer/admission.h"

namespace gossipd {

using tcp = boost::asio::ip::tcp;

[[nodiscard]] Endpoint to_endpoint(const tcp::endpoint& address);
// 127.0.0.0/8 and ::1, also as an IPv4-mapped IPv6 address.
[[nodiscard]] bool is_loopback(const boost::asio::ip::address& address);

// The same addresses, but last those where this process itself listens: a name may lead to others
// as well.
[[nodiscard]] std::vector<tcp::endpoint> own_last(std::vector<tcp::endpoint> addresses,
                                                  const std::vector<Endpoint>& listening);

// The IPv4 address of an IPv4-mapped IPv6 address; others unchanged.
[[nodiscard]] Source source_of(const boost::asio::ip::address& address);
// nullopt for a name, which is not looked up.
[[nodiscard]] std::optional<Source> source_of(const std::string& host);

// Asks the system's resolver, which cannot be interrupted and answers one question of a context
// after the other: so a name whose server is silent would hold up all others. There are several
// contexts, and a name is asked for once at a time, whoever waits for it. Names that hang in all of
// them still hold up the others, until the system gives up.
class LookUps {
 public:
  static constexpr std::size_t lanes = 4;
  static constexpr std::size_t running_max = 32;

  explicit LookUps(boost::asio::io_context& io);  // which must outlive it
  ~LookUps();
  // All addresses of a host; numeric ones without a look-up. Errors "resolve", "short-of" (no
  // thread can be started), or "too-many" where as many names hang already. Cancelling `waiting`
  // (or its expiry) gives up; a late answer is ignored. `waiting` is the caller's, and must outlive
  // the call, as must this.
  [[nodiscard]] boost::asio::awaitable<Result<std::vector<tcp::endpoint>>> resolve(
      Endpoint host, std::chrono::milliseconds timeout, boost::asio::steady_timer& waiting);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Where to listen: host "" or "*" means every address (IPv6 and IPv4 in one socket where the system
// has IPv6). A name is looked up synchronously. Error "listen".
[[nodiscard]] Result<tcp::endpoint> listen_address(boost::asio::io_context& io,
                                                   const Endpoint& where);
[[nodiscard]] Result<tcp::acceptor> open_acceptor(boost::asio::io_context& io,
                                                  const tcp::endpoint& address);

}  // namespace gossipd
