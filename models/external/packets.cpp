#include "models/external/packets.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/base/printable.h"
#include "core/wire/bytes.h"

namespace gossipd::attach {

namespace {

constexpr std::size_t header_bytes = 16;
constexpr std::uint32_t flag_finite = 1;
constexpr std::uint32_t flag_known_run = 1;
constexpr std::uint32_t go_flags =
    Go::add | Go::replace | Go::copy | Go::paused | Go::finished | Go::settled;

struct Header {
  PacketType type{};
  std::uint64_t sequence = 0;
};

Error bad(const std::string& what) {
  return Error{"bad-packet", what + "; ATTACH.md says how it is"};
}

const char* name_of(PacketType type) {
  switch (type) {
    case PacketType::attach: return "ATTACH";
    case PacketType::segments: return "SEGMENTS";
    case PacketType::step: return "STEP";
    case PacketType::done: return "DONE";
    case PacketType::report: return "REPORT";
    case PacketType::detach: return "DETACH";
    case PacketType::attached: return "ATTACHED";
    case PacketType::refused: return "REFUSED";
    case PacketType::waiting: return "WAITING";
    case PacketType::go: return "GO";
  }
  return "?";
}

Result<Header> read_header(std::span<const std::byte> packet) {
  if (packet.size() > packet_bytes_max)
    return bad("a packet has " + std::to_string(packet.size()) + " bytes, more than " +
               std::to_string(packet_bytes_max));
  ByteReader in(packet);
  const auto magic = in.get<std::uint32_t>();
  Header header;
  header.type = static_cast<PacketType>(in.get<std::uint16_t>());
  const auto version = in.get<std::uint16_t>();
  header.sequence = in.get<std::uint64_t>();
  if (!in.ok())
    return bad("a packet has " + std::to_string(packet.size()) + " bytes, less than a header");
  if (magic != packet_magic) return bad("a packet does not begin with GPAT");
  if (version != protocol_version)
    return Error{"version", "the trainer speaks version " + std::to_string(version) +
                                " of the protocol, this daemon " +
                                std::to_string(protocol_version) +
                                "; install versions of gossipd and its Python package that belong "
                                "together"};
  return header;
}

// After the last field: nothing may follow, and nothing may be missing.
std::optional<Error> check_end(const ByteReader& in, PacketType type) {
  if (in.ok() && in.empty()) return std::nullopt;
  return bad(std::string(name_of(type)) + " is too " + (in.ok() ? "long" : "short"));
}

bool is_zero_or_more(double value) { return std::isfinite(value) && value >= 0; }

std::optional<Error> check_counters(const Counters& counters, PacketType type) {
  if (counters.steps <= counter_max && counters.samples <= counter_max) return std::nullopt;
  return bad(std::string(name_of(type)) + " has counters beyond 2^60");
}

Counters read_counters(ByteReader& in) {
  Counters counters;
  counters.steps = in.get<std::uint64_t>();
  counters.samples = in.get<std::uint64_t>();
  return counters;
}

Result<FromTrainer> read_attach(ByteReader& in) {
  Attach out;
  for (std::uint8_t& byte : out.run) byte = in.get<std::uint8_t>();
  out.floats = in.get<std::uint64_t>();
  out.segments = in.get<std::uint32_t>();
  out.step_samples = in.get<std::uint32_t>();
  out.counters = read_counters(in);
  const auto reserved = in.get<std::uint64_t>();
  if (auto error = check_end(in, PacketType::attach)) return *error;
  if (out.floats == 0 || out.floats > model_floats_max)
    return bad("ATTACH has a model of " + std::to_string(out.floats) + " floats; 1 to 2^32 can be");
  if (out.segments == 0 || out.segments > segments_max)
    return bad("ATTACH has " + std::to_string(out.segments) + " segments; 1 to 65536 can be");
  if (out.step_samples == 0 || out.step_samples > step_samples_max)
    return bad("ATTACH has " + std::to_string(out.step_samples) +
               " samples a step; 1 to 2^20 can be");
  if (reserved != 0) return bad("ATTACH has reserved bytes that are not zero");
  if (auto error = check_counters(out.counters, PacketType::attach)) return *error;
  return FromTrainer(out);
}

// Offset and name are checked where the whole list is known.
Result<Segment> read_segment(ByteReader& in) {
  const auto kind = in.get<std::uint8_t>();
  const auto rank = in.get<std::uint8_t>();
  const auto name_bytes = in.get<std::uint16_t>();
  if (kind > 2) return bad("SEGMENTS has a kind " + std::to_string(kind));
  if (rank > rank_max) return bad("SEGMENTS has a rank of " + std::to_string(rank));
  if (name_bytes == 0 || name_bytes > name_bytes_max)
    return bad("SEGMENTS has a name of " + std::to_string(name_bytes) + " bytes; 1 to 512 can be");
  Segment out;
  out.kind = static_cast<SegmentKind>(kind);
  out.size = 1;
  for (std::size_t i = 0; i < rank; ++i) {
    const auto extent = in.get<std::uint64_t>();
    if (extent == 0 || extent > model_floats_max || out.size > model_floats_max / extent)
      return bad("SEGMENTS has a tensor with an extent of " + std::to_string(extent) +
                 "; 1 to 2^32 floats can be");
    out.size *= extent;
    out.shape.push_back(static_cast<std::int64_t>(extent));
  }
  const auto name = in.take(name_bytes);
  if (!in.ok()) return bad("SEGMENTS is too short");
  out.name.assign(reinterpret_cast<const char*>(name.data()), name.size());
  if (printable(out.name) != out.name)
    return bad("SEGMENTS has a name with characters that cannot be shown: " + printable(out.name));
  return out;
}

Result<FromTrainer> read_segments(ByteReader& in, std::uint64_t first) {
  Segments out;
  out.first = first;
  const auto count = in.get<std::uint32_t>();
  const auto reserved = in.get<std::uint32_t>();
  if (!in.ok()) return bad("SEGMENTS is too short");
  if (count == 0 || first >= segments_max || count > segments_max - first || reserved != 0)
    return bad("SEGMENTS has " + std::to_string(count) + " entries from " + std::to_string(first));
  for (std::uint32_t i = 0; i < count; ++i) {
    Result<Segment> segment = read_segment(in);
    if (!segment) return segment.error();
    out.segments.push_back(std::move(*segment));
  }
  if (auto error = check_end(in, PacketType::segments)) return *error;
  return FromTrainer(std::move(out));
}

Result<FromTrainer> read_step(ByteReader& in, std::uint64_t sequence) {
  StepDone out;
  out.sequence = sequence;
  out.counters = read_counters(in);
  out.loss = in.get<double>();
  out.learning_rate = in.get<double>();
  out.seconds = in.get<double>();
  const auto flags = in.get<std::uint32_t>();
  const auto reserved = in.get<std::uint32_t>();
  if (auto error = check_end(in, PacketType::step)) return *error;
  if (sequence == 0 || (flags & ~flag_finite) != 0 || reserved != 0)
    return bad("STEP has a sequence of 0 or unknown flags");
  if (!is_zero_or_more(out.learning_rate) || !is_zero_or_more(out.seconds))
    return bad("STEP has a learning rate or a duration that is negative or not finite");
  if (auto error = check_counters(out.counters, PacketType::step)) return *error;
  out.finite = (flags & flag_finite) != 0;
  return FromTrainer(out);
}

Result<FromTrainer> read_done(ByteReader& in, std::uint64_t sequence) {
  Done out;
  out.sequence = sequence;
  out.counters = read_counters(in);
  if (auto error = check_end(in, PacketType::done)) return *error;
  if (auto error = check_counters(out.counters, PacketType::done)) return *error;
  return FromTrainer(out);
}

Result<FromTrainer> read_report(ByteReader& in) {
  Report out;
  const auto accuracy = in.get<double>();
  out.loss = in.get<double>();
  out.samples = in.get<std::uint64_t>();
  out.step = in.get<std::uint64_t>();
  out.seconds = in.get<double>();
  if (auto error = check_end(in, PacketType::report)) return *error;
  if (!std::isnan(accuracy)) out.accuracy = accuracy;
  if (out.accuracy && !(accuracy >= 0 && accuracy <= 1))
    return bad("REPORT has an accuracy that is not in 0 … 1");
  if (!std::isfinite(out.loss)) return bad("REPORT has a loss that is not finite");
  if (!is_zero_or_more(out.seconds) || out.samples > counter_max || out.step > counter_max)
    return bad("REPORT has an impossible number of samples, steps or seconds");
  return FromTrainer(out);
}

Result<FromDaemon> read_attached(ByteReader& in) {
  Attached out;
  out.memory_bytes = in.get<std::uint64_t>();
  out.schema = SchemaHash{in.get<std::uint64_t>()};
  out.node_samples = in.get<std::uint64_t>();
  out.budget = in.get<std::uint64_t>();
  out.node = NodeId{in.get<std::uint64_t>()};
  out.known_run = (in.get<std::uint32_t>() & flag_known_run) != 0;
  (void)in.get<std::uint32_t>();
  if (auto error = check_end(in, PacketType::attached)) return *error;
  return FromDaemon(out);
}

Result<FromDaemon> read_notice(ByteReader& in, PacketType type) {
  Notice out;
  out.refused = type == PacketType::refused;
  const auto code = in.take(code_bytes_max);
  const auto text_bytes = in.get<std::uint32_t>();
  if (!in.ok() || text_bytes > text_bytes_max) return bad("a notice is too short or too long");
  const auto text = in.take(text_bytes);
  if (auto error = check_end(in, type)) return *error;
  out.code.assign(reinterpret_cast<const char*>(code.data()), code.size());
  out.code.resize(std::min(out.code.size(), out.code.find('\0')));
  out.text.assign(reinterpret_cast<const char*>(text.data()), text.size());
  return FromDaemon(out);
}

std::optional<Error> read_ranges(ByteReader& in, std::uint32_t count, std::uint64_t floats,
                                 std::vector<Range>& out) {
  if (count > ranges_max) return bad("GO has too many ranges");
  std::uint64_t end = 0;
  for (std::uint32_t i = 0; i < count && in.ok(); ++i) {
    Range range;
    range.first = in.get<std::uint64_t>();
    range.floats = in.get<std::uint64_t>();
    if (range.first < end || range.first > floats || range.floats > floats - range.first)
      return bad("GO has ranges that overlap or leave the model");
    end = range.first + range.floats;
    out.push_back(range);
  }
  return check_end(in, PacketType::go);
}

Result<FromDaemon> read_go(ByteReader& in, std::uint64_t sequence, std::uint64_t floats) {
  Go out;
  out.sequence = sequence;
  out.answers = in.get<std::uint64_t>();
  out.flags = in.get<std::uint32_t>();
  const auto ranges = in.get<std::uint32_t>();
  out.progress = in.get<double>();
  out.cluster_samples = in.get<std::uint64_t>();
  out.budget = in.get<std::uint64_t>();
  out.rate_factor = in.get<double>();
  out.place = in.get<std::uint32_t>();
  out.trainers = in.get<std::uint32_t>();
  out.snapshot = in.get<std::uint32_t>();
  out.members = in.get<std::uint32_t>();
  out.node_samples = in.get<std::uint64_t>();
  (void)in.get<std::uint64_t>();
  if ((out.flags & ~go_flags) != 0 || out.snapshot > 1) return bad("GO has unknown flags");
  if (auto error = read_ranges(in, ranges, floats, out.ranges)) return *error;
  return FromDaemon(std::move(out));
}

// ---- encoding ----

class PacketWriter {
 public:
  PacketWriter(PacketType type, std::uint64_t sequence) : writer_(bytes_) {
    put(packet_magic);
    put(raw(type));
    put(protocol_version);
    put(sequence);
  }
  template <typename T>
  void put(T value) {
    writer_.put(value);
  }
  void put(const Counters& counters) {
    put(std::uint64_t{counters.steps});
    put(std::uint64_t{counters.samples});
  }
  void text(std::string_view text) {
    const auto to = writer_.grow(text.size());
    if (!text.empty()) std::memcpy(to.data(), text.data(), text.size());
  }
  Bytes take() { return std::move(bytes_); }

