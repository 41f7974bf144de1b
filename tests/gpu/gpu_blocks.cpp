// What an exchange computes, on a card: bit for bit what the host computes, and how fast. Without
// LibTorch. tests/gpu/run_gpu.py runs it; GOSSIPD_GPU_DEVICE=cpu tries it with the kernels compiled
// as C++.
#define DOCTEST_CONFIG_IMPLEMENT
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "models/blocks/cuda_device.h"
#include "models/blocks/host_device.h"
#include "tests/unit/blocks_equal.h"

namespace gossipd::blocks {
namespace {

bool is_dry() {
  const char* text = std::getenv("GOSSIPD_GPU_DEVICE");
  return text != nullptr && std::string(text) == "cpu";
}

Device& device() {
  static const std::unique_ptr<Device> one =
      is_dry() ? std::unique_ptr<Device>(std::make_unique<HostDevice>())
               : std::make_unique<CudaDevice>(0);
  return *one;
}

nlohmann::json& figures() {
  static nlohmann::json all = nlohmann::json::object();
  return all;
}

double milliseconds_of(const std::function<void()>& work) {
  device().finish();
  const auto began = std::chrono::steady_clock::now();
  work();
  device().finish();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began)
      .count();
}

// The median of five, after one that does not count.
double median_ms(const std::function<void()>& work) {
  work();
  std::array<double, 5> found{};
  for (double& ms : found) ms = milliseconds_of(work);
  std::ranges::sort(found);
  return found[found.size() / 2];
}

// A model of so many full blocks with an update and two replicas, each block like the others.
class Large {
 public:
  Large(std::size_t blocks, bool narrow, const TestBlock& like) : memory_(device()) {
    const std::size_t of_vector = 4 * like.floats(),
                      of_replica = narrow ? 2 * like.floats() : of_vector;
    const u64 first = memory_.of(blocks * 2 * (of_vector + of_replica));
    u64 at = first;
    const auto place = [&](const void* from, std::size_t bytes) {
      device().upload(at, from, bytes);
      return std::exchange(at, at + bytes);
    };
    for (std::size_t b = 0; b < blocks; ++b) {
      Item item{};
      item.floats = static_cast<u32>(like.floats());
      item.keep = 64;
      item.gain = item.other_gain = 0.25f;
      item.model = place(like.model.data(), of_vector);
      item.update = place(like.update.data(), of_vector);
      item.published = narrow ? place(like.narrow_published.data(), of_replica)
                              : place(like.published.data(), of_replica);
      item.received = narrow ? place(like.narrow_received.data(), of_replica)
                             : place(like.received.data(), of_replica);
      items.push_back(item);
    }
  }

  std::vector<Item> items;

 private:
  DeviceMemory memory_;
};

nlohmann::json speed_of(std::size_t blocks, bool narrow, const TestBlock& like) {
  Large model(blocks, narrow, like);
  DeviceBlocks ops(device(), narrow);
  std::vector<Item>& items = model.items;
  nlohmann::json ms;
  const auto time = [&](const char* what, const std::function<void()>& work) {
    ms[what] = median_ms(work);
  };
  Payloads said(device());
  time("change", [&] { (void)ops.change(items); });
  time("survey", [&] { (void)ops.survey(items, 0.001f); });
  time("encode", [&] { ops.encode(items, said); });
  time("apply", [&] { (void)ops.apply(items, said, 1e3f); });
  time("distance", [&] { (void)ops.distance(items); });
  time("transfer", [&] { (void)ops.transfer(items); });
  time("contract", [&] { ops.contract(items); });
  for (Item& item : items) item.other_payload = item.payload, item.other_keep = item.keep;
  time("moved", [&] { (void)ops.moved(items); });
  time("add_moved", [&] { ops.add_moved(items); });
  double all = 0;
  for (const auto& [what, took] : ms.items()) all += took.get<double>();
  time("hash", [&] { (void)ops.hash_received(items); });
  time("download", [&] { said.download(); });  // in "encode"
  time("upload", [&] { said.upload(); });      // in "apply"
  return {{"ms", ms},
          {"exchange_ms", all},
          {"parameters", blocks * like.floats()},
          {"payload_bytes", said.here().size()}};
}

// The same on the host, one thread, in fp32.
double host_exchange_ms(std::size_t blocks, const TestBlock& like) {
  std::vector<TestBlock> all(blocks, like);
  const Codec codec{CodecId::top_k, 64};
  std::vector<std::byte> payload(encoded_size(codec, like.floats()));
  std::vector<float> target(like.floats());
  const Kernels& k = kernels();
  return median_ms([&] {
    for (TestBlock& block : all) {
      (void)k.change(block.model, block.update, block.published);
      (void)k.sum(target, block.model, block.update);
      (void)k.count_apart(target, block.published, 0.001f);
      (void)encode(codec, target, block.published, payload);
      (void)apply(codec, payload, block.received, 1e3f);
      (void)k.distance(block.received, block.published);
      (void)k.transfer(block.update, block.received, block.published, 0.25f);
      k.contract_replicas(block.published, block.received, 0.25f, 0.25f);
      SparseSum sum(block.floats());
      sum.add(64, payload);
      sum.add(64, payload);
      sum.finish();
      sum.add_to(block.update, 0.25f);
    }
  });
}

}  // namespace

