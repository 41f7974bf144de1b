#include "net/free_port.h"

#include "net/addresses.h"

namespace gossipd {

std::optional<Error> refuse_busy_port(const Endpoint& where) {
  boost::asio::io_context io;
  const auto address = listen_address(io, where);
  if (!address) return address.error();
  const auto acceptor = open_acceptor(io, *address);
  if (!acceptor) return acceptor.error();
  return std::nullopt;
}

}  // namespace gossipd