 private:
  Bytes bytes_;
  ByteWriter writer_;
};

Bytes write(const Attach& packet) {
  PacketWriter out(PacketType::attach, 0);
  for (const std::uint8_t byte : packet.run) out.put(byte);
  out.put(packet.floats);
  out.put(packet.segments);
  out.put(packet.step_samples);
  out.put(packet.counters);
  out.put(std::uint64_t{0});
  return out.take();
}

Bytes write(const Segments& packet) {
  PacketWriter out(PacketType::segments, packet.first);
  out.put(static_cast<std::uint32_t>(packet.segments.size()));
  out.put(std::uint32_t{0});
  for (const Segment& segment : packet.segments) {
    out.put(raw(segment.kind));
    out.put(static_cast<std::uint8_t>(segment.shape.size()));
    out.put(static_cast<std::uint16_t>(segment.name.size()));
    for (const std::int64_t extent : segment.shape) out.put(static_cast<std::uint64_t>(extent));
    out.text(segment.name);
  }
  return out.take();
}

Bytes write(const StepDone& packet) {
  PacketWriter out(PacketType::step, packet.sequence);
  out.put(packet.counters);
  out.put(packet.loss);
  out.put(packet.learning_rate);
  out.put(packet.seconds);
  out.put(packet.finite ? flag_finite : 0u);
  out.put(std::uint32_t{0});
  return out.take();
}

Bytes write(const Done& packet) {
  PacketWriter out(PacketType::done, packet.sequence);
  out.put(packet.counters);
  return out.take();
}

Bytes write(const Report& packet) {
  PacketWriter out(PacketType::report, 0);
  out.put(packet.accuracy.value_or(std::numeric_limits<double>::quiet_NaN()));
  out.put(packet.loss);
  out.put(std::uint64_t{packet.samples});
  out.put(std::uint64_t{packet.step});
  out.put(packet.seconds);
  return out.take();
}

Bytes write(const Detach&) { return PacketWriter(PacketType::detach, 0).take(); }

Bytes write(const Attached& packet) {
  PacketWriter out(PacketType::attached, 0);
  out.put(packet.memory_bytes);
  out.put(raw(packet.schema));
  out.put(std::uint64_t{packet.node_samples});
  out.put(std::uint64_t{packet.budget});
  out.put(raw(packet.node));
  out.put(packet.known_run ? flag_known_run : 0u);
  out.put(std::uint32_t{0});
  return out.take();
}

Bytes write(const Notice& packet) {
  PacketWriter out(packet.refused ? PacketType::refused : PacketType::waiting, 0);
  std::string code = packet.code;
  code.resize(code_bytes_max, '\0');
  out.text(code);
  std::string text = packet.text;
  if (text.size() > text_bytes_max) text.resize(text_bytes_max);
  text = printable(text);  // a character that was cut in two becomes one '?' for each byte
  out.put(static_cast<std::uint32_t>(text.size()));
  out.text(text);
  return out.take();
}

Bytes write(const Go& packet) {
  PacketWriter out(PacketType::go, packet.sequence);
  out.put(packet.answers);
  out.put(packet.flags);
  out.put(static_cast<std::uint32_t>(packet.ranges.size()));
  out.put(packet.progress);
  out.put(std::uint64_t{packet.cluster_samples});
  out.put(std::uint64_t{packet.budget});
  out.put(packet.rate_factor);
  out.put(packet.place);
  out.put(packet.trainers);
  out.put(packet.snapshot);
  out.put(packet.members);
  out.put(std::uint64_t{packet.node_samples});
  out.put(std::uint64_t{0});
  for (const Range& range : packet.ranges) {
    out.put(range.first);
    out.put(range.floats);
  }
  return out.take();
}

}  // namespace

Result<FromTrainer> decode_from_trainer(std::span<const std::byte> packet) {
  const Result<Header> header = read_header(packet);
  if (!header) return header.error();
  ByteReader in(packet.subspan(header_bytes));
  const bool counted = header->type == PacketType::segments || header->type == PacketType::step ||
                       header->type == PacketType::done;
  if (!counted && header->sequence != 0) return bad("a packet has a sequence that is not zero");
  switch (header->type) {
    case PacketType::attach: return read_attach(in);
    case PacketType::segments: return read_segments(in, header->sequence);
    case PacketType::step: return read_step(in, header->sequence);
    case PacketType::done: return read_done(in, header->sequence);
    case PacketType::report: return read_report(in);
    case PacketType::detach:
      if (auto error = check_end(in, PacketType::detach)) return *error;
      return FromTrainer(Detach{});
    default: return bad("a trainer sends no packet of type " + std::to_string(raw(header->type)));
  }
}

Result<FromDaemon> decode_from_daemon(std::span<const std::byte> packet, std::uint64_t floats) {
  const Result<Header> header = read_header(packet);
  if (!header) return header.error();
  ByteReader in(packet.subspan(header_bytes));
  switch (header->type) {
    case PacketType::attached: return read_attached(in);
    case PacketType::refused:
    case PacketType::waiting: return read_notice(in, header->type);
    case PacketType::go: return read_go(in, header->sequence, floats);
    default: return bad("a daemon sends no packet of type " + std::to_string(raw(header->type)));
  }
}

Bytes encode(const FromTrainer& packet) {
  return std::visit([](const auto& fields) { return write(fields); }, packet);
}

Bytes encode(const FromDaemon& packet) {
  return std::visit([](const auto& fields) { return write(fields); }, packet);
}

}  // namespace gossipd::attach
