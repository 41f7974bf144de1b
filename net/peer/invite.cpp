#include "net/peer/invite.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <optional>
#include <sstream>

#include "core/base/result.h"

namespace gossipd {
namespace {

constexpr std::string_view prefix = "gossip1";
constexpr std::string_view alphabet = "abcdefghijklmnopqrstuvwxyz234567";
constexpr std::size_t checksum_bytes = 4;
constexpr std::size_t label_bytes_max = 63;  // of a host's name
constexpr std::size_t whole_bytes_min = 60;  // no invite is as short: two numbers and a secret

Error bad_invite(const std::string& what) {
  return Error{"invite-format", "this is no whole invite: " + what +
                                    "; copy the line again, or print a new one with `gossipctl "
                                    "invite` on a member"};
}

Error cut_invite() {
  return bad_invite(
      "most of its about hundred letters are missing (a host that is called like this is named "
      "with its port, HOST:7610)");
}

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

std::string to_base32(const std::string& bytes) {
  std::string word;
  std::uint32_t bits = 0;
  int held = 0;
  for (const char c : bytes) {
    bits = (bits << 8) | static_cast<unsigned char>(c);
    for (held += 8; held >= 5; held -= 5) word += alphabet[(bits >> (held - 5)) & 31];
  }
  if (held > 0) word += alphabet[(bits << (5 - held)) & 31];
  return word;
}

std::optional<std::string> from_base32(std::string_view word) {
  std::string bytes;
  std::uint32_t bits = 0;
  int held = 0;
  for (const char c : word) {
    const std::size_t digit = alphabet.find(lower(c));
    if (digit == std::string_view::npos) return std::nullopt;
    bits = (bits << 5) | static_cast<std::uint32_t>(digit);
    held += 5;
    if (held < 8) continue;
    held -= 8;
    bytes += static_cast<char>((bits >> held) & 255);
  }
  // What is left over is less than a letter, and zero.
  if (held >= 5 || (bits & ((1u << held) - 1)) != 0) return std::nullopt;
  return bytes;
}

void put(std::string& bytes, std::uint64_t number, int count) {
  for (int i = count - 1; i >= 0; --i) bytes += static_cast<char>((number >> (8 * i)) & 255);
}

std::string checksum_of(std::string_view bytes) {
  std::string sum;
  put(sum, XXH3_64bits(bytes.data(), bytes.size()), checksum_bytes);
  return sum;
}

// Takes numbers and text from the front; after the end it has none, and says so.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : left_(bytes) {}
  std::string_view take(std::size_t count) {
    if (count > left_.size()) {
      short_ = true;
      left_ = {};
      return {};
    }
    const std::string_view taken = left_.substr(0, count);
    left_.remove_prefix(count);
    return taken;
  }
  std::uint64_t number(std::size_t count) {
    std::uint64_t value = 0;
    for (const char c : take(count)) value = (value << 8) | static_cast<unsigned char>(c);
    return value;
  }
  [[nodiscard]] bool ended_well() const { return !short_ && left_.empty(); }

 private:
  std::string_view left_;
  bool short_ = false;
};

std::optional<Endpoint> read_seed(Reader& reader) {
  const auto port = static_cast<std::uint16_t>(reader.number(2));
  const Endpoint seed{std::string(reader.take(reader.number(1))), port};
  Endpoint again;
  if (!parse_endpoint(to_string(seed), 0, again) || again != seed || port == 0) return std::nullopt;
  return seed;
}

// Or a digit.
bool is_letter(char c) { return (c >= '0' && c <= '9') || (lower(c) >= 'a' && lower(c) <= 'z'); }

// Those that it begins with.
std::string_view letters_of(std::string_view text) {
  return text.substr(
      0, static_cast<std::size_t>(std::ranges::find_if_not(text, is_letter) - text.begin()));
}

// Of any release.
bool begins_like_invite(std::string_view word) {
  if (word.size() < prefix.size()) return false;
  for (std::size_t i = 0; i + 1 < prefix.size(); ++i)
    if (lower(word[i]) != prefix[i]) return false;
  return word[prefix.size() - 1] >= '0' && word[prefix.size() - 1] <= '9';
}

}  // namespace

