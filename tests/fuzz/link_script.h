// tests/fuzz/link_script.h - the input format shared by the fuzz target of turns and the maker of
// its seeds.
//
// An input is a byte whose lowest bit chooses the protocol (without hashes of whole blocks, a
// changed one is accepted), then a script: pieces of {u16 length, bytes}, where the length
// rest_of_script means everything that follows. A piece is a message from the peer; the single byte
// `reconnect` stands for a lost and restored connection.
#pragma once

#include "core/exchange/link.h"

namespace gossipd {

inline constexpr std::byte reconnect{0xff};
inline constexpr std::size_t rest_of_script = 0xffff;
inline constexpr NodeId fuzzed_node{2};
inline constexpr NodeId fuzzing_peer{1};  // the smaller id speaks first

inline std::uint32_t script_protocol(std::byte first) {
  return (first & std::byte{1}) == std::byte{0} ? protocol_oldest : protocol_version;
}

inline Schema script_schema() {
  auto schema = Schema::build({{"weight", {40, 30}, 0, 1200, SegmentKind::parameter},
                               {"bias", {30}, 1200, 30, SegmentKind::parameter},
                               {"running_mean", {30}, 1230, 30, SegmentKind::statistic},
                               {"batches", {}, 1260, 1, SegmentKind::local}});
  GOSSIPD_ASSERT(schema);
  return *schema;
}

// Opens `a` and `b` towards each other, as two Ready messages on one session would.
inline void describe_ready(const Link& link, std::uint64_t nonce, Ready& ready) {
  ready = Ready{.schema = script_schema().hash(), .has_model = true, .nonce = nonce};
  link.describe(ready);
}

// Speaks the whole turn of `link`; the messages stay in the link.
inline void speak_turn(Link& link, const Schema& schema, const ExchangePolicy& policy,
                       std::span<const float> model, Codec codec, Instant now) {
  std::vector<float> update(schema.floats());
  const std::vector<double> travelled(schema.blocks().size(), 1.0);
  link.look_begin({}, 0, OuterStep{policy.outer_momentum, travelled}, now);
  for (std::size_t block = 0; block < schema.blocks().size(); ++block)
    link.look(block, model, update, {});
  link.begin(Speech{.codec = codec,
                    .gain_self = static_cast<float>(policy.mixing),
                    .gain_peer = static_cast<float>(policy.mixing),
                    .snapshot_at = now},
             now);
  while (!link.spoken_all())
    if (!link.speak(model, update, {}, now)) GOSSIPD_ASSERT(!"a finite model was refused");
  link.end(now);
}

}  // namespace gossipd
