// Any bytes as a safetensors file: tensors that tile the data exactly, or an error.
#include "models/files/safetensors.h"

using namespace gossipd;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto header = parse_safetensors(std::as_bytes(std::span(data, size)), size, "fuzz");
  if (!header) return 0;
  std::uint64_t at = 0;
  for (const TensorEntry& tensor : header->tensors) {
    GOSSIPD_ASSERT(tensor.begin == at && tensor.end >= at);
    at = tensor.end;
  }
  GOSSIPD_ASSERT(header->data_offset + at == size);
  std::vector<TensorEntry> tensors = header->tensors;
  const std::string written = safetensors_header(tensors, header->metadata);
  const auto again =
      parse_safetensors(std::as_bytes(std::span(written)), written.size() + at, "fuzz");
  GOSSIPD_ASSERT(again && again->tensors.size() == tensors.size() &&
                 again->metadata.size() == header->metadata.size());
  return 0;
}
