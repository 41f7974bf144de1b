#include "tools/gossipctl/discover.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <sstream>

#include "core/base/types.h"
#include "net/child_process.h"
#include "tools/gossipctl/answers.h"

namespace gossipd {

namespace {

constexpr std::size_t answer_bytes_max = 1024 * 1024;
constexpr std::size_t announced_max = 1000;
constexpr const char* by_hand =
    "name a member yourself: gossipd --join HOST --key-file FILE, or --join with what `gossipctl "
    "invite` prints there";

// A field as avahi-browse writes it: other bytes than letters and digits are \ and three decimals.
std::string unescaped(const std::string& field) {
  std::string out;
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  for (std::size_t i = 0; i < field.size(); ++i) {
    if (field[i] == '\\' && i + 3 < field.size() && is_digit(field[i + 1]) &&
        is_digit(field[i + 2]) && is_digit(field[i + 3])) {
      out += static_cast<char>(std::stoi(field.substr(i + 1, 3)) & 255);
      i += 3;
    } else if (field[i] == '\\' && i + 1 < field.size()) {
      out += field[++i];
    } else {
      out += field[i];
    }
  }
  return out;
}

std::vector<std::string> fields_of(const std::string& line) {
  std::vector<std::string> fields;
  std::istringstream words(line);
  for (std::string field; std::getline(words, field, ';');) fields.push_back(unescaped(field));
  return fields;
}

}  // namespace

// =;eth0;IPv4;gossipd on box1;_gossipd._tcp;local;box1.local;192.168.1.5;7610;"…"
std::vector<Announced> read_announcements(const std::string& text) {
  std::vector<Announced> found;
  std::istringstream lines(text);
  for (std::string line; found.size() < announced_max && std::getline(lines, line);) {
    const std::vector<std::string> fields = fields_of(line);
    if (fields.size() < 9 || fields[0] != "=") continue;
    const std::string& host = fields[7];
    if (host.starts_with("fe80:")) continue;  // means nothing without the interface
    const std::string whole =
        (host.find(':') == host.npos ? host : "[" + host + "]") + ":" + fields[8];
    Endpoint endpoint;
    if (!parse_endpoint(whole, peer_port_default, endpoint) || endpoint.port == 0) continue;
    const Announced one{fields[3], fields[6], to_string(endpoint)};
    if (std::ranges::find(found, one) == found.end()) found.push_back(one);
  }
  return found;
}

ExitCode discover(Console& console, double timeout_s) {
  const ChildEnd answer = ChildProcess().run(
      {.program = "avahi-browse",
       .arguments = {"-rpt", "_gossipd._tcp"},
       .keep = Command::Keep::output,
       .kept_max = answer_bytes_max,
       .limit = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(timeout_s))});
  if (answer.refused == ENOENT)
    return fail(console,
                {ExitCode::failed,
                 "avahi-browse is not installed here, and it is what "
                 "looks for nodes",
                 "", "apt-get install avahi-utils avahi-daemon; or " + std::string(by_hand)});
  if (answer.refused != 0)
    return fail(console,
                {ExitCode::failed,
                 std::string("avahi-browse cannot be started: ") + std::strerror(answer.refused),
                 "", by_hand});
  const std::vector<Announced> found = read_announcements(answer.kept);
  if (found.empty() && !answer.succeeded())
    return fail(console, {ExitCode::failed, "avahi-browse does not answer", "",
                          "is avahi-daemon running (systemctl status avahi-daemon)? Or " +
                              std::string(by_hand)});
  if (console.output == Output::json) {
    Json json = {{"nodes", Json::array()}};
    for (const Announced& one : found)
      json["nodes"].push_back({{"name", one.name}, {"host", one.host}, {"address", one.address}});
    console.out << json.dump(-1, ' ', false, Json::error_handler_t::replace) << '\n';
    return ExitCode::ok;
  }
  if (found.empty()) {
    console.err << "no node announces itself in this network; deploy/README.md says how one does. "
                   "Or "
                << by_hand << '\n';
    return ExitCode::ok;
  }
  std::vector<Cells> rows;
  for (const Announced& one : found) rows.push_back({one.address, one.name, one.host});
  print_rows(console.out, {{"ADDRESS", "address"}, {"NAME", "name"}, {"HOST", "host", 1}}, rows,
             console.layout());
  if (console.output == Output::table)
    console.err << "join with: gossipd --join ADDRESS --key-file FILE --data DIR\n";
  return ExitCode::ok;
}

}  // namespace gossipd
