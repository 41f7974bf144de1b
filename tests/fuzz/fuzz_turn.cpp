// A peer that sends any turns and replica states, over reconnects, must not crash the link, break
// its invariants, or change a replica by a refused message.
#include <cmath>
#include <cstring>

#include "tests/fuzz/link_script.h"

using namespace gossipd;

namespace {

// The codecs themselves: an arbitrary payload is applied whole or not at all.
void try_codec(std::span<const std::byte> input) {
  if (input.size() < 4) return;
  const Codec codec{static_cast<CodecId>(std::to_integer<unsigned>(input[0]) % 8),
                    static_cast<std::uint16_t>(std::to_integer<unsigned>(input[1]) * 2)};
  const std::size_t floats = 1 + std::to_integer<std::size_t>(input[2]) * 9;
  static std::vector<float> replica, before;
  replica.assign(floats, 0.25f);
  before = replica;
  if (apply(codec, input.subspan(3), replica, 64.0f) != ApplyError::none)
    GOSSIPD_ASSERT(std::memcmp(replica.data(), before.data(), floats * sizeof(float)) == 0);
  else
    for (const float value : replica)
      GOSSIPD_ASSERT(std::isfinite(value) && std::fabs(value) <= 64.5f);
}

class FuzzedNode {
 public:
  explicit FuzzedNode(std::uint32_t protocol) : protocol_(protocol) { open(1); }

  void hear(std::span<const std::byte> message) {
    now_ += std::chrono::milliseconds(10);
    if (message.size() == 1 && message[0] == reconnect) {
      link_.close();
      open(++nonce_);
    } else if (bulk_kind(message) == BulkKind::replica_state) {
      refused_changes_nothing([&] { return link_.on_replica_state(message, now_); });
    } else {
      refused_changes_nothing([&] { return link_.on_turn(message, 0.001, now_); });
    }
    link_.check_invariants();
    answer();
  }

 private:
  void open(std::uint64_t nonce) {
    Ready mine, theirs;
    describe_ready(link_, nonce, mine);
    // The peer claims to remember exactly what we do, which opens the most of the link's code.
    theirs = mine;
    std::swap(theirs.spoken, theirs.heard);
    link_.open(mine, theirs, protocol_);
    link_.check_invariants();
  }

  void refused_changes_nothing(const auto& act) {
    static std::vector<float> before, after;  // kept, since filling new ones took most of the time
    const std::size_t held_before = held(before);
    if (!act()) return;
    GOSSIPD_ASSERT(held(after) == held_before &&
                   std::memcmp(before.data(), after.data(), held_before * sizeof(float)) == 0);
  }

  // The blocks held of the peer's model, one after the other; returns the number of floats.
  [[nodiscard]] std::size_t held(std::vector<float>& out) const {
    out.resize(schema_.floats());
    std::size_t floats = 0;
    for (std::size_t i = 0; link_.has_replicas() && i < schema_.blocks().size(); ++i) {
      if (!link_.is_known(Link::Which::received, i)) continue;
      link_.copy_received(i, std::span(out).subspan(floats, schema_.blocks()[i].size));
      floats += schema_.blocks()[i].size;
    }
    return floats;
  }

  void answer() {
    if (link_.my_turn()) speak_turn(link_, schema_, policy_, model_, policy_.codec, now_);
    (void)link_.take_resync();
    (void)link_.take_messages();
    link_.check_invariants();
  }

  const std::uint32_t protocol_;
  static inline const Schema schema_ = script_schema();
  const ExchangePolicy policy_;
  Link link_{fuzzed_node, fuzzing_peer, schema_, policy_};
  static inline const std::vector<float> model_ = std::vector<float>(schema_.floats(), 0.125f);
  std::uint64_t nonce_ = 1;
  Instant now_{};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::span<const std::byte> input = std::as_bytes(std::span(data, size));
  try_codec(input);
  if (input.empty()) return 0;
  FuzzedNode node(script_protocol(input[0]));
  input = input.subspan(1);
  while (input.size() >= 2) {
    const std::size_t wanted =
        std::to_integer<std::size_t>(input[0]) | std::to_integer<std::size_t>(input[1]) << 8;
    const auto message = input.subspan(
        2, wanted == rest_of_script ? input.size() - 2 : std::min(wanted, input.size() - 2));
    input = input.subspan(2 + message.size());
    node.hear(message);
  }
  return 0;
}
