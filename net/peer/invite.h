// net/peer/invite.h - a cluster in one word, for whoever is to join it.
//
//     gossip1<base32 of: cluster, key, addresses of members, checksum>
//
// One line to paste instead of a key file to copy and an address to type. It holds the cluster's
// key, so whoever has it is a member: it is written to no log, and no HTTP answer has it. The key
// has neither an end nor a count of uses, and so an invite has none: changing the cluster's key
// (keyring.h) makes the invites before worthless.
//
// Bytes, numbers big-endian: cluster 8, key id 8, secret 32, number of addresses 1, for each port
// 2, length 1, host; then the low 32 bits of XXH3-64 of all that. Letters a to z and 2 to 7 as in
// RFC 4648, without padding; capitals are read as well.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "net/peer/cluster_key.h"

namespace gossipd {

inline constexpr std::size_t invite_seeds_max = 8;
inline constexpr std::size_t invite_bytes_max = 4096;  // of the word

struct Invite {
  ClusterId cluster{};
  ClusterKey key;
  std::vector<Endpoint> seeds;  // 1 to invite_seeds_max, whoever is most likely to answer first
  bool operator==(const Invite&) const = default;
};

// Whether a word is meant as an invite, even a damaged or cut one, whose letters must not be looked
// up as the name of a host. A host that begins like one is named with a dot, a dash or its port.
[[nodiscard]] bool looks_like_invite(std::string_view word);

// The part of a text that must be an invite, of this or another release, with quotes or a port
// around it: no label of a host is as long. Empty: there is none.
[[nodiscard]] std::string_view invite_within(std::string_view text);
// The word of several that begins an invite, which a blank or a line break has cut: an address
// is one word. A host's name goes on with a dot, a dash or its port. Empty: there is none.
[[nodiscard]] std::string_view broken_invite_within(std::string_view text);
// `text` for people and logs, without the secret of an invite in it.
[[nodiscard]] std::string without_secrets(std::string text);

// Every invite has one spelling, but for capitals. Error "invite-format", which never shows it.
[[nodiscard]] std::string format_invite(const Invite&);
[[nodiscard]] Result<Invite> parse_invite(std::string_view word);

// The word for any bytes, their checksum included: what parse_invite() undoes before it believes
// one of them. For tests.
[[nodiscard]] std::string seal_invite(const std::string& bytes);

// The invite in a text that somebody pasted: alone, or with the command around it. Error
// "invite-format".
[[nodiscard]] Result<Invite> find_invite(const std::string& text);

}  // namespace gossipd
