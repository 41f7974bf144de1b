// core/wire/file_piece.h - the bulk message that carries a piece of a job's file.
//
// All fields little-endian, packed:
//
//     u8 kind = 3 | u8 0 | u16 0 | u64 offset | 1 … file_piece_bytes_max bytes of the file
//
// Pieces are asked for one at a time by a FileRequest (control.h), so a transfer holds one piece in
// memory at each end.
#pragma once

#include <span>

#include "core/base/result.h"
#include "core/base/types.h"

namespace gossipd {

inline constexpr std::size_t file_piece_bytes_max = 256 * 1024;
inline constexpr std::uint8_t file_piece_kind = 3;

struct FilePiece {
  std::uint64_t offset = 0;
  std::span<const std::byte> bytes;  // into the message
};

[[nodiscard]] Bytes encode_file_piece(const FilePiece&);
[[nodiscard]] inline bool is_file_piece(std::span<const std::byte> message) {
  return !message.empty() && std::to_integer<std::uint8_t>(message[0]) == file_piece_kind;
}
// Code "malformed".
[[nodiscard]] Result<FilePiece> decode_file_piece(std::span<const std::byte> message);

}  // namespace gossipd
