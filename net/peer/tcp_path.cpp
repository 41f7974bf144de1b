#include "net/peer/tcp_path.h"

// Not <netinet/tcp.h>: glibc's tcp_info ends before these fields.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>
#include <limits>

namespace gossipd {

std::optional<TcpPath> tcp_path(int socket) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 ||
      size < offsetof(tcp_info, tcpi_busy_time) + sizeof info.tcpi_busy_time)
    return std::nullopt;
  TcpPath path;
  path.mtu = info.tcpi_pmtu;
  // The largest number: nothing has been acknowledged yet.
  if (info.tcpi_min_rtt != std::numeric_limits<std::uint32_t>::max())
    path.round_trip_min = std::chrono::microseconds(info.tcpi_min_rtt);
  path.bytes_acknowledged = info.tcpi_bytes_acked;
  path.busy = std::chrono::microseconds(info.tcpi_busy_time);
  return path;
}

}  // namespace gossipd
