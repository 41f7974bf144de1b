#include "daemon/config/advertise.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
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
    // means nothing without the interface
    if (IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr)) return std::nullopt;
    if (::inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof text) != nullptr) return text;
  }
  return std::nullopt;
}

// Connecting a datagram socket sends nothing, but makes the system choose the way and thus our
// address on it.
std::optional<std::string> own_address_towards(const addrinfo* found) {
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
      const bool usable = one->ifa_addr != nullptr && (one->ifa_flags & IFF_UP) != 0 &&
                          (one->ifa_flags & IFF_LOOPBACK) == 0;
      if (!usable || one->ifa_addr->sa_family != family) continue;
      if (auto text = numeric(one->ifa_addr)) return text;
    }
  return std::nullopt;
}

bool is_interface_address(const std::string& host) {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return false;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> guard(all, ::freeifaddrs);
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next)
    if (one->ifa_addr != nullptr && numeric(one->ifa_addr) == host) return true;
  return false;
}

bool loops(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

}  // namespace

bool is_every_address(const Endpoint& listening) {
  const std::string& host = listening.host;
  return host.empty() || host == "*" || host == "0.0.0.0" || host == "::";
}

std::optional<std::string> own_address_towards(const std::vector<Endpoint>& seeds,
                                               decltype(&::getaddrinfo) look_up) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  for (const Endpoint& seed : seeds) {
    addrinfo* found = nullptr;
    const int failed =
        look_up(seed.host.c_str(), std::to_string(seed.port).c_str(), &hints, &found);
    if (failed == EAI_AGAIN) hints.ai_flags = AI_NUMERICHOST;
    if (failed != 0) continue;
    const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> guard(found, ::freeaddrinfo);
    if (auto own = own_address_towards(found); own && !loops(*own)) return own;
  }
  return std::nullopt;
}

Endpoint choose_advertised(const Endpoint& bound, const std::vector<Endpoint>& seeds,
                           const std::optional<std::string>& towards) {
  if (!is_every_address(bound)) return bound;
  if (towards) return {*towards, bound.port};
  // Seeds on this machine by number mean nodes on this machine. A name may be this box's own, which
  // Debian resolves to 127.0.1.1, in a list that other boxes share.
  const bool only_here = !seeds.empty() && std::ranges::all_of(seeds, [](const Endpoint& seed) {
    return loops(seed.host);
  });
  const auto own = only_here ? std::nullopt : first_interface_address();
  return {own.value_or("127.0.0.1"), bound.port};
}

std::string only_here(const Endpoint& advertised) {
  return "only this machine reaches " + to_string(advertised) +
         "; for other boxes start with --listen HOST:PORT or --advertise HOST:PORT, an address "
         "of this box";
}

bool leads_to(const Endpoint& there, const Endpoint& advertised,
              const std::vector<Endpoint>& bound) {
  if (there == advertised) return true;
  char own_name[256] = {};
  if (::gethostname(own_name, sizeof own_name - 1) != 0) own_name[0] = '\0';
  return std::ranges::any_of(bound, [&](const Endpoint& one) {
    if (one.port != there.port) return false;
    if (one.host == there.host || (there.host == "localhost" && loops(one.host))) return true;
    const bool every_address = one.host == "0.0.0.0" || one.host == "::";
    return every_address &&
           (loops(there.host) || there.host == own_name || is_interface_address(there.host));
  });
}

}  // namespace gossipd
