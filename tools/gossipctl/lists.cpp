#include "tools/gossipctl/lists.h"

#include <algorithm>

#include "core/base/printable.h"

namespace gossipd {

namespace {

constexpr std::size_t candidates_shown = 8;

// What a program reads: the number as the daemon wrote it.
std::string plain(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end() || found->is_null()) return "-";
  if (found->is_string()) return found->get<std::string>();
  return found->is_primitive() ? found->dump() : "-";
}

template <typename Format>
Cell cell(const Json& json, const char* key, Format format) {
  return {or_dash(number(json, key), format), plain(json, key)};
}

Cell digits(const Json& json, const char* key, int places) {
  return cell(json, key, [places](double v) { return fixed(v, places); });
}

Cell counted(const Json& json, const char* key) {
  return {grouped(static_cast<std::uint64_t>(std::max(0.0, number(json, key).value_or(0)))),
          plain(json, key)};
}

Cell word(const Json& json, const char* key) {
  const std::string value = text(json, key);
  return value.empty() ? Cell("-") : Cell(value);
}

std::string state_of(const Json& member) {
  const std::string phase = text(member, "phase"), state = text(member, "state");
  // An alive member that is not training shows its phase.
  const std::string what =
      state == "alive" && phase != "training" && !phase.empty() ? state + "/" + phase : state;
  return flag(member, "cloned") ? what + "/cloned" : what;
}

const std::vector<Column>& member_columns() {
  static const std::vector<Column> columns = {
      {"NAME", "name"},
      {"ADDRESS", "address"},
      {"STATE", "state"},
      {"REACHABLE", "reachability", 3},
      {"RTT", "rtt_ms", 7},
      {"STEP", "step", 1},
      {"SAMPLES/S", "samples_per_second", 2},
      {"BATCH", "batch", 8},
      {"LOSS", "loss", 4},
      {"ACCURACY", "accuracy", 1},
      {"AGE", "age_s", 6},
      {"DEVICE", "device", 5},
      {"VERSION", "version", 9},
      {"ID", "id", 10},
  };
  return columns;
}

Cells member_row(const Json& m) {
  const bool self = flag(m, "self");
  const bool lossless = number(m, "loss").value_or(0) == 0;
  const std::string name = text(m, "name");
  return {Cell(name + (self ? "*" : ""), name.empty() ? "-" : name),
          word(m, "address"),
          state_of(m),
          present_reachability(m),
          self ? Cell("-") : cell(m, "rtt_ms", human_milliseconds),
          counted(m, "step"),
          counted(m, "samples_per_second"),
          counted(m, "batch"),
          lossless ? Cell("-") : digits(m, "loss", 3),
          cell(m, "accuracy", [](double v) { return fixed(v * 100, 1) + " %"; }),
          self ? Cell("-") : cell(m, "age_s", human_seconds),
          word(m, "device"),
          word(m, "version"),
          word(m, "id")};
}

const std::vector<Column>& link_columns() {
  static const std::vector<Column> columns = {
      {"PEER", "name"},
      {"STATE", "state"},
      {"DIR", "direction", 9},
      {"PROTOCOL", "protocol", 10},
      {"RTT", "rtt_ms", 1},
      {"AGE/STEPS", "age_steps", 2},
      {"SILENCE", "silence_s", 6},
      {"SENT", "bytes_sent", 1},
      {"RECEIVED", "bytes_received", 1},
      {"DELTAS", "deltas_sent", 5},
      {"SUPPRESSED", "turns_suppressed", 8},
      {"REFUSED", "deltas_refused", 2},
      {"CHANGE/THRESHOLD", "", 7},
      {"", "change"},
      {"", "threshold"},
      {"GAIN", "gain", 3},
      {"CORRECTION", "correction", 6},
      {"DISTANCE", "consensus_distance", 4},
  };
  return columns;
}

Cells link_row(const Json& l) {
  const std::string name = text(l, "name"), state = text(l, "state");
  const bool lost = flag(l, "large_packets_lost");
  return {name.empty() ? text(l, "peer") : name,
          Cell(state + (lost ? "/large packets lost" : "")),
          flag(l, "outbound") ? "out" : "in",
          cell(l, "protocol", [](double v) { return fixed(v, 0); }),
          cell(l, "rtt_ms", human_milliseconds),
          digits(l, "age_steps", 1),
          cell(l, "silence_s", human_seconds),
          cell(l, "bytes_sent", human_bytes),
          cell(l, "bytes_received", human_bytes),
          counted(l, "deltas_sent"),
          counted(l, "turns_suppressed"),
          counted(l, "deltas_refused"),
          digits(l, "change", 4).text + "/" + digits(l, "threshold", 4).text,
          digits(l, "change", 4),
          digits(l, "threshold", 4),
          digits(l, "gain", 4),
          digits(l, "correction", 4),
          digits(l, "consensus_distance", 4)};
}

struct Named {
  std::string id, name;
};

std::string described(const Named& one) {
  return one.id + (one.name.empty() ? std::string() : " (" + one.name + ")");
}

// What is there, in words, of a few.
std::string listed(const std::vector<Named>& candidates) {
  std::string words;
  for (std::size_t i = 0; i < std::min(candidates.size(), candidates_shown); ++i)
    words += (i == 0 ? "" : ", ") + described(candidates[i]);
  if (candidates.size() > candidates_shown)
    words += " and " + std::to_string(candidates.size() - candidates_shown) + " more";
  return words;
}

Chosen choose(const std::vector<Named>& all, const std::string& word, const std::string& kind,
              const std::string& list_command) {
  std::vector<Named> named, begun;
  for (const Named& one : all) {
    if (one.id == word) return {one.id, std::nullopt};
    if (!one.name.empty() && one.name == word) named.push_back(one);
    if (one.id.starts_with(word) || one.name.starts_with(word)) begun.push_back(one);
  }
  const std::vector<Named>& found = named.empty() ? begun : named;
  if (found.size() == 1 && !word.empty()) return {found.front().id, std::nullopt};
  if (found.empty())
    return {"", Failure{ExitCode::not_found, "there is no " + kind + " '" + word + "'", "",
                        list_command + " lists them"}};
  return {"", Failure{ExitCode::usage,
                      "'" + word + "' may be any of " + std::to_string(found.size()) + " " + kind +
                          "s: " + listed(found),
                      "", "give more of the name or of the id"}};
}

void flatten(std::ostream& out, const Json& json, const std::string& name) {
  if (json.is_primitive()) {
    const std::string value = json.is_string() ? json.get<std::string>()
                              : json.is_null() ? std::string()
                                               : json.dump();
    out << tsv_cell(name) << '\t' << tsv_cell(value) << '\n';
    return;
  }
  const std::string before = name.empty() ? "" : name + ".";
  if (json.is_object())
    for (const auto& [key, value] : json.items()) flatten(out, value, before + key);
  else
    for (std::size_t i = 0; i < json.size(); ++i) flatten(out, json[i], before + std::to_string(i));
}

}  // namespace

