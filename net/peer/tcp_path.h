// net/peer/tcp_path.h - what the kernel has measured of the path under a TCP connection.
//
// Costs the path nothing: the figures are of what the connection has carried anyway (TCP_INFO in
// tcp(7)), in the direction away from this box. Its rate of delivery is not among them: that is of
// the last few packets, which a line may let pass at once before it holds back the next.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace gossipd {

struct TcpPath {
  std::uint32_t mtu = 0;  // bytes
  std::chrono::microseconds round_trip_min{};
  std::uint64_t bytes_acknowledged = 0;
  std::chrono::microseconds busy{};  // time in which some were on the way
};

// Nothing if the socket is not a TCP connection.
[[nodiscard]] std::optional<TcpPath> tcp_path(int socket);

}  // namespace gossipd
