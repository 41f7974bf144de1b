#include "tools/gossipctl/doctor.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "core/base/printable.h"
#include "tools/gossipctl/table.h"

namespace gossipd {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds rate_period{1};

const char* to_string(Verdict verdict) {
  switch (verdict) {
    case Verdict::ok: return "ok";
    case Verdict::warn: return "warn";
    case Verdict::fail: return "fail";
  }
  return "?";
}

// Where a daemon of this user has its state, as gossipd chooses it.
std::string usual_state_dir() {
  if (::geteuid() == 0) return state_dir_of_root("/var/lib");
  const char* state = std::getenv("XDG_STATE_HOME");
  if (state != nullptr && *state != '\0') return std::string(state) + "/gossipd";
  const char* home = std::getenv("HOME");
  return std::string(home != nullptr ? home : "") + "/.local/state/gossipd";
}

// Empty: it does not say.
std::string proof_of(const DaemonClient& client) {
  const Asked keys = ask(client, "/v1/keys");
  if (!keys.failure) {
    const std::size_t held = list(keys.json, "keys").size();
    return "the daemon has " + std::to_string(held) + (held == 1 ? " key" : " keys") +
           " of another file (key_file)";
  }
  if (keys.failure->what.find("(certificates)") != std::string::npos)
    return "this cluster uses certificates (peer_tls.*) and has no key";
  if (keys.failure->what.find("(no-key)") != std::string::npos)
    return "this cluster has no key: it was started so (--key-file none)";
  return "";
}

// Nothing where one of the questions has no answer.
std::optional<ClusterAnswers> ask_all(const DaemonClient& client, Json status) {
  ClusterAnswers answers;
  answers.status = std::move(status);
  const Asked members = ask(client, "/v1/members"), links = ask(client, "/v1/links");
  const Clock::time_point begin = Clock::now();
  if (members.failure || links.failure) return std::nullopt;
  answers.members = members.json;
  answers.links = links.json;
  if (!list(links.json, "links").empty()) {
    std::this_thread::sleep_for(rate_period);  // a rate is what flows in a time
    const Asked later = ask(client, "/v1/links");
    if (later.failure) return std::nullopt;
    answers.later = later.json;
    answers.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  }
  return answers;
}

void print_checks(Console& console, const std::vector<Check>& checks) {
  if (console.output == Output::json) {
    Json json = {{"worst", "ok"}, {"checks", Json::array()}};
    Verdict worst = Verdict::ok;
    for (const Check& check : checks) {
      worst = std::max(worst, check.verdict);
      json["checks"].push_back({{"check", check.name},
                                {"verdict", to_string(check.verdict)},
                                {"what", check.what},
                                {"advice", check.advice}});
    }
    json["worst"] = to_string(worst);
    console.out << json.dump(-1, ' ', false, Json::error_handler_t::replace) << '\n';
    return;
  }
  if (console.output == Output::tsv) {
    const std::vector<Column> columns = {
        {"VERDICT", "verdict"}, {"CHECK", "check"}, {"WHAT", "what"}, {"ADVICE", "advice"}};
    std::vector<Cells> rows;
    for (const Check& check : checks)
      rows.push_back({to_string(check.verdict), check.name, check.what, check.advice});
    return print_rows(console.out, columns, rows, console.layout());
  }
  std::vector<std::vector<std::string>> rows;
  for (const Check& check : checks) {
    rows.push_back({to_string(check.verdict), check.name, check.what});
    if (!check.advice.empty()) rows.push_back({"", "", "try: " + check.advice});
  }
  print_labelled(console.out, rows);
}

}  // namespace

std::string state_dir_of_root(const std::string& folder) {
  const std::string gossipd = folder + "/gossipd", core = gossipd + "-core";
  std::error_code error;
  return !std::filesystem::exists(gossipd, error) && std::filesystem::exists(core, error) ? core
                                                                                          : gossipd;
}

ExitCode run_doctor(const DaemonClient& client, Console& console, const DoctorRequest& request) {
  std::vector<Check> checks;
  const Asked status = ask(client, "/v1/status");
  std::string state_dir = request.state_dir.empty() ? usual_state_dir() : request.state_dir;
  if (status.failure) {
    const bool nobody = status.failure->code == ExitCode::no_daemon;
    checks.push_back({"daemon", nobody ? Verdict::warn : Verdict::fail, status.failure->what,
                      status.failure->hint});
  } else {
    checks.push_back(
        {"daemon", Verdict::ok,
         "gossipd " + text(status.json, "version") + " answers as " + text(status.json, "name"),
         ""});
    if (request.state_dir.empty()) state_dir = text(status.json, "state_dir");
  }
  const std::string proof = status.failure ? "" : proof_of(client);
  for (Check& check : check_machine(state_dir, request.data_dir, !status.failure, proof))
    checks.push_back(std::move(check));
  if (!status.failure) {
    const auto answers = ask_all(client, status.json);
    if (!answers)
      checks.push_back({"daemon", Verdict::fail, "it stopped answering", "gossipctl status"});
    else
      for (Check& check : check_cluster(*answers)) checks.push_back(std::move(check));
  }
  print_checks(console, checks);
  const bool failed =
      std::ranges::any_of(checks, [](const Check& c) { return c.verdict == Verdict::fail; });
  return failed ? ExitCode::unhealthy : ExitCode::ok;
}

}  // namespace gossipd