bool looks_like_invite(std::string_view word) {
  if (word.size() < prefix.size() || word.find_first_of(".:[]/=-") != word.npos) return false;
  for (std::size_t i = 0; i < prefix.size(); ++i)
    if (lower(word[i]) != prefix[i]) return false;
  return true;
}

std::string_view invite_within(std::string_view text) {
  for (std::size_t at = 0; at + label_bytes_max < text.size(); ++at) {
    if (!begins_like_invite(text.substr(at))) continue;
    const std::string_view run = letters_of(text.substr(at));
    if (run.size() > label_bytes_max) return run;
  }
  return {};
}

std::string_view broken_invite_within(std::string_view text) {
  if (text.find_first_of(" \t\r\n") == text.npos) return {};
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (!begins_like_invite(text.substr(at)) || (at > 0 && is_letter(text[at - 1]))) continue;
    const std::string_view word = letters_of(text.substr(at));
    const std::string_view rest = text.substr(at + word.size());
    if (rest.empty() || std::string_view(".:-").find(rest[0]) == rest.npos) return word;
  }
  return {};
}

std::string without_secrets(std::string text) {
  for (std::string_view found = invite_within(text); !found.empty(); found = invite_within(text))
    text.replace(static_cast<std::size_t>(found.data() - text.data()) + prefix.size(),
                 found.size() - prefix.size(), "...");
  return text;
}

std::string seal_invite(const std::string& bytes) {
  return std::string(prefix) + to_base32(bytes + checksum_of(bytes));
}

std::string format_invite(const Invite& invite) {
  GOSSIPD_ASSERT(!invite.seeds.empty() && invite.seeds.size() <= invite_seeds_max);
  std::string bytes;
  put(bytes, raw(invite.cluster), 8);
  put(bytes, invite.key.id, 8);
  for (const std::byte b : invite.key.secret) bytes += static_cast<char>(b);
  put(bytes, invite.seeds.size(), 1);
  for (const Endpoint& seed : invite.seeds) {
    GOSSIPD_ASSERT(seed.host.size() < 256);
    put(bytes, seed.port, 2);
    put(bytes, seed.host.size(), 1);
    bytes += seed.host;
  }
  return seal_invite(bytes);
}

Result<Invite> parse_invite(std::string_view word) {
  if (word.size() > invite_bytes_max) return bad_invite("it is too long");
  if (!looks_like_invite(word))
    return bad_invite("it is not '" + std::string(prefix) + "' and about a hundred letters");
  if (word.size() < whole_bytes_min) return cut_invite();
  const auto bytes = from_base32(word.substr(prefix.size()));
  if (!bytes || bytes->size() < checksum_bytes)
    return bad_invite("some letters are missing, or too many");
  const std::string_view body(bytes->data(), bytes->size() - checksum_bytes);
  if (bytes->substr(body.size()) != checksum_of(body))
    return bad_invite("its checksum does not fit, so a letter was changed or lost");
  Reader reader(body);
  Invite invite;
  invite.cluster = ClusterId{reader.number(8)};
  invite.key.id = reader.number(8);
  for (std::byte& b : invite.key.secret) b = static_cast<std::byte>(reader.number(1));
  const std::uint64_t count = reader.number(1);
  if (count == 0 || count > invite_seeds_max || invite.cluster == ClusterId{})
    return bad_invite("it is of another release of gossipd");
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto seed = read_seed(reader);
    if (!seed) return bad_invite("an address in it is none");
    invite.seeds.push_back(*seed);
  }
  if (!reader.ended_well()) return bad_invite("it is of another release of gossipd");
  return invite;
}

Result<Invite> find_invite(const std::string& text) {
  std::istringstream words(text);
  Error refused = bad_invite("no word in it begins with '" + std::string(prefix) + "'");
  std::size_t longest = 0;  // a box, and so the prompt before a pasted command, may be so called
  for (std::string word; words >> word;) {
    // Quotes, or the mark with which some editors begin a file.
    if (const std::string_view inner = invite_within(word); !inner.empty())
      word = std::string(inner);
    if (word.size() <= longest || !looks_like_invite(word)) continue;
    longest = word.size();
    const Result<Invite> invite = parse_invite(word);
    if (invite) return invite;
    refused = invite.error();
  }
  return refused;
}

}  // namespace gossipd
