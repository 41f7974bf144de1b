#include "daemon/config/invite_source.h"

#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace gossipd {

namespace {

constexpr SecretKind invite_file{"invite file", "is a member of the cluster",
                                 "`gossipctl invite --file FILE` on a member writes one"};

// Nobody looking over a shoulder or scrolling back sees what is typed meanwhile.
class NoEcho {
 public:
  NoEcho() {
    known_ = ::tcgetattr(STDIN_FILENO, &before_) == 0;
    termios quiet = before_;
    quiet.c_lflag &= ~static_cast<tcflag_t>(ECHO | ICANON);  // a line of ICANON ends at 4095 bytes
    quiet.c_lflag |= ISIG;
    if (known_) ::tcsetattr(STDIN_FILENO, TCSAFLUSH, &quiet);
  }
  ~NoEcho() {
    if (known_) ::tcsetattr(STDIN_FILENO, TCSAFLUSH, &before_);
  }
  NoEcho(const NoEcho&) = delete;
  NoEcho& operator=(const NoEcho&) = delete;

 private:
  termios before_{};
  bool known_ = false;
};

// Up to the end of the first line that has something in it, without reading beyond it: what follows
// may be another program's.
std::string read_line() {
  std::string line;
  while (line.size() <= invite_bytes_max) {
    char c = 0;
    const ssize_t got = ::read(STDIN_FILENO, &c, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    if (c == '\n' || c == '\r') {
      if (line.find_first_not_of(" \t") != std::string::npos) break;
      line.clear();
      continue;
    }
    line += c;
  }
  return line;
}

Result<Invite> ask() {
  if (::isatty(STDIN_FILENO) == 0) {
    const SecretText line(read_line());
    if (!line.text().empty()) return find_invite(line.text());
    return Error{"key-missing",
                 "standard input holds no invite; `gossipctl invite` on a member prints one"};
  }
  std::fputs("paste the invite (gossip1…; it is not shown), then Enter: ", stderr);
  const Result<Invite> invite = [] {
    const NoEcho quiet;
    return find_invite(SecretText(read_line()).text());
  }();
  std::fputc('\n', stderr);
  return invite;
}

// The invite, whole or cut, within quotes, a command, a port; empty: there is none.
std::string_view part_meant(std::string_view word) {
  const std::string_view whole = invite_within(word);
  return whole.empty() ? broken_invite_within(word) : whole;
}

std::optional<Result<Invite>> asked;  // once for the process: the line is gone then

}  // namespace

bool invite_was_asked_for() { return asked.has_value(); }

bool names_invite(std::string_view word) {
  return word == "-" || word.starts_with('@') || looks_like_invite(word) ||
         !part_meant(word).empty();
}

Result<Invite> take_invite(std::string_view word) {
  if (word == "-") {
    if (!asked) asked = ask();
    return *asked;
  }
  if (!word.starts_with('@')) {
    const std::string_view within = part_meant(word);
    return parse_invite(within.empty() ? word : within);
  }
  const Result<SecretText> text =
      read_secret_file(std::string(word.substr(1)), SharedKeyFile::refuse, invite_file);
  if (!text) return text.error();
  return find_invite(text->text());
}

void hide_invites(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    std::string_view word = argv[i];
    const std::string_view within = part_meant(word);
    std::size_t at = word.find("gossip1");
    if (!within.empty())
      at = static_cast<std::size_t>(within.data() - word.data());
    else if (at == std::string_view::npos || !looks_like_invite(word.substr(at)))
      continue;
    std::memset(argv[i] + at + 7, '.', word.size() - at - 7);
  }
}

std::vector<std::string> without_invites(const std::vector<std::string>& arguments,
                                         const std::vector<Endpoint>& seeds) {
  std::vector<std::string> kept;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].starts_with("--join=")) continue;
    if (arguments[i] == "--join")
      ++i;  // and its value
    else
      kept.push_back(arguments[i]);
  }
  for (const Endpoint& seed : seeds) kept.insert(kept.end(), {"--join", to_string(seed)});
  return kept;
}

}  // namespace gossipd
