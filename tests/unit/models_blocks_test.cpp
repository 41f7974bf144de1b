// The kernels for a GPU, compiled as C++, compute what core/codec's kernels do.
#include <limits>
#include <string>

#include "models/blocks/cuda_device.h"
#include "models/blocks/host_device.h"
#include "tests/unit/blocks_equal.h"

namespace gossipd::blocks {

TEST_CASE("blocks: measures, hashes and mixing are those of the host, bit for bit") {
  HostDevice device;
  for (const Content content : contents)
    for (const bool narrow : {false, true}) {
      CAPTURE(static_cast<int>(content));
      CAPTURE(narrow);
      check_measures(device, narrow, test_blocks(content, 7));
    }
}

TEST_CASE("blocks: what is not finite, or too large for a codec, is found in any place") {
  HostDevice device;
  for (const bool narrow : {false, true})
    for (const float bad : {std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN(), 1e30f, -3.4e38f, 0x1p99f}) {
      CAPTURE(bad);
      auto blocks = test_blocks(Content::noise, 8);
      Random random(9);
      for (TestBlock& block : blocks) block.model[random.below(block.floats())] = bad;
      CHECK(encodable(device, narrow, blocks).size() == (bad == 0x1p99f ? blocks.size() : 0));
      check_measures(device, narrow, blocks);
    }
}

TEST_CASE("blocks: top-k of every size is the host's, and so is what applying it leaves") {
  HostDevice device;
  for (const Content content : contents)
    for (const bool narrow : {false, true})
      for (const std::uint16_t keep : {1, 16, 64, 333, 512}) {
        CAPTURE(static_cast<int>(content));
        CAPTURE(narrow);
        CAPTURE(keep);
        const auto blocks = encodable(device, narrow, test_blocks(content, keep));
        const auto payloads = check_encode(device, narrow, keep, blocks);
        CHECK(check_apply(device, narrow, keep, 0x1p100f, blocks, payloads) == 0);
      }
}

TEST_CASE("blocks: a payload that the host refuses is refused, with the same reason") {
  HostDevice device;
  CHECK(check_refusals(device, 60) > 1000);
}

TEST_CASE("blocks: what one payload or two add up to is the host's sum") {
  HostDevice device;
  for (const Content content : {Content::noise, Content::equal, Content::far_apart}) {
    CAPTURE(static_cast<int>(content));
    const auto blocks = encodable(device, false, test_blocks(content, 13));
    const auto payloads = check_encode(device, false, 64, blocks);
    auto opposite = blocks;  // the same entries with the other sign: some sums are zero
    for (TestBlock& block : opposite)
      for (std::size_t i = 0; i < block.floats(); ++i)
        std::swap(block.published[i], block.model[i]), block.update[i] = 0;
    opposite = encodable(device, false, opposite);
    REQUIRE(opposite.size() == blocks.size());
    check_moved(device, blocks, 64, payloads, 0, {});
    check_moved(device, blocks, 64, payloads, 64, check_encode(device, false, 64, opposite));
    check_moved(device, blocks, 64, payloads, 512, check_encode(device, false, 512, opposite));
  }
}

TEST_CASE("blocks: a machine without a GPU says what is missing") {
  try {
    const CudaDevice device(0);
    MESSAGE("a GPU is here: ", device.name());
  } catch (const DeviceError& error) {
    const std::string text = error.what();
    CHECK_MESSAGE((text.find("libcuda.so.1 cannot be loaded") == 0 || text.find("CUDA: ") == 0 ||
                   text.find("libnvrtc") == 0),
                  text);
  }
}

}  // namespace gossipd::blocks
