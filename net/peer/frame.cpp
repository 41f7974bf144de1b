#include "net/peer/frame.h"

#include <algorithm>

#include "core/base/result.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace gossipd {
namespace {

constexpr std::byte magic_0{0x67};  // 'g'
constexpr std::byte magic_1{0x50};  // 'P'
constexpr std::byte flag_first{0x01};
constexpr std::size_t checksum_at = 12;

void put_u32(std::uint32_t value, std::span<std::byte, 4> out) {
  for (std::size_t i = 0; i < 4; ++i) out[i] = static_cast<std::byte>(value >> (8 * i));
}

std::uint32_t get_u32(std::span<const std::byte, 4> in) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) value |= static_cast<std::uint32_t>(in[i]) << (8 * i);
  return value;
}

// Also covers the header's first 12 bytes, to detect a flipped length or flag.
std::uint32_t checksum(std::span<const std::byte, checksum_at> header,
                       std::span<const std::byte> payload) {
  return static_cast<std::uint32_t>(XXH3_64bits(header.data(), header.size()) ^
                                    XXH3_64bits(payload.data(), payload.size()));
}

}  // namespace

const char* to_code(FrameError error) {
  switch (error) {
    case FrameError::magic: return "frame-magic";
    case FrameError::kind: return "frame-kind";
    case FrameError::empty: return "frame-empty";
    case FrameError::too_long: return "frame-too-long";
    case FrameError::chunk_order: return "frame-chunk-order";
    case FrameError::checksum: return "frame-checksum";
  }
  return "frame";
}

const char* to_text(FrameError error) {
  switch (error) {
    case FrameError::magic: return "the bytes received do not begin a frame";
    case FrameError::kind: return "a frame of unknown kind or with unknown flags was received";
    case FrameError::empty: return "a frame without payload was received";
    case FrameError::too_long: return "a frame or message longer than allowed was announced";
    case FrameError::chunk_order: return "a chunk does not continue the message under way";
    case FrameError::checksum: return "a frame's checksum does not match its bytes";
  }
  return "bad frame";
}

void encode_frame_header(const FrameHeader& header, std::span<const std::byte> payload,
                         std::span<std::byte, frame_header_bytes> out) {
  GOSSIPD_ASSERT(header.length == payload.size());
  out[0] = magic_0;
  out[1] = magic_1;
  out[2] = static_cast<std::byte>(header.kind);
  out[3] = header.first ? flag_first : std::byte{0};
  put_u32(header.length, out.subspan<4, 4>());
  put_u32(header.total, out.subspan<8, 4>());
  put_u32(checksum(out.first<checksum_at>(), payload), out.subspan<checksum_at, 4>());
}

void append_frame(const FrameHeader& header, std::span<const std::byte> payload, Bytes& out) {
  std::array<std::byte, frame_header_bytes> head{};
  encode_frame_header(header, payload, head);
  out.insert(out.end(), head.begin(), head.end());
  out.insert(out.end(), payload.begin(), payload.end());
}

FrameDecoder::FrameDecoder(const FrameLimits& limits) : limits_(limits) {}

void FrameDecoder::feed(std::span<const std::byte> bytes) {
  GOSSIPD_ASSERT(input_.empty() || error_);
  input_ = bytes;
}

std::optional<FrameDecoder::Message> FrameDecoder::next() {
  while (!error_ && take_header() && take_payload()) {
    const std::size_t frame_begin = buffer().size() - header_.length;
    const std::span<const std::byte> payload =
        std::span<const std::byte>(buffer()).subspan(frame_begin);
    const std::uint32_t claimed =
        get_u32(std::span<const std::byte, 4>(header_bytes_.data() + checksum_at, 4));
    if (checksum(std::span(header_bytes_).first<checksum_at>(), payload) != claimed) {
      error_ = FrameError::checksum;
      break;
    }
    header_filled_ = 0;
    if (buffer().size() < header_.total) continue;  // a bulk message with chunks to come
    bulk_total_ = header_.kind == FrameKind::bulk ? 0 : bulk_total_;
    return Message{header_.kind, buffer()};
  }
  return std::nullopt;
}

// True when a whole, acceptable header is there. Prepares the buffer for the frame's payload.
bool FrameDecoder::take_header() {
  if (header_filled_ == frame_header_bytes) return true;
  const std::size_t taken = std::min(frame_header_bytes - header_filled_, input_.size());
  std::copy_n(input_.begin(), taken,
              header_bytes_.begin() + static_cast<std::ptrdiff_t>(header_filled_));
  header_filled_ += taken;
  input_ = input_.subspan(taken);
  if (header_filled_ < frame_header_bytes) return false;
  error_ = parse_header();
  if (error_) return false;
  payload_filled_ = 0;
  if (header_.first) buffer().clear();
  if (header_.kind == FrameKind::bulk) bulk_total_ = header_.total;
  return true;
}

// True when the frame's payload is complete, at the end of buffer().
bool FrameDecoder::take_payload() {
  const std::size_t taken = std::min<std::size_t>(header_.length - payload_filled_, input_.size());
  buffer().insert(buffer().end(), input_.begin(),
                  input_.begin() + static_cast<std::ptrdiff_t>(taken));
  payload_filled_ += taken;
  input_ = input_.subspan(taken);
  return payload_filled_ == header_.length;
}

std::optional<FrameError> FrameDecoder::parse_header() {
  const std::span<const std::byte, frame_header_bytes> head(header_bytes_);
  if (head[0] != magic_0 || head[1] != magic_1) return FrameError::magic;
  if (head[2] > static_cast<std::byte>(FrameKind::goodbye)) return FrameError::kind;
  if ((head[3] & ~flag_first) != std::byte{0}) return FrameError::kind;
  header_.kind = static_cast<FrameKind>(head[2]);
  header_.first = head[3] == flag_first;
  header_.length = get_u32(head.subspan<4, 4>());
  header_.total = get_u32(head.subspan<8, 4>());
  if (header_.length == 0) return FrameError::empty;
  if (header_.kind == FrameKind::bulk) return check_chunk();
  const std::size_t bytes_max =
      header_.kind == FrameKind::control ? limits_.control_bytes_max : goodbye_bytes_max;
  if (header_.length > bytes_max) return FrameError::too_long;
  if (!header_.first || header_.total != header_.length) return FrameError::chunk_order;
  return std::nullopt;
}

std::optional<FrameError> FrameDecoder::check_chunk() const {
  if (header_.length > limits_.chunk_bytes_max || header_.total > limits_.bulk_bytes_max)
    return FrameError::too_long;
  const bool under_way = bulk_total_ != 0;
  if (header_.first == under_way) return FrameError::chunk_order;
  if (under_way && header_.total != bulk_total_) return FrameError::chunk_order;
  const std::size_t received = under_way ? bulk_.size() : 0;
  if (header_.length > header_.total - received) return FrameError::chunk_order;
  return std::nullopt;
}

bool FrameDecoder::at_boundary() const {
  return !error_ && header_filled_ == 0 && bulk_total_ == 0;
}

}  // namespace gossipd
