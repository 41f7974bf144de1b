// core/wire/control.h - the small messages two nodes exchange, as CBOR maps.
//
// Unknown keys and unknown kinds are skipped, so that a node of the next version can still be
// talked to. decode() checks lengths and nesting before it builds anything and never throws.
#pragma once

#include <variant>

#include "core/base/result.h"
#include "core/membership/member.h"

namespace gossipd {

inline constexpr std::size_t control_bytes_max = 64 * 1024;
inline constexpr std::size_t job_bytes_max = 60 * 1024;
inline constexpr std::size_t records_per_message_max = 200;
inline constexpr std::size_t resync_blocks_max = 4096;

// First on every session, in both directions.
struct Hello {
  std::uint32_t protocol = 0;
  ClusterId cluster{};  // 0: wants to join whichever cluster this is
  NodeId id{};
  std::uint64_t incarnation = 0;
  std::string name;
  Endpoint address;  // an empty host: "the one you see me at"
  JobHash job{};     // 0: wants the cluster's
  bool leaving = false;
};
// Why the session will be closed; both sides keep it for their status.
struct Refuse {
  Error reason;
};
struct Members {
  std::vector<MemberRecord> records;
};
struct JobRequest {};
struct JobOffer {
  JobHash hash{};
  Samples budget_samples = 0;
  std::string document;
};
// The model stands on this side; once per session. Conversation 0: nothing is remembered.
struct Ready {
  SchemaHash schema{};
  bool has_model = false;
  std::uint64_t nonce = 0;
  std::uint64_t conversation = 0;
  std::uint32_t spoken = 0;  // last turn spoken completely
  std::uint32_t heard = 0;   // last turn heard completely
};
struct Ping {
  std::uint64_t nonce = 0;
};
struct Pong {
  std::uint64_t nonce = 0;
};
// These blocks of what you publish to me need a keyframe.
struct Resync {
  std::vector<std::uint32_t> blocks;
};
struct Bye {
  std::string why;  // "left", "restarting"
};
struct UnknownControl {
  std::string kind;
};

using Control = std::variant<Hello, Refuse, Members, JobRequest, JobOffer, Ready, Ping, Pong, Resync, Bye, UnknownControl>;

[[nodiscard]] Bytes encode_control(const Control&);
[[nodiscard]] Result<Control> decode_control(std::span<const std::byte>);

}  // namespace gossipd
