// net/addresses.h - from host names to sockets: look-ups with a deadline, and listening.
//
// Includes Asio: for the sources of net only.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
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

// All addresses of a host; numeric ones without a look-up. Error "resolve". Cancelling `waiting`
// (or its expiry) gives up: the system's resolver cannot be interrupted, so its late answer is
// ignored. `waiting` is the caller's, and must outlive the call.
[[nodiscard]] boost::asio::awaitable<Result<std::vector<tcp::endpoint>>> resolve(
    Endpoint host, std::chrono::milliseconds timeout, boost::asio::steady_timer& waiting);

// Where to listen: host "" or "*" means every address (IPv6 and IPv4 in one socket where the system
// has IPv6). A name is looked up synchronously. Error "listen".
[[nodiscard]] Result<tcp::endpoint> listen_address(boost::asio::io_context& io,
                                                   const Endpoint& where);
[[nodiscard]] Result<tcp::acceptor> open_acceptor(boost::asio::io_context& io,
                                                  const tcp::endpoint& address);

}  // namespace gossipd
