// core/wire/control.h - the small messages two nodes exchange, as CBOR maps.
//
// Unknown keys and unknown kinds are skipped, so that a node of the next version can still be
// talked to. decode() checks lengths and nesting before it builds anything and never throws.
#pragma once

#include <optional>
#include <variant>

#include "core/base/protocol.h"
#include "core/base/result.h"
#include "core/membership/member.h"

namespace gossipd {

inline constexpr std::size_t control_bytes_max = 64 * 1024;
inline constexpr std::size_t job_bytes_max = 60 * 1024;
inline constexpr std::size_t records_per_message_max = 200;
inline constexpr std::size_t stats_per_message_max = 64;
inline constexpr std::size_t suspicions_per_message_max = 64;
inline constexpr std::size_t reached_reason_bytes_max = 200;
inline constexpr std::size_t resync_blocks_max = 4096;
inline constexpr std::size_t held_flips_max = 1024;

// First on every session, in both directions.
struct Hello {
  std::uint32_t protocol = 0;  // the oldest that the sender speaks (protocol.h)
  ClusterId cluster{};         // 0: wants to join whichever cluster this is
  NodeId id{};
  std::uint64_t incarnation = 0;
  std::string name;
  Endpoint address;  // an empty host: "the one you see me at"
  JobHash job{};     // 0: wants the cluster's
  bool leaving = false;
  bool probe = false;  // wants to see that somebody answers, and no link
  // that the sender speaks; never below `protocol`, which it is if not said
  std::uint32_t newest = 0;
  // of the sender's process (instances.h); 0: a release that does not say
  std::uint64_t instance = 0;
  bool founds = false;  // would found a cluster itself, where nobody has one (founding.h)
  // The cluster as it was founded, and which of its jobs this is. After the first job `cluster` is
  // another (core/node/job_generation.h), so a release that knows no next job refuses it.
  ClusterId founded{};
  std::uint64_t generation = 1;
  // of the sender; nothing: a release that does not say
  std::optional<std::uint32_t> links{};
  bool rotates = false;  // gives up another link for this one
};
// The cluster `founded` has gone on to this job, or does now.
struct Succession {
  ClusterId founded{};
  std::uint64_t generation = 0;
  JobHash hash{};
  std::string document;
};
// Why the session will be closed; both sides keep it for their status.
struct Refuse {
  Error reason;
};
struct Members {
  std::vector<MemberRecord> records;
  std::vector<MemberStats> stats{};
  std::vector<Suspicion> suspicions{};
};
// What the sender knows, in hashes (Directory::digest): the other end answers with the records that
// differ.
struct Digest {
  std::vector<std::uint64_t> buckets;
};
struct JobRequest {};
struct JobOffer {
  JobHash hash{};
  Samples budget_samples = 0;
  std::string document;
};
// The next piece of the job's file, from `offset` on: answered by a bulk message (file_piece.h), or
// by FileAbsent.
struct FileRequest {
  JobFile file;
  std::uint64_t offset = 0;
};
struct FileAbsent {
  JobFile file;
};
// The model stands on this side; once per session. Epoch 0: nothing is remembered.
struct Ready {
  SchemaHash schema{};
  bool has_model = false;
  std::uint64_t nonce = 0;
  std::uint64_t epoch = 0;
  std::uint32_t spoken = 0;  // last turn spoken completely
  std::uint32_t heard = 0;   // last turn heard completely
  // Without a model: where the other end's first turn is to begin, and which blocks can wait
  // because others have told them: the ascending blocks at which what is missing and what is held
  // take turns, from "missing" on.
  std::uint32_t first_block = 0;
  std::vector<std::uint32_t> held_flips{};
  bool bf16 = false;  // would keep the replicas in bf16; they are, where both ends would
  // XXH3-64 of the job's initial model, while the sender's model is near it; 0: it is not. Where
  // both ends say the same, both replicas of a fresh epoch begin as that model.
  std::uint64_t initial = 0;
  Step initial_age = 0;  // own steps since then, of the sender and of whom it began from
};
struct Ping {
  std::uint64_t nonce = 0;
  std::uint32_t links = 0;  // of the sender; 0: not told
};
struct Pong {
  std::uint64_t nonce = 0;
  std::uint64_t clock_ms = 0;  // of its box, since 1970; 0: not told
};
// These blocks of what you publish to me need a keyframe.
struct Resync {
  std::vector<std::uint32_t> blocks;
};
inline const char* const bye_rotated = "rotated";  // the link goes, the node stays
struct Bye {
  std::string why;  // "left", "restarting", "rotated"
};
// The sender has more links than it accepts, and this one may go: to be ended by the other end,
// which knows when no turn is under way.
struct Spare {};
// Two processes speak under one id, and this end of the session is one of them. The process that
// keeps the id is told as well.
struct Cloned {
  NodeId id{};
  std::uint64_t keeps = 0;     // instance
  std::uint64_t gives_up = 0;  // likewise
  Endpoint keeper;
  Endpoint other;
};
// What the sender found at the address that the receiver advertises. Told once for each change.
struct Reached {
  Endpoint address;
  bool answers = false;
  std::string reason;  // why not
};
struct UnknownControl {
  std::string kind;
};

using Control =
    std::variant<Hello, Refuse, Members, JobRequest, JobOffer, FileRequest, FileAbsent, Ready, Ping,
                 Pong, Resync, Bye, Digest, Cloned, Reached, Succession, Spare, UnknownControl>;

[[nodiscard]] Bytes encode_control(const Control&);
[[nodiscard]] Result<Control> decode_control(std::span<const std::byte>);

}  // namespace gossipd
