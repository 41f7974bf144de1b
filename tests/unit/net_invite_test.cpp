#include "net/peer/invite.h"

#include "net_test_support.h"

using namespace gossipd;
using namespace gossipd::test;

namespace {

Invite some_invite() {
  Invite invite;
  invite.cluster = ClusterId{0x0123456789abcdef};
  invite.key = test_key(7, 3);
  invite.seeds = {{"box1.example", 7610}, {"10.0.0.12", 17610}, {"2001:db8::1", 7610}};
  return invite;
}

std::string refusal(const std::string& word) {
  const auto invite = parse_invite(word);
  REQUIRE_FALSE(invite);
  CHECK(invite.error().code == "invite-format");
  CHECK_MESSAGE(invite.error().text.find("gossipctl invite") != std::string::npos,
                invite.error().text);
  return invite.error().text;
}

}  // namespace

TEST_CASE("an invite comes back whole, in small letters or capitals, alone or in its command") {
  const Invite invite = some_invite();
  const std::string word = format_invite(invite);
  CHECK(word.starts_with("gossip1"));
  CHECK(word.find_first_not_of("abcdefghijklmnopqrstuvwxyz1234567") == std::string::npos);
  std::string capitals = word;
  for (char& c : capitals) c = static_cast<char>(std::toupper(c));
  for (const std::string& text :
       {word, capitals, "  " + word + "\r\n", "box2$ gossipd --join " + word + " --data DIR",
        "gossip12$ gossipd --join " + word, "\xef\xbb\xbf" + word, "\"" + word + "\"\n"}) {
    const auto read = find_invite(text);
    REQUIRE_MESSAGE(read, (read ? std::string() : read.error().text));
    CHECK(*read == invite);
  }
}

TEST_CASE("every letter of an invite counts, and no error shows it") {
  const std::string word = format_invite(some_invite());
  for (std::size_t i = 7; i < word.size(); ++i) {
    std::string changed = word;
    changed[i] = changed[i] == 'a' ? 'b' : 'a';
    CHECK(refusal(changed).find(word.substr(10, 20)) == std::string::npos);
    CHECK_FALSE(parse_invite(word.substr(0, i) + word.substr(i + 1)));
  }
  for (const std::string& other : {word + "a", word.substr(0, 60), word + word})
    CHECK(refusal(other).find(other) == std::string::npos);
  CHECK(refusal(word.substr(0, 30) + "0" + word.substr(31)).find("letters") != std::string::npos);
  CHECK_FALSE(find_invite("gossipd --join box1"));
  CHECK_FALSE(find_invite(""));
}

TEST_CASE("what is behind a checksum that fits is still not believed") {
  const std::string head = std::string(47, '\1') + "\2";
  CHECK_FALSE(parse_invite(seal_invite(head)));                       // no addresses at all
  CHECK_FALSE(parse_invite(seal_invite(head + '\0')));                // none
  CHECK_FALSE(parse_invite(seal_invite(head + "\1\x1d\xba\4box")));   // one that is cut off
  CHECK_FALSE(parse_invite(seal_invite(head + "\1\x1d\xba\3a b")));   // none that exists
  CHECK_FALSE(parse_invite(seal_invite(head + "\1\x1d\xba\3boxx")));  // more behind it
  CHECK(parse_invite(seal_invite(head + "\1\x1d\xba\3box")));
}

TEST_CASE("an invite is found within a word, and no text for people keeps its secret") {
  const std::string word = format_invite(some_invite());
  for (const std::string& text : {word, " " + word, "gossipd --join " + word, word + ":7610",
                                  "\"" + word + "\"", word.substr(0, 80) + "1" + word.substr(81)}) {
    CHECK(invite_within(text).size() == word.size());
    const std::string shown = without_secrets("'" + text + "' is no address");
    CHECK(shown.find("gossip1...") != std::string::npos);
    CHECK(shown.find(word.substr(20, 20)) == std::string::npos);
  }
  CHECK(invite_within("gossip2" + word.substr(7)).size() == word.size());
  for (const char* host : {"gossip1", "gossip1-long-name.example.com:7610", "box1,box2"}) {
    CHECK(invite_within(host).empty());
    CHECK(without_secrets(host) == host);
  }
}

TEST_CASE("an invite that a blank or a line break has cut is found among the words") {
  const std::string word = format_invite(some_invite());
  for (const std::size_t kept : {20, 57, 63})
    for (const std::string before : {"", "gossipd --join ", "gossipd --join=", "\u201c", "'"}) {
      const std::string broken = before + word.substr(0, kept) + "\n" + word.substr(kept);
      CHECK(broken_invite_within(broken) == word.substr(0, kept));
    }
  for (const char* text : {"gossip1", "box1 box2", "box1 gossip1-2.example.com", " gossip1:7610"})
    CHECK(broken_invite_within(text).empty());
}

TEST_CASE("a word that is meant as an invite is never taken for the name of a host") {
  const std::string word = format_invite(some_invite());
  CHECK(looks_like_invite(word));
  for (const std::size_t kept : {7, 8, 20, 23, 24, 40}) {
    CHECK(looks_like_invite(word.substr(0, kept)));
    CHECK(refusal(word.substr(0, kept)).find("HOST:7610") != std::string::npos);
  }
  CHECK(looks_like_invite(word.substr(0, 30) + "0" + word.substr(31)));
  for (const char* host :
       {"gossip", "gossip1:7610", "gossip1-2", "gossip1-long-name.example.com", "box1"})
    CHECK_FALSE(looks_like_invite(host));
}
