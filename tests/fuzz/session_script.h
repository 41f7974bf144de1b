// tests/fuzz/session_script.h - the input format shared by the fuzz target of whole sessions and
// the maker of its seeds.
//
// An input is two bytes that choose the node (SessionStart), then steps: a Step and its arguments.
// Numbers are little-endian; an input that ends within a step continues with zeros.
#pragma once

#include <cstdint>

namespace gossipd {

enum class SessionStep : std::uint8_t {
  select,        // u8 peer: selects the session for the next steps
  dial_in,       // u8: the peer opens a session (bit 0: the node has dialled) …
  hello,         // u8: its oddity (HelloOddity) …
  ready,         // u8: bits ReadyBits …
  link_up,       // … all three of them, with nothing odd
  cut,           // the session is lost
  control,       // u8 kind, then the fields of a message
  control_raw,   // u16 length, bytes
  control_fill,  // u8 byte, u16 length - 1: repeated
  bulk_raw,      // u16 length, bytes
  bulk_fill,     // u8 byte, u8 length / 4096
  // u8 bits TurnBits, u8 records, then for each u8 block and kind …: the next turn, or more of it
  turn,
  replica,  // u8: a replica state, of what the peer has heard (bit 0: with a wrong hash)
  piece,    // u8 offset, u8 length: of a file
  time,     // u8 exponent: 2^e ms pass, at most an hour
  // u8: the trainer gives its parameters (bits 0-5: distance moved; bit 7: not finite)
  train,
  op,         // u8: an operator's command
  disk,       // u8: bit 0: disk reads wait; otherwise answered
  repeat,     // u8 count: repeats this peer's last message
  say_again,  // sends the node's last message back
  count_
};

enum class HelloOddity : std::uint8_t {
  none,
  own_id,
  other_cluster,
  no_cluster,
  other_job,
  no_job,
  old_protocol,
  leaving,
  probe,
  no_address,
  count_
};
inline constexpr std::uint8_t ready_without_model = 1, ready_remembered = 2, ready_foreign = 4,
                              ready_bf16 = 8, ready_ordered = 16, ready_initial = 32;
inline constexpr std::uint8_t turn_last = 1, turn_answers = 2, turn_out_of_order = 4,
                              turn_odd_header = 8;

// The first byte: bit 0: the node has no model; bit 1: it wants the job; bit 2: an older protocol;
// bits 3-4: a policy.
inline constexpr std::uint8_t start_without_model = 1, start_without_job = 2, start_older = 4;
inline constexpr std::uint8_t session_peers = 4;

}  // namespace gossipd
