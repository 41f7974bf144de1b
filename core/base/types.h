// core/base/types.h - the strong types everything in gossipd is spelled with.
//
// Ids are 64-bit and random; time is handed in by whoever drives the core, so the same code runs
// under a real clock, in the lab's virtual time and in the fault simulator. Nothing here allocates.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace gossipd {

enum class NodeId : std::uint64_t {};
enum class ClusterId : std::uint64_t {};
enum class JobHash : std::uint64_t {};
enum class SchemaHash : std::uint64_t {};
// one TCP connection, numbered by the driver, never reused
enum class SessionId : std::uint64_t {};

// Of a message on a session: control overtakes bulk, within a lane order is kept.
enum class Lane : std::uint8_t { control = 0, bulk = 1 };

using Step = std::uint64_t;     // optimiser steps of one node
using Samples = std::uint64_t;  // training samples consumed
using Version = std::uint32_t;  // of one block on one link, +1 with every delta or keyframe

// The core never reads a clock: an Instant is whatever the driver says it is.
struct CoreClock {
  using duration = std::chrono::nanoseconds;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<CoreClock, duration>;
  static constexpr bool is_steady = true;
};
using Instant = CoreClock::time_point;
using Duration = CoreClock::duration;

[[nodiscard]] constexpr double seconds(Duration d) {
  return std::chrono::duration<double>(d).count();
}
[[nodiscard]] constexpr Duration from_seconds(double s) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(s));
}

using Bytes = std::vector<std::byte>;
using SharedBytes = std::shared_ptr<const Bytes>;

template <typename E>
requires std::is_enum_v<E>
[[nodiscard]] constexpr auto raw(E e) { return static_cast<std::underlying_type_t<E>>(e); }

// 16 lower-case hex digits: how a 64-bit id looks in JSON, files, logs and command lines.
[[nodiscard]] std::string to_hex(std::uint64_t value);
template <typename E>
requires std::is_enum_v<E>
[[nodiscard]] std::string to_hex(E id) { return to_hex(static_cast<std::uint64_t>(id)); }
// 1 to 16 hex digits; false on anything else, and then `out` is untouched.
[[nodiscard]] bool from_hex(const std::string& text, std::uint64_t& out);

// A file that belongs to a job and travels with it, named by its content: XXH3-128 and length.
struct JobFile {
  std::uint64_t hash_high = 0;
  std::uint64_t hash_low = 0;
  std::uint64_t bytes = 0;  // 0: no file
  auto operator<=>(const JobFile&) const = default;
};
inline constexpr std::uint64_t job_file_bytes_max = 256ull << 20;
// 32 lower-case hex digits, the hash alone.
[[nodiscard]] std::string to_hex(const JobFile&);
// Exactly 32 hex digits; sets the hash alone. False on anything else, and then `out` is untouched.
[[nodiscard]] bool from_hex(const std::string& text, JobFile& out);

// Where a node's peers can reach it. `host` is a name or an address (IPv6 without brackets).
struct Endpoint {
  std::string host;
  std::uint16_t port = 0;
  auto operator<=>(const Endpoint&) const = default;
};
inline constexpr std::uint16_t peer_port_default = 7610;
inline constexpr std::uint16_t rest_port_default = 7611;
// "box1", "box1:7610", "10.0.0.1:7610", "[::1]:7610", "[::1]"; the port defaults to `port`.
[[nodiscard]] bool parse_endpoint(const std::string& text, std::uint16_t port, Endpoint& out);
[[nodiscard]] std::string to_string(const Endpoint&);

}  // namespace gossipd
