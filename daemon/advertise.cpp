#include "daemon/advertise.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <optional>

namespace gossipd {

namespace {

std::optional<std::string> numeric(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address->sa_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(address);
    if (::inet_ntop(AF_INET, &v4->sin_addr, text, sizeof text) != nullptr) return text;
  } else if (address->sa_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(address);
    if (IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr)) return std::nullopt;  // means nothing without the interface
    if (::inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof text) != nullptr) return text;
  }
  return std::nullopt;
}

// Connecting a datagram socket sends nothing, but makes the system choose the way and thus our address on it.
std::optional<std::string> own_address_towards(const Endpoint& peer) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(peer.host.c_str(), std::to_string(peer.port).c_str(), &hints, &found) != 0) return std::nullopt;
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> guard(found, ::freeaddrinfo);
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    const int fd = ::socket(one->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    sockaddr_storage own{};
    socklen_t length = sizeof own;
    const bool known = ::connect(fd, one->ai_addr, one->ai_addrlen) == 0 &&
                       ::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) == 0;
    ::close(fd);
    if (!known) continue;
    if (auto text = numeric(reinterpret_cast<const sockaddr*>(&own))) return text;
  }
  return std::nullopt;
}

// IPv4 first: an IPv6 address may be a temporary one.
std::optional<std::string> first_interface_address() {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return std::nullopt;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> guard(all, ::freeifaddrs);
  for (const int family : {AF_INET, AF_INET6})
    for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
      const bool usable = one->ifa_addr != nullptr && (one->ifa_flags & IFF_UP) != 0 && (one->ifa_flags & IFF_LOOPBACK) == 0;
      if (!usable || one->ifa_addr->sa_family != family) continue;
      if (auto text = numeric(one->ifa_addr)) return text;
    }
  return std::nullopt;
}

}  // namespace

Endpoint choose_advertised(const Endpoint& bound, const std::vector<Endpoint>& seeds) {
  const bool every_address = bound.host.empty() || bound.host == "*" || bound.host == "0.0.0.0" || bound.host == "::";
  if (!every_address) return bound;
  for (const Endpoint& seed : seeds)
    if (const auto own = own_address_towards(seed)) return {*own, bound.port};
  return {first_interface_address().value_or("127.0.0.1"), bound.port};
}

}  // namespace gossipd
