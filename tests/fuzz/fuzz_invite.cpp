// Any text as an invite, and any bytes behind a checksum that fits: an error that does not show the
// text, or an invite that is written back as the same word.
#include <algorithm>
#include <cstdint>

#include "net/peer/invite.h"

using namespace gossipd;

namespace {

void parse(const std::string& word) {
  const auto invite = parse_invite(word);
  if (!invite) {
    GOSSIPD_ASSERT(invite.error().code == "invite-format" && !invite.error().text.empty());
    GOSSIPD_ASSERT(!looks_like_invite(word) || invite.error().text.find(word) == std::string::npos);
    return;
  }
  GOSSIPD_ASSERT(!invite->seeds.empty() && invite->seeds.size() <= invite_seeds_max);
  std::string lower = word;
  std::ranges::transform(lower, lower.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  GOSSIPD_ASSERT(format_invite(*invite) == lower);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  parse(text);
  parse(seal_invite(text));
  (void)find_invite(text);
  return 0;
}