TEST_CASE("preflight: the card's compiler takes the kernels") {
  figures()["card"] = device().name();
  DeviceMemory memory(device());
  device().fill(memory.of(4), 7, 4);
  std::uint32_t found = 0;
  device().download(&found, memory.address(), 4);
  CHECK(found == 0x07070707u);
  if (!is_dry()) CHECK_THROWS_AS((void)device().allocate(std::size_t{1} << 46), DeviceMemoryError);
}

TEST_CASE("bits: measures, hashes and mixing are those of the host") {
  for (const Content content : contents)
    for (const bool narrow : {false, true}) {
      CAPTURE(static_cast<int>(content));
      CAPTURE(narrow);
      check_measures(device(), narrow, test_blocks(content, 7));
    }
  auto blocks = test_blocks(Content::noise, 8);
  for (TestBlock& block : blocks)
    block.model[block.floats() / 2] = std::numeric_limits<float>::quiet_NaN();
  CHECK(encodable(device(), false, blocks).empty());
}

TEST_CASE("bits: top-k of every size, and what applying it leaves") {
  for (const Content content : contents)
    for (const bool narrow : {false, true})
      for (const std::uint16_t keep : {1, 16, 64, 333, 512}) {
        CAPTURE(static_cast<int>(content));
        CAPTURE(narrow);
        CAPTURE(keep);
        const auto blocks = encodable(device(), narrow, test_blocks(content, keep));
        const auto payloads = check_encode(device(), narrow, keep, blocks);
        CHECK(check_apply(device(), narrow, keep, 0x1p100f, blocks, payloads) == 0);
        if (narrow) continue;
        check_moved(device(), blocks, keep, payloads, 0, {});
        check_moved(device(), blocks, keep, payloads, keep, payloads);
      }
}

TEST_CASE("bits: what the host refuses is refused, with the same reason") {
  CHECK(check_refusals(device(), 30) > 500);
}

TEST_CASE("figures: milliseconds of an exchange's arithmetic, and of each part") {
  Random random(21);
  const TestBlock like(65536, Content::noise, random);
  if (is_dry()) return;  // as C++ they say nothing about speed
  constexpr std::size_t small = 1526, large = 15259;
  figures()["100 M, fp32 replicas"] = speed_of(small, false, like);
  figures()["1 B, fp32 replicas"] = speed_of(large, false, like);
  figures()["1 B, bf16 replicas"] = speed_of(large, true, like);
  figures()["100 M, host, one thread, exchange_ms"] = host_exchange_ms(small, like);
}

}  // namespace gossipd::blocks

int main(int argc, char** argv) {
  doctest::Context context(argc, argv);
  const int code = context.run();
  const std::string text = nlohmann::json{{"blocks", gossipd::blocks::figures()}}.dump(2);
  std::printf("%s\n", text.c_str());
  if (const char* file = std::getenv("GOSSIPD_GPU_FIGURES")) std::ofstream(file) << text << '\n';
  return code;
}
