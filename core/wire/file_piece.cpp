#include "core/wire/file_piece.h"

#include "core/wire/bytes.h"

namespace gossipd {

namespace {
constexpr std::size_t header_bytes = 12;
}

Bytes encode_file_piece(const FilePiece& piece) {
  GOSSIPD_ASSERT(!piece.bytes.empty() && piece.bytes.size() <= file_piece_bytes_max);
  Bytes out;
  out.reserve(header_bytes + piece.bytes.size());
  ByteWriter w(out);
  w.put(file_piece_kind);
  w.put(std::uint8_t{0});
  w.put(std::uint16_t{0});
  w.put(piece.offset);
  out.insert(out.end(), piece.bytes.begin(), piece.bytes.end());
  return out;
}

Result<FilePiece> decode_file_piece(std::span<const std::byte> message) {
  if (message.size() <= header_bytes || message.size() > header_bytes + file_piece_bytes_max)
    return Error{"malformed", "a piece of a file of " + std::to_string(message.size()) + " bytes"};
  ByteReader in(message);
  const bool kind = in.get<std::uint8_t>() == file_piece_kind;
  const bool zeros = in.get<std::uint8_t>() == 0 && in.get<std::uint16_t>() == 0;
  if (!kind || !zeros) return Error{"malformed", "not a piece of a file"};
  const auto offset = in.get<std::uint64_t>();
  return FilePiece{offset, message.subspan(header_bytes)};
}

}  // namespace gossipd
