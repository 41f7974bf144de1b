// models/external/packets.h - the packets between a daemon and the process that trains for it, as
// ATTACH.md describes them.
//
// Decoders take one packet as it was received and return its fields or an error "bad-packet" (or
// "version") whose text says what is wrong. They never read past the packet and allocate no more
// than it is long. Encoders write exactly what the decoders accept. Pure; any thread.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/base/result.h"
#include "core/model/schema.h"

namespace gossipd::attach {

inline constexpr std::uint32_t packet_magic = 0x54415047;
inline constexpr std::uint16_t protocol_version = 1;
inline constexpr std::size_t packet_bytes_max = 32768;
inline constexpr std::size_t name_bytes_max = 512;
inline constexpr std::size_t rank_max = 8;
inline constexpr std::size_t ranges_max = 1024;
inline constexpr std::size_t text_bytes_max = 2048;
inline constexpr std::size_t code_bytes_max = 32;
inline constexpr std::uint32_t step_samples_max = 1u << 20;
inline constexpr std::uint64_t counter_max = 1ull << 60;

enum class PacketType : std::uint16_t {
  attach = 1,
  segments = 2,
  step = 3,
  done = 4,
  report = 5,
  detach = 6,
  attached = 65,
  refused = 66,
  waiting = 67,
  go = 68,
};

using RunToken = std::array<std::uint8_t, 16>;

// What a run has done so far: only ever more.
struct Counters {
  Step steps = 0;
  Samples samples = 0;
  bool operator==(const Counters&) const = default;
  Counters operator-(const Counters& less) const {
    return {.steps = steps - less.steps, .samples = samples - less.samples};
  }
};

struct Attach {
  RunToken run{};
  std::uint64_t floats = 0;
  std::uint32_t segments = 0;
  std::uint32_t step_samples = 0;
  Counters counters;
  bool operator==(const Attach&) const = default;
};

struct Segments {
  std::uint64_t first = 0;        // index of the first in the list
  std::vector<Segment> segments;  // offsets are 0
  bool operator==(const Segments&) const = default;
};

struct StepDone {
  std::uint64_t sequence = 0;
  Counters counters;
  double loss = 0;           // NaN before the first step
  double learning_rate = 0;  // of the next step; 0: not known
  double seconds = 0;        // of the newest step; 0: not known
  bool finite = true;
};

struct Done {
  std::uint64_t sequence = 0;  // of the GO
  Counters counters;
  bool operator==(const Done&) const = default;
};

struct Report {
  std::optional<double> accuracy;
  double loss = 0;
  Samples samples = 0;
  Step step = 0;
  double seconds = 0;
  bool operator==(const Report&) const = default;
};

struct Detach {
  bool operator==(const Detach&) const = default;
};

struct Attached {
  std::uint64_t memory_bytes = 0;
  SchemaHash schema{};
  Samples node_samples = 0;
  Samples budget = 0;
  NodeId node{};
  bool known_run = false;
  bool operator==(const Attached&) const = default;
};

// REFUSED or WAITING.
struct Notice {
  bool refused = false;
  std::string code;
  std::string text;
  bool operator==(const Notice&) const = default;
};

struct Range {
  std::uint64_t first = 0;
  std::uint64_t floats = 0;
  bool operator==(const Range&) const = default;
};

struct Go {
  enum Flag : std::uint32_t {
    add = 1,
    replace = 2,
    copy = 4,
    paused = 8,
    finished = 16,
    settled = 32,
  };
  std::uint64_t sequence = 0;
  std::uint64_t answers = 0;
  std::uint32_t flags = 0;
  double progress = 0;
  Samples cluster_samples = 0;
  Samples budget = 0;
  double rate_factor = 1;
  std::uint32_t place = 0;
  std::uint32_t trainers = 1;
  std::uint32_t snapshot = 0;
  std::uint32_t members = 1;
  Samples node_samples = 0;
  std::vector<Range> ranges;
  [[nodiscard]] bool wants_done() const { return (flags & (add | replace | copy)) != 0; }
  bool operator==(const Go&) const = default;
};

using FromTrainer = std::variant<Attach, Segments, StepDone, Done, Report, Detach>;
using FromDaemon = std::variant<Attached, Notice, Go>;

[[nodiscard]] Result<FromTrainer> decode_from_trainer(std::span<const std::byte> packet);
// The daemon's own words, for trainers written in C++ and for tests. `floats`: P, that ranges keep
// to.
[[nodiscard]] Result<FromDaemon> decode_from_daemon(std::span<const std::byte> packet,
                                                    std::uint64_t floats);

[[nodiscard]] Bytes encode(const FromTrainer&);
[[nodiscard]] Bytes encode(const FromDaemon&);

}  // namespace gossipd::attach
