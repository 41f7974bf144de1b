// What a daemon knows of itself, its members and the lines to them.
#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "tools/gossipctl/doctor.h"
#include "tools/gossipctl/lists.h"
#include "tools/gossipctl/table.h"

namespace gossipd {

namespace {

constexpr double rtt_long_ms = 500;
constexpr double silence_long_s = 5;
constexpr double clock_apart_s = 1;
constexpr std::size_t ghosts_shown = 16;  // in one command to paste

Check check_phase(const Json& status) {
  const std::string phase = text(status, "phase");
  const Json trainer = status.value("trainer", Json::object());
  const std::string failure = text(trainer, "failure"), trouble = text(status, "trouble");
  if (phase == "broken" || !failure.empty())
    return {"training", Verdict::fail, "broken" + (failure.empty() ? "" : ": " + failure),
            "see the log of gossipd; a restart goes on from the last checkpoint"};
  if (phase == "waiting-for-data")
    return {"data", Verdict::fail, "the node waits for " + text(status, "waiting_for"),
            "start gossipd with --data DIR, where DIR holds the job's files"};
  if (phase == "left")
    return {"training", Verdict::warn, "the node has left the cluster",
            "gossipctl join brings it back"};
  if (!flag(status, "ready"))
    return {"training", Verdict::warn, "not ready: " + text(status, "ready_reason"),
            "gossipctl wait --for ready waits for it"};
  if (!trouble.empty()) return {"training", Verdict::warn, trouble, "gossipctl status says more"};
  return {"training", Verdict::ok, "the node is " + phase, ""};
}

Check check_device(const Json& status) {
  const std::string device = text(status.value("trainer", Json::object()), "device");
  return {"device", Verdict::ok, device.empty() ? "not chosen yet" : "trains on " + device, ""};
}

Check check_own_disk(const Json& status) {
  const Json disk = status.value("disk", Json::object());
  if (flag(disk, "slow"))
    return {"disk of the node", Verdict::fail, "writes take too long",
            "look for errors in dmesg; put the state directory on a local disk"};
  if (count(disk, "failed") > 0)
    return {
        "disk of the node", Verdict::warn, grouped(count(disk, "failed")) + " writes failed",
        "gossipctl status shows the warnings and so the reason: make room on a full disk, bring "
        "a directory that is gone back"};
  const double slowest = number(disk, "slowest_s").value_or(0);
  return {"disk of the node", Verdict::ok, "the slowest write took " + human_seconds(slowest), ""};
}

Check check_reachability(const Json& status) {
  const std::string verdict = text(status, "reachability"), address = text(status, "address");
  if (verdict == "reachable")
    return {"reachable", Verdict::ok, "members find it at " + address, ""};
  const std::string why = text(status, "not_reached");
  if (verdict == "dials-out")
    return {"reachable", Verdict::warn,
            "the node only dials out: nobody finds it at " + address + " (" + why + ")",
            "open its TCP port, or name the address that reaches it with --advertise HOST:PORT"};
  if (verdict == "address-silent")
    return {"reachable", Verdict::fail,
            "the node advertises " + address + ", where nobody finds it (" + why + ")",
            "correct --advertise, or forward that address to the node's port"};
  return {"reachable", Verdict::ok, "nobody has tried " + address + " yet", ""};
}

std::vector<Check> check_warnings(const Json& status) {
  std::vector<Check> checks;
  for (const Json& warning : list(status, "warnings")) {
    const std::string what = text(warning, "text");
    const double age = number(warning, "age_s").value_or(0);
    if (what.find("is not to be found") == std::string::npos)  // has a line of its own
      checks.push_back({"warning", Verdict::warn, what + " (" + human_seconds(age) + " ago)",
                        "gossipctl status -o json shows all"});
  }
  return checks;
}

std::string rate_words(double bytes, double seconds) {
  return seconds > 0 ? human_bytes(bytes / seconds) + "/s" : "-";
}

std::string human_bits(double bits_per_s) {
  static constexpr const char* units[] = {"bit/s", "kbit/s", "Mbit/s", "Gbit/s"};
  std::size_t unit = 0;
  while (bits_per_s >= 999.5 && unit + 1 < std::size(units)) bits_per_s /= 1000, ++unit;
  return fixed(bits_per_s, bits_per_s >= 99.95 ? 0 : 1) + " " + units[unit];
}

// What a line may let pass at once, before its own rate holds back what follows.
constexpr double burst_bytes = 64'000;
// So many round trips later TCP's window, doubled in each, has met the limit of the line.
constexpr double round_trips_to_fill = 10;

// Of what the link has sent anyway: its mean while there was something to send. The last second
// says it if enough was sent in it, else the time since the connection began.
std::optional<double> carried_bytes_per_s(const Json& path, const Json& later) {
  const auto bytes = [](const Json& p) {
    return static_cast<double>(count(p, "bytes_acknowledged"));
  };
  const auto busy_s = [](const Json& p) { return number(p, "busy_s").value_or(0); };
  if (const double fresh = bytes(later) - bytes(path);
      fresh >= burst_bytes && busy_s(later) > busy_s(path))
    return fresh / (busy_s(later) - busy_s(path));
  if (busy_s(path) <= 0) return std::nullopt;
  return bytes(path) / busy_s(path);
}

struct PathNote {
  std::string words;
  std::string advice;  // empty: it carries what is to be sent
};
PathNote note_path(const Json& link, const Json& later, const Json& status) {
  const auto path_of = [](const Json& one) {
    const auto found = one.find("path");
    return found != one.end() ? *found : Json();
  };
  const Json path = path_of(link);
  PathNote note;
  if (const std::uint64_t mtu = count(path, "mtu"); mtu > 0)
    note.words += ", path MTU " + std::to_string(mtu);
  const std::optional<double> rate = carried_bytes_per_s(path, path_of(later));
  const auto bytes = static_cast<double>(count(link, "turn_bytes"));
  if (!rate || bytes <= 0) return note;
  const double takes_s = bytes / *rate;
  const bool fills = takes_s * 1e3 > round_trips_to_fill * number(path, "rtt_min_ms").value_or(0);
  const std::string exchange =
      ", an exchange of " + human_bytes(bytes) + " takes " + human_milliseconds(takes_s * 1e3);
  if (bytes < burst_bytes) {
    note.words += exchange + ", which is too little to tell what the line carries";
    return note;
  }
  note.words += std::string(", carries ") + (fills ? "" : "at least ") + human_bits(*rate * 8);
  note.words += exchange;
  const double step_s = number(status, "step_ms").value_or(0) / 1e3;
  const std::uint64_t period = count(status, "exchange_period_steps");
  if (step_s > 0 && takes_s > step_s * static_cast<double>(period))
    note.advice = "that is " + fixed(takes_s / step_s, 0) + " steps, and one is due every " +
                  std::to_string(period) +
                  ": use a faster line, raise exchange.period_steps, or send less of each change "
                  "(exchange.codec)";
  return note;
}

Check check_link(const Json& link, const ClusterAnswers& answers,
                 const std::map<std::string, Json>& later, bool refusals) {
  const std::string peer = text(link, "peer"), state = text(link, "state");
  const std::string name = "link to " + (text(link, "name").empty() ? peer : text(link, "name"));
  const double rtt = number(link, "rtt_ms").value_or(0);
  if (flag(link, "large_packets_lost"))
    return {name, Verdict::fail, "small packets arrive, large ones do not",
            "lower the MTU of this interface, or set net.ipv4.tcp_mtu_probing=1, on both ends"};
  if (state == "down" || state == "suspect")
    return {name, Verdict::warn, "the link is " + state,
            refusals ? "it may be turned away: see the refusal above"
                     : "look at the other box: is gossipd running, is its port open?"};
  std::string words = "round trip " + human_milliseconds(rtt);
  const auto found = later.find(peer);
  if (found != later.end())
    for (const auto& [field, label] :
         {std::pair("bytes_sent", "sends "), std::pair("bytes_received", "receives ")})
      words += std::string(", ") + label +
               rate_words(static_cast<double>(count(found->second, field)) -
                              static_cast<double>(count(link, field)),
                          answers.seconds);
  const PathNote path =
      note_path(link, found != later.end() ? found->second : link, answers.status);
  words += path.words;
  if (number(link, "silence_s").value_or(0) > silence_long_s)
    return {name, Verdict::warn,
            words + ", silent for " + human_seconds(number(link, "silence_s").value_or(0)),
            "look at the other box: it stands still, or the line is full"};
  if (rtt > rtt_long_ms)
    return {name, Verdict::warn, words, "the line is full or far: ping it while training pauses"};
  if (!path.advice.empty()) return {name, Verdict::warn, words, path.advice};
  return {name, Verdict::ok, words, ""};
}

// Within half of the round trip nobody can tell.
std::optional<Check> check_clock_of(const Json& link) {
  const std::optional<double> ahead = number(link, "clock_ahead_s");
  if (!ahead) return std::nullopt;
  const double unsure = number(link, "rtt_ms").value_or(0) / 2e3;
  const std::string name = "clock of " + text(link, "name");
  const std::string away = human_seconds(std::abs(*ahead));
  if (std::abs(*ahead) <= clock_apart_s + unsure)
    return Check{name, Verdict::ok, away + " from this box's", ""};
  return Check{name, Verdict::warn,
               "it is " + away + (*ahead > 0 ? " ahead of" : " behind") + " this box's",
               "run an NTP client on both (apt-get install systemd-timesyncd): training does not "
               "depend on it, but logs and the validity of certificates do"};
}

// A member for a command line to paste: by its name, which it chose itself, only where no other has
// that, and no shell takes it for more than a word.
std::string word_for(const Json& member, bool only_one) {
  const std::string name = text(member, "name");
  const auto plain = [](unsigned char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  const bool word = !name.empty() && name[0] != '-' && std::ranges::all_of(name, plain);
  return word && only_one ? name : text(member, "id");
}

// `only_one`: no other member has its name.
Check check_member(const Json& member, const std::string& own_version, bool refusals,
                   bool only_one) {
  const std::string name = "member " + text(member, "name"), state = text(member, "state");
  const std::string version = text(member, "version"), reach = text(member, "reachability");
  if (is_shut_out(member))
    return {name, Verdict::warn, "it runs, but no session opens: " + text(member, "no_answer"),
            "run gossipctl doctor on that box; do not forget it"};
  // One that is only turned away has not gone, and forgetting it would part the cluster.
  if ((state == "failed" || state == "suspect") && refusals)
    return {name, Verdict::warn, "it is " + state + ", or is turned away: see the refusal above",
            "mend the refusal first; do not forget a member that may be running"};
  if (state == "failed" || state == "suspect")
    return {name, Verdict::warn, "it is " + state,
            "start it again; gossipctl forget " + word_for(member, only_one) +
                " if it is gone for good"};
  if (reach == "address-silent" || reach == "dials-out")
    return {name, Verdict::warn,
            reach == "dials-out"
                ? "it only dials out: nobody finds it at its address"
                : "it advertises " + text(member, "address") + ", where nobody finds it",
            "run gossipctl doctor on that box"};
  if (!version.empty() && version != own_version)
    return {name, Verdict::warn, "it runs " + version + ", this node " + own_version,
            "upgrade the older one when convenient"};
  return {name, Verdict::ok, state, ""};
}

// Failed members of one name: what a box leaves that lost its state directory again and again.
Check check_ghosts(const std::string& name, const std::vector<std::string>& ids, bool refusals) {
  const std::string what = std::to_string(ids.size()) + " members of this name are failed";
  if (refusals)
    return {"member " + name, Verdict::warn, what + ", or are turned away: see the refusal above",
            "mend the refusal first; do not forget members that may be running"};
  const std::size_t shown = std::min(ids.size(), ghosts_shown);
  std::string advice = "start them again; if all of them are gone for good: for id in";
  for (std::size_t i = 0; i < shown; ++i) advice += " " + ids[i];
  advice += "; do gossipctl forget $id; done";
  if (shown < ids.size())
    advice += "; then gossipctl doctor, which names the next " + std::to_string(ids.size() - shown);
  return {"member " + name, Verdict::warn, what, advice};
}

std::vector<Check> check_members(const ClusterAnswers& answers, bool refusals) {
  const std::vector<Json> members = in_useful_order(list(answers.members, "members"));
  std::map<std::string, int> named;
  std::map<std::string, std::vector<std::string>> failed;  // ids, by name
  const auto is_failed = [](const Json& member) {
    return text(member, "state") == "failed" && !is_shut_out(member);
  };
  for (const Json& member : members) {
    const std::string name = text(member, "name");
    ++named[name];
    if (is_failed(member)) failed[name].push_back(text(member, "id"));
  }
  std::vector<Check> checks;
  for (const Json& member : members) {
    if (flag(member, "self") || text(member, "state") == "left") continue;
    const std::string name = text(member, "name");
    if (!is_failed(member) || failed[name].size() < 2)
      checks.push_back(
          check_member(member, text(answers.status, "version"), refusals, named[name] == 1));
    else if (text(member, "id") == failed[name].front())
      checks.push_back(check_ghosts(name, failed[name], refusals));
  }
  return checks;
}

std::optional<Check> check_isolation(const Json& status) {
  if (!flag(status, "isolated")) return std::nullopt;
  return Check{"isolated", Verdict::warn, "no known member answers: this node is alone",
               "look at this box's own network before the other boxes"};
}

}  // namespace

std::vector<Check> check_cluster(const ClusterAnswers& answers) {
  std::vector<Check> checks = {check_phase(answers.status), check_device(answers.status),
                               check_own_disk(answers.status), check_reachability(answers.status)};
  const std::optional<Check> refusals = check_refusals(answers);
  if (refusals)
    checks.push_back(*refusals);
  else if (const auto isolation = check_isolation(answers.status))
    checks.push_back(*isolation);
  std::map<std::string, Json> later;
  for (const Json& link : list(answers.later, "links")) later[text(link, "peer")] = link;
  // Those of a node that has left are down as they should be.
  const bool left = text(answers.status, "phase") == "left";
  for (const Json& link : left ? Json::array() : list(answers.links, "links")) {
    checks.push_back(check_link(link, answers, later, refusals.has_value()));
    if (const auto clock = check_clock_of(link)) checks.push_back(*clock);
  }
  for (Check& check : check_members(answers, refusals.has_value()))
    checks.push_back(std::move(check));
  for (Check& check : check_warnings(answers.status)) checks.push_back(std::move(check));
  return checks;
}

ExitCode show_reachability(const DaemonClient& client, Console& console) {
  return show(client, console, "/v1/members", [&console](const Json& json) {
    const std::vector<Column> columns = {{"NAME", "name"},
                                         {"ADDRESS", "address"},
                                         {"REACHABLE", "reachability"},
                                         {"FROM HERE", "answers_us"},
                                         {"FINDS US", "finds_us"},
                                         {"WHY NOT", "no_answer", 1}};
    const auto yes_or_no = [](const Json& m, const char* key) -> std::string {
      const auto found = m.find(key);
      if (found == m.end() || !found->is_boolean()) return "-";
      return found->get<bool>() ? "yes" : "no";
    };
    std::vector<Cells> rows;
    for (const Json& m : in_useful_order(list(json, "members"))) {
      const bool self = flag(m, "self");
      const std::string why = text(m, "no_answer"), name = text(m, "name");
      rows.push_back({Cell(name + (self ? "*" : ""), name.empty() ? "-" : name), text(m, "address"),
                      present_reachability(m), self ? "-" : yes_or_no(m, "answers_us"),
                      self ? "-" : yes_or_no(m, "finds_us"), why.empty() ? "-" : why});
    }
    print_rows(console.out, columns, rows, console.layout());
  });
}

}  // namespace gossipd