std::vector<Json> in_useful_order(const Json& members) {
  std::vector<Json> sorted;
  for (const Json& member : members)
    if (member.is_object()) sorted.push_back(member);
  const auto rank = [](const Json& m) {
    const std::string state = text(m, "state");
    const int place = flag(m, "self") ? 0 : state == "alive" ? 1 : state == "suspect" ? 2 : 3;
    return std::tuple(place, text(m, "name"), text(m, "id"));
  };
  std::sort(sorted.begin(), sorted.end(),
            [&rank](const Json& a, const Json& b) { return rank(a) < rank(b); });
  return sorted;
}

std::string present_reachability(const Json& member) {
  const std::string state = text(member, "state"), reach = text(member, "reachability");
  return reach.empty() || state == "failed" || state == "left" ? "-" : reach;
}

ExitCode show_members(const DaemonClient& client, Console& console) {
  return show(client, console, "/v1/members", [&console](const Json& json) {
    std::vector<Cells> rows;
    for (const Json& m : in_useful_order(list(json, "members"))) rows.push_back(member_row(m));
    print_rows(console.out, member_columns(), rows, console.layout());
  });
}

ExitCode show_links(const DaemonClient& client, Console& console) {
  return show(client, console, "/v1/links", [&console](const Json& json) {
    std::vector<Cells> rows;
    for (const Json& l : list(json, "links"))
      if (l.is_object()) rows.push_back(link_row(l));
    print_rows(console.out, link_columns(), rows, console.layout());
  });
}

ExitCode list_keys(const DaemonClient& client, Console& console) {
  return show(client, console, "/v1/keys", [&console](const Json& json) {
    const std::vector<Column> columns = {
        {"KEY", "id"}, {"STATE", "state"}, {"SESSIONS", "sessions"}};
    std::vector<Cells> rows;
    for (const Json& key : list(json, "keys"))
      rows.push_back({text(key, "id"), flag(key, "in_use") ? "in use" : "accepted",
                      std::to_string(count(key, "sessions"))});
    for (const Json& id : list(json, "retired"))
      if (id.is_string()) rows.push_back({id.get<std::string>(), "retired", "-"});
    print_rows(console.out, columns, rows, console.layout());
  });
}

Chosen choose_member(const DaemonClient& client, const std::string& word) {
  const Asked asked = ask(client, "/v1/members");
  if (asked.failure) return {"", asked.failure};
  std::vector<Named> all;
  for (const Json& member : in_useful_order(list(asked.json, "members")))
    all.push_back({text(member, "id"), text(member, "name")});
  return choose(all, word, "member", "gossipctl members");
}

Chosen choose_key(const DaemonClient& client, const std::string& word) {
  const Asked asked = ask(client, "/v1/keys");
  if (asked.failure) return {"", asked.failure};
  std::vector<Named> all;
  for (const Json& key : list(asked.json, "keys"))
    if (key.is_object()) all.push_back({text(key, "id"), ""});
  for (const Json& id : list(asked.json, "retired"))
    if (id.is_string()) all.push_back({id.get<std::string>(), ""});
  return choose(all, word, "key", "gossipctl key list");
}

void print_flat(std::ostream& out, const Json& json) { flatten(out, json, ""); }

}  // namespace gossipd
