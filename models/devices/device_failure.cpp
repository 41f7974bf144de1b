#include "models/devices/device_failure.h"

#include "models/files/data_file.h"

namespace gossipd {

bool says_main_memory(std::string_view text) {
  const auto says = [text](std::string_view words) { return text.find(words) != text.npos; };
  // Thrust's own std::bad_alloc is a device's: "std::bad_alloc: cudaErrorMemoryAllocation: …".
  return (says("std::bad_") || says("DefaultCPUAllocator")) && !says("cudaError");
}

void rethrow_for_node(const RankFailure& failure, const std::string& device) {
  const std::string text =
      "rank " + std::to_string(failure.rank()) + " (" + device + "): " + failure.what();
  try {
    std::rethrow_exception(failure.cause());
  } catch (const DataError&) {
    throw;
  } catch (const OutOfMemory& error) {
    throw OutOfMemory(text, error.memory());
  } catch (...) {
    throw std::runtime_error(text);
  }
}

}  // namespace gossipd
