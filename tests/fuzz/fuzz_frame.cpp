// The frame decoder against arbitrary bytes, arbitrarily split: it must not crash, must not hold
// more memory than its limits allow, and must not depend on where the stream was split.
#include <cstdint>
#include <vector>

#include "core/base/result.h"
#include "net/peer/frame.h"

using namespace gossipd;

namespace {

// Small inputs reach small limits, and large ones the real limits.
constexpr FrameLimits small{
    .control_bytes_max = 256, .bulk_bytes_max = 1024, .chunk_bytes_max = 128},
    real;

struct Outcome {
  std::vector<std::pair<FrameKind, Bytes>> messages;
  std::optional<FrameError> error;
  bool operator==(const Outcome&) const = default;
};

Outcome decode(std::span<const std::byte> stream, const FrameLimits& limits,
               std::size_t piece_bytes) {
  FrameDecoder decoder(limits);
  Outcome outcome;
  while (!stream.empty()) {
    const auto piece = stream.first(std::min(piece_bytes, stream.size()));
    stream = stream.subspan(piece.size());
    decoder.feed(piece);
    while (const auto message = decoder.next()) {
      GOSSIPD_ASSERT(!message->payload.empty() && message->payload.size() <= limits.bulk_bytes_max);
      outcome.messages.emplace_back(message->kind,
                                    Bytes(message->payload.begin(), message->payload.end()));
    }
  }
  outcome.error = decoder.error();
  return outcome;
}

}  // namespace

// Checksums would stop a fuzzer, so the input describes frames: a first byte below 4 requests a
// valid header of that kind, anything else is used unchanged. The highest bit of the input chooses
// the limits, and the unit of lengths.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::span<const std::byte> input(reinterpret_cast<const std::byte*>(data), size);
  if (input.empty()) return 0;
  const bool is_real = (input[0] & std::byte{0x80}) != std::byte{};
  const std::size_t unit = is_real ? 512 : 1;
  const FrameLimits& limits = is_real ? real : small;
  const std::size_t piece_bytes = (1 + std::to_integer<std::size_t>(input[0]) % 64) * unit;
  input = input.subspan(1);
  Bytes stream;
  while (input.size() >= 4) {
    const auto selector = std::to_integer<std::uint8_t>(input[0]);
    const std::size_t length =
        std::min<std::size_t>(std::to_integer<std::size_t>(input[1]) * unit, input.size() - 4);
    const std::uint32_t total =
        std::to_integer<std::uint32_t>(input[2]) * 8 * static_cast<std::uint32_t>(unit);
    const bool first = (std::to_integer<int>(input[3]) & 1) != 0;
    const auto payload = input.subspan(4, length);
    if (selector < 4) {
      const auto kind = static_cast<FrameKind>(selector % 3);
      append_frame({.kind = kind,
                    .first = first,
                    .length = static_cast<std::uint32_t>(length),
                    .total = kind == FrameKind::bulk ? total : static_cast<std::uint32_t>(length)},
                   payload, stream);
    } else {
      stream.insert(stream.end(), input.begin(),
                    input.begin() + static_cast<std::ptrdiff_t>(4 + length));
    }
    input = input.subspan(4 + length);
  }
  stream.insert(stream.end(), input.begin(), input.end());
  GOSSIPD_ASSERT(decode(stream, limits, piece_bytes) == decode(stream, limits, stream.size() + 1));
  return 0;
}
