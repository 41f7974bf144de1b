// net/peer/frame.h - how messages become bytes on one connection, and back. Pure: no sockets.
//
// The byte format, with a worked example, is net/peer/FRAME.md. A control message is one frame; a
// bulk message travels as chunks, between which control frames may pass. The decoder trusts
// nothing: every length is checked against a named maximum before use, memory grows only with the
// bytes that have arrived, and a message is handed out only when its last checksum was right.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "core/base/types.h"

namespace gossipd {

struct FrameLimits {
  std::size_t control_bytes_max = 64 * 1024;  // one control message
  std::size_t bulk_bytes_max = 1024 * 1024;   // one bulk message
  std::size_t chunk_bytes_max = 64 * 1024;    // payload of one bulk frame
};

inline constexpr std::size_t frame_header_bytes = 16;
inline constexpr std::size_t goodbye_bytes_max = 1024;

enum class FrameKind : std::uint8_t { control = 0, bulk = 1, goodbye = 2 };

// Why a stream of frames is refused. Any of these ends the stream, since a peer that breaks the
// format cannot be trusted about where the next frame begins.
enum class FrameError : std::uint8_t { magic, kind, empty, too_long, chunk_order, checksum };
[[nodiscard]] const char* to_code(FrameError error);  // "frame-magic", ...: stable, for counters
[[nodiscard]] const char* to_text(FrameError error);  // one sentence for people

struct FrameHeader {
  FrameKind kind = FrameKind::control;
  bool first = true;         // begins a message; always so outside the bulk lane
  std::uint32_t length = 0;  // payload bytes in this frame
  std::uint32_t total = 0;   // bytes of the whole message
};

// Writes the frame's 16 header bytes; `payload` is what will follow them.
void encode_frame_header(const FrameHeader& header, std::span<const std::byte> payload,
                         std::span<std::byte, frame_header_bytes> out);
// Appends a whole frame to `out`.
void append_frame(const FrameHeader& header, std::span<const std::byte> payload, Bytes& out);

// feed() a piece of the stream, then call next() until it returns nothing; then error() tells
// whether bytes are missing or the stream has failed. Any split of the stream gives the same
// messages.
class FrameDecoder {
 public:
  struct Message {
    FrameKind kind;
    std::span<const std::byte> payload;  // valid until the next call of next() or feed()
  };

  explicit FrameDecoder(const FrameLimits& limits);

  // `bytes` must stay valid until next() has returned nothing. All earlier bytes must have been
  // consumed in this way.
  void feed(std::span<const std::byte> bytes);
  [[nodiscard]] std::optional<Message> next();
  [[nodiscard]] std::optional<FrameError> error() const { return error_; }
  // Whether the stream may end here: no frame and no bulk message is half received.
  [[nodiscard]] bool at_boundary() const;

 private:
  [[nodiscard]] bool take_header();
  [[nodiscard]] bool take_payload();
  [[nodiscard]] std::optional<FrameError> parse_header();
  [[nodiscard]] std::optional<FrameError> check_chunk() const;
  [[nodiscard]] Bytes& buffer() { return header_.kind == FrameKind::bulk ? bulk_ : single_; }

  FrameLimits limits_;
  std::span<const std::byte> input_;
  std::array<std::byte, frame_header_bytes> header_bytes_{};
  std::size_t header_filled_ = 0;
  FrameHeader header_;              // meaningful while header_bytes_ is full
  std::size_t payload_filled_ = 0;  // of the present frame
  Bytes single_;                    // the present control or goodbye message
  Bytes bulk_;                      // the present bulk message, as far as it has arrived
  std::uint32_t bulk_total_ = 0;    // 0: no bulk message is under way
  std::optional<FrameError> error_;
};

}  // namespace gossipd
