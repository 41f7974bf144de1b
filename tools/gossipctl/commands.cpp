#include "tools/gossipctl/commands.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <thread>

#include "core/base/did_you_mean.h"
#include "core/base/printable.h"
#include "net/peer/cluster_key.h"
#include "tools/gossipctl/answers.h"
#include "tools/gossipctl/lists.h"
#include "tools/gossipctl/progress.h"
#include "tools/gossipctl/table.h"

namespace gossipd {

namespace {

using Row = std::vector<std::string>;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds poll_period{200};
// With a job that has ended: word of an extension, or of the next job, may be on its way.
constexpr std::chrono::milliseconds patience_with_ended{3'000};
constexpr std::chrono::milliseconds poll_timeout{5'000};  // then a frozen daemon is asked again

std::string percent(double ratio) { return fixed(ratio * 100, 1) + " %"; }

void print_progress(const Json& s, std::vector<Row>& rows) {
  if (count(s, "budget_samples") == 0) return;
  std::string line = percent(number(s, "progress").value_or(0)) + " of " +
                     grouped(count(s, "budget_samples")) + " samples";
  if (const auto left = number(s, "time_left_s"); left && *left > 0)
    line += ", " + human_seconds(*left) + " left";
  rows.push_back({"progress", line});
}

void print_traffic(const Json& s, std::vector<Row>& rows) {
  const double sent = number(s, "bytes_sent_total").value_or(0),
               dense = number(s, "dense_baseline_bytes").value_or(0);
  std::string line = human_bytes(sent) + " sent, " +
                     human_bytes(number(s, "bytes_received_total").value_or(0)) + " received";
  if (dense > 0)
    line += "; " + fixed(100 * sent / dense, 3) + " % of the dense baseline (" +
            human_bytes(dense) + ")";
  rows.push_back({"traffic", line});
}

void print_latest(const Json& s, const char* list, const char* label, std::vector<Row>& rows) {
  const auto found = s.find(list);
  if (found == s.end() || !found->is_array() || found->empty()) return;
  const Json& last = found->back();
  std::string line = text(last, "text");
  if (line.empty())
    line = std::string(text(last, "by") == "us" ? "we refused " : "refused by ") +
           text(last, "peer") + ": " + text(last, "reason");
  line += " (" + human_seconds(number(last, "age_s").value_or(0)) + " ago";
  if (const std::uint64_t times = count(last, "count"); times > 1)
    line += ", " + grouped(times) + " times";
  if (found->size() > 1) line += ", and " + std::to_string(found->size() - 1) + " earlier";
  rows.push_back({label, line + ")"});
}

void print_division(const Json& s, std::vector<Row>& rows) {
  if (!s.contains("trainer") || !s["trainer"].contains("division") ||
      !s["trainer"]["division"].is_object())
    return;
  const Json& d = s["trainer"]["division"];
  const double samples = std::max(1.0, number(d, "samples").value_or(1));
  rows.push_back({"data", grouped(count(d, "samples_owned")) + " of " +
                              grouped(count(d, "samples")) + " samples, divided among " +
                              grouped(count(d, "members")) + "; pass " +
                              grouped(count(d, "pass") + 1) + ", " +
                              percent(number(d, "place").value_or(0) / samples) + " through"});
}

std::vector<Row> status_rows(const Json& s) {
  std::vector<Row> rows;
  rows.push_back({"node", text(s, "name") + " (" + text(s, "id") + ")"});
  rows.push_back({"address", text(s, "address")});
  rows.push_back({"cluster", text(s, "cluster_id").empty() ? "-" : text(s, "cluster_id")});
  rows.push_back({"job", text(s, "job_hash").empty()
                             ? "-"
                             : text(s, "job_name") + " (" + text(s, "job_hash") + ")"});
  std::string phase = text(s, "phase");
  if (const std::string what = text(s, "waiting_for"); !what.empty())
    phase += ": waiting for " + what;
  if (flag(s, "isolated")) phase += " (isolated: no known member answers)";
  rows.push_back({"phase", phase});
  if (const std::string what = text(s, "overridden"); !what.empty())
    rows.push_back({"overridden", what});
  if (const std::string what = text(s, "trouble"); !what.empty()) rows.push_back({"trouble", what});
  if (const std::string what = text(s, "cloned"); !what.empty()) rows.push_back({"cloned", what});
  if (const std::string reach = text(s, "reachability"); reach == "dials-out")
    rows.push_back({"reachable", "no, it only dials out: " + text(s, "not_reached")});
  else if (reach == "address-silent")
    rows.push_back({"reachable", "no, it advertises an address that does not answer: " +
                                     text(s, "not_reached")});
  else if (reach == "reachable")
    rows.push_back({"reachable", "yes"});
  rows.push_back({"members", grouped(count(s, "members_alive")) + " alive, " +
                                 grouped(count(s, "links_open")) + " linked"});
  if (s.contains("trainer") && !text(s["trainer"], "device").empty())
    rows.push_back({"device", text(s["trainer"], "device")});
  print_division(s, rows);
  print_progress(s, rows);
  rows.push_back({"step", grouped(count(s, "step")) + ", " +
                              grouped(static_cast<std::uint64_t>(
                                  number(s, "samples_per_second").value_or(0))) +
                              " samples/s"});
  rows.push_back({"loss", fixed(number(s, "loss").value_or(0), 4) + ", consensus distance " +
                              fixed(number(s, "consensus_distance").value_or(0), 5)});
  if (const auto accuracy = number(s, "accuracy"))
    rows.push_back({"accuracy", percent(*accuracy) + ", best " +
                                    percent(number(s, "best_accuracy").value_or(*accuracy))});
  if (const auto evaluation = s.find("evaluation");
      evaluation != s.end() && evaluation->is_object()) {
    if (const auto top5 = number(*evaluation, "top5_accuracy"))
      rows.push_back({"top-5", percent(*top5)});
    if (const auto perplexity = number(*evaluation, "perplexity"))
      rows.push_back({"perplexity", fixed(*perplexity, 2)});
    const double loss = number(*evaluation, "loss").value_or(0);
    rows.push_back(
        {"held-out loss", fixed(loss, 4) + ", of the best model " +
                              fixed(number(s, "best_evaluation_loss").value_or(loss), 4)});
  }
  print_traffic(s, rows);
  if (s.contains("checkpoints") && s["checkpoints"].is_object())
    for (const auto& [which, c] : s["checkpoints"].items())
      rows.push_back({which, text(c, "path") + ", step " + grouped(count(c, "step")) + ", " +
                                 text(c, "written_at")});
  print_latest(s, "refusals", "refusal", rows);
  print_latest(s, "warnings", "warning", rows);
  return rows;
}

ExitCode command(const DaemonClient& client, Console& console, const std::string& target,
                 const std::string& body, const std::string& words) {
  const DaemonClient::Answer answer = client.post(target, body);
  if (!answer.ok) return fail(console, answer.failure);
  if (console.output == Output::json) console.out << printable(answer.body, Lines::many);
  console.err << words << '\n';
  const Json json = parse_answer(answer.body);
  if (json.is_object() && json.contains("on_disk") && !flag(json, "on_disk"))
    console.err << "its disk has not taken that yet: until it does, the node forgets it by a "
                   "restart; `gossipctl doctor` looks at the disk\n";
  return ExitCode::ok;
}

// ---- wait ----

struct Condition {
  std::string what;  // ready, finished, left, members, step, samples
  std::uint64_t count = 0;
};

std::optional<Condition> parse_condition(const std::string& words) {
  const std::size_t equals = words.find('=');
  Condition condition{words.substr(0, equals), 0};
  const bool counts =
      condition.what == "members" || condition.what == "step" || condition.what == "samples";
  const bool states =
      condition.what == "ready" || condition.what == "finished" || condition.what == "left";
  if (states && equals == std::string::npos) return condition;
  if (!counts || equals == std::string::npos) return std::nullopt;
  const char *begin = words.data() + equals + 1, *end = words.data() + words.size();
  const auto [stop, error] = std::from_chars(begin, end, condition.count);
  if (error != std::errc{} || stop != end || begin == end) return std::nullopt;
  return condition;
}

std::string probable_condition(const std::string& words) {
  static const std::vector<std::string> names = {"ready",   "finished", "left",
                                                 "members", "step",     "samples"};
  const std::string name = words.substr(0, words.find('=')), close = did_you_mean(name, names);
  return close.empty() || close == name ? "" : "; did you mean '" + close + "'?";
}

bool holds(const Condition& c, const Json& status) {
  if (c.what == "ready") return flag(status, "ready");
  if (c.what == "finished" || c.what == "left") return text(status, "phase") == c.what;
  if (c.what == "members") return count(status, "members_alive") >= c.count;
  if (c.what == "step") return count(status, "step") >= c.count;
  return count(status, "cluster_samples") >= c.count;
}

std::string words_for(const Json& s) {
  std::string words = "the node is " + text(s, "phase");
  if (const std::string what = text(s, "waiting_for"); !what.empty())
    words += ", waiting for " + what;
  return words + "; " + members_alive(s) + ", step " + grouped(count(s, "step")) + ", " +
         grouped(count(s, "cluster_samples")) + " samples";
}

std::optional<Failure> broken(const Json& status) {
  const std::string failure =
      status.contains("trainer") ? text(status["trainer"], "failure") : std::string();
  if (text(status, "phase") != "broken" && failure.empty()) return std::nullopt;
  return Failure{ExitCode::unhealthy,
                 "this node's training is broken" + (failure.empty() ? "" : ": " + failure), "",
                 "see the log of gossipd; a restart goes on from the last checkpoint"};
}

// Why a node does not get there by itself.
std::optional<Failure> hopeless(const Condition& c, const Json& status) {
  if (c.what == "left") return std::nullopt;
  if (text(status, "phase") == "left")
    return Failure{ExitCode::refused_by_state, "this node has left its cluster", "",
                   "gossipctl join brings it back"};
  // Others may still come, and train.
  return c.what == "members" || c.what == "samples" ? std::nullopt : broken(status);
}

// A job that has ended below the figure: how much each trains is known to the others by estimates,
// so the end may come a little below the budget.
std::optional<Failure> ended(const Condition& c, const Json& status) {
  const bool counts = c.what == "samples" || c.what == "step";
  if (!counts || text(status, "phase") != "finished") return std::nullopt;
  const std::string reached =
      c.what == "step" ? "at step " + grouped(count(status, "step"))
                       : "with " + grouped(count(status, "cluster_samples")) + " samples";
  return Failure{
      ExitCode::refused_by_state,
      "the job has ended " + reached + ", below " + c.what + "=" + std::to_string(c.count), "",
      "wait --for finished waits for the end; gossipctl job extend trains on"};
}

struct Patience {
  Clock::time_point begin = Clock::now();  // of the timeout
  std::chrono::milliseconds with_hopeless = patience_with_hopeless;
};

ExitCode wait_until(const DaemonClient& client, Console& console, const Condition& condition,
                    const std::string& name, const Patience& patience) {
  const Clock::time_point deadline = patience.begin + client.timeout();
  const DaemonClient quick = client.with_timeout(std::min(poll_timeout, client.timeout()));
  Failure last;
  bool answered = false;
  Clock::time_point said = Clock::now(), hopeful = said;
  for (;;) {
    const auto [status, body, failure] = ask(quick, "/v1/status");
    if (!failure) {
      answered = true;
      if (holds(condition, status)) {
        if (console.output == Output::json) console.out << printable(body, Lines::many);
        if (const std::string what = text(status, "waiting_for"); !what.empty())
          console.err << words_for(status) << '\n';
        return ExitCode::ok;
      }
      const std::optional<Failure> over = ended(condition, status);
      const std::optional<Failure> why = over ? over : hopeless(condition, status);
      if (!why) hopeful = Clock::now();
      const auto limit =
          over ? std::min(patience_with_ended, patience.with_hopeless) : patience.with_hopeless;
      if (Clock::now() - hopeful >= limit && why) return fail(console, *why);
      last.what = words_for(status);
      if (Clock::now() - said >= progress_interval) {
        said = Clock::now();
        console.err << progress_line(status) << std::endl;
      }
    } else {
      last = *failure;
      if (last.code == ExitCode::unauthorised || last.code == ExitCode::usage)
        return fail(console, last);
      if (Clock::now() - said >= progress_interval) {
        said = Clock::now();
        console.err << printable("still waiting for " + name + ": " + last.what) << std::endl;
      }
    }
    if (Clock::now() + poll_period >= deadline) break;
    std::this_thread::sleep_for(poll_period);
  }
  if (!answered) return fail(console, last);
  return fail(console, {ExitCode::timeout,
                        "still waiting for " + name + " after " +
                            human_milliseconds(static_cast<double>(client.timeout().count())) +
                            ": " + last.what,
                        "", "gossipctl status shows more; a longer --timeout waits longer"});
}

}  // namespace

void print_path(Console& console, const char* key, const std::string& path) {
  if (console.output == Output::json)
    console.out << Json{{key, path}}.dump(-1, ' ', false, Json::error_handler_t::replace) << '\n';
  else
    console.out << path << '\n';
}

ExitCode show_status(const DaemonClient& client, Console& console) {
  const auto print = [&console](const Json& json) {
    if (console.output == Output::tsv)
      print_flat(console.out, json);
    else
      print_labelled(console.out, status_rows(json));
  };
  return show(client, console, "/v1/status", print, broken);
}

ExitCode show_job(const DaemonClient& client, Console& console) {
  return show(client, console, "/v1/job", [&console](const Json& json) {
    if (console.output == Output::tsv) return print_flat(console.out, json);
    console.out << "# job " << text(json, "hash") << '\n'
                << printable(text(json, "document"), Lines::many);
  });
}

ExitCode join_cluster(const DaemonClient& client, Console& console,
                      const std::vector<std::string>& seeds) {
  const std::string body = seeds.empty() ? "{}" : Json{{"seeds", seeds}}.dump();
  return command(client, console, "/v1/cluster/join", body,
                 "joining; `gossipctl wait --for ready` waits until the node takes part");
}

ExitCode leave_cluster(const DaemonClient& client, Console& console) {
  const Patience patience;  // for both
  const DaemonClient::Answer answer = client.post("/v1/cluster/leave");
  if (!answer.ok) return fail(console, answer.failure);
  const ExitCode code = wait_until(client, console, {"left", 0}, "left", patience);
  if (code == ExitCode::ok)
    console.err << "left the cluster, durably; `gossipctl join` brings the node back\n";
  return code;
}

ExitCode write_checkpoint_now(const DaemonClient& client, Console& console) {
  const DaemonClient::Answer answer = client.post("/v1/checkpoint");
  if (!answer.ok) return fail(console, answer.failure);
  const Json json = parse_answer(answer.body);
  if (console.output == Output::json || !json.is_object() || !json.contains("checkpoint"))
    console.out << printable(answer.body, Lines::many);
  else
    console.out << text(json["checkpoint"], "path") << '\n';
  return ExitCode::ok;
}

ExitCode pause_training(const DaemonClient& client, Console& console) {
  return command(client, console, "/v1/training/pause", "",
                 "paused: the node makes no steps but still exchanges; `gossipctl resume` goes on");
}

ExitCode resume_training(const DaemonClient& client, Console& console) {
  return command(client, console, "/v1/training/resume", "", "training goes on");
}

ExitCode forget_member(const DaemonClient& client, Console& console, const std::string& member) {
  const Chosen chosen = choose_member(client, member);
  if (chosen.failure) return fail(console, *chosen.failure);
  return command(client, console, "/v1/members/forget", Json{{"id", chosen.id}}.dump(),
                 "forgotten everywhere; what it trained on still counts");
}

ExitCode extend_job(const DaemonClient& client, Console& console, std::uint64_t samples) {
  return command(client, console, "/v1/job/extend", Json{{"samples", samples}}.dump(),
                 "the whole cluster trains on " + grouped(samples) +
                     " more samples; `gossipctl status` shows the budget");
}

std::string sent_path(const std::string& file) {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::absolute(file, error);
  return error ? file : path.string();
}

ExitCode start_job(const DaemonClient& client, Console& console, const std::string& file) {
  return command(
      client, console, "/v1/job/start", Json{{"file", sent_path(file)}}.dump(),
      "started: each member starts again with it, and answers nothing for some seconds; "
      "those that are away follow once they are back. `gossipctl wait --for ready` waits "
      "until this one trains, then `gossipctl top`");
}

bool is_condition(const std::string& words) { return parse_condition(words).has_value(); }

ExitCode wait_for(const DaemonClient& client, Console& console, const std::string& condition,
                  std::chrono::milliseconds with_hopeless) {
  const std::optional<Condition> parsed = parse_condition(condition);
  if (!parsed)
    return fail(console,
                {ExitCode::usage,
                 "--for: unknown condition '" + condition + "'" + probable_condition(condition), "",
                 "use ready, finished, left, members=N, step=N or samples=N, N whole"});
  return wait_until(client, console, *parsed, condition, {.with_hopeless = with_hopeless});
}

ExitCode install_key(const DaemonClient& client, Console& console, const std::string& file) {
  return command(client, console, "/v1/keys/install", Json{{"file", sent_path(file)}}.dump(),
                 "accepted here from now on; once every node has it, run `gossipctl key use ID` on "
                 "each");
}

ExitCode change_key(const DaemonClient& client, Console& console, const std::string& what,
                    const std::string& key) {
  const Chosen chosen = choose_key(client, key);
  if (chosen.failure) return fail(console, *chosen.failure);
  return command(
      client, console, "/v1/keys/" + what, Json{{"id", chosen.id}}.dump(),
      what == "use"
          ? "this node dials with it; once every node does, run `gossipctl key retire OLD-ID` on "
            "each"
          : "never accepted here again; a node without a newer key is cut off now, and `gossipctl "
            "members` shows it as failed");
}

ExitCode generate_key(Console& console, const std::string& file) {
  const Result<ClusterKey> key = generate_cluster_key();
  if (!key) return fail(console, {ExitCode::failed, key.error().text, "", ""});
  if (file == "-") {
    if (console.output == Output::json)
      console.out << Json{{"key", format_cluster_key(*key)}}.dump() << '\n';
    else
      console.out << format_cluster_key(*key);
    return ExitCode::ok;
  }
  if (const auto error = write_cluster_key(file, *key))
    return fail(console, {ExitCode::failed, error->text, "", ""});
  print_path(console, "file", file);
  console.err << "a new cluster key; a new cluster: start every node with --key-file " << file
              << ". One that runs: gossipctl key install " << file << " on every box\n";
  return ExitCode::ok;
}

}  // namespace gossipd
