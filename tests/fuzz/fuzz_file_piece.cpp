// Any bytes as a piece of a job's file: refused, or a piece within its maximum that is written the
// same again.
#include "core/wire/file_piece.h"

using namespace gossipd;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto message = std::as_bytes(std::span(data, size));
  const auto piece = decode_file_piece(message);
  if (!piece) return 0;
  GOSSIPD_ASSERT(is_file_piece(message) && !piece->bytes.empty() &&
                 piece->bytes.size() <= file_piece_bytes_max);
  const Bytes again = encode_file_piece(*piece);
  GOSSIPD_ASSERT(std::equal(again.begin(), again.end(), message.begin(), message.end()));
  return 0;
}
