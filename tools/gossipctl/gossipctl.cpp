#include "tools/gossipctl/gossipctl.h"

#include <charconv>
#include <memory>
#include <optional>
#include <ostream>

#include "core/base/printable.h"
#include "tools/gossipctl/commands.h"
#include "tools/gossipctl/completion.h"
#include "tools/gossipctl/discover.h"
#include "tools/gossipctl/lists.h"
#include "tools/gossipctl/options.h"
#include "tools/gossipctl/top.h"
#include "tools/unknown_words.h"

namespace gossipd {

namespace {

double default_timeout_s(const std::string& command, const Options& options) {
  if (command == "wait") return 300;
  // The next job's data are read before the answer.
  const bool starts_job = command == "job" && !options.next_job.empty();
  return command == "leave" || command == "checkpoint" || starts_job ? 60 : 10;
}

// JSON requires UTF-8; file names that stay on this machine may be anything.
std::optional<std::string> not_utf8(const Options& options) {
  std::vector<std::string> sent = options.seeds;
  sent.insert(sent.end(), {options.key, options.member, options.condition});
  if (options.subcommand == "install") sent.push_back(sent_path(options.key_file));
  if (!options.next_job.empty()) sent.push_back(sent_path(options.next_job));
  for (const std::string& word : sent)
    if (!is_utf8(word)) return word;
  return std::nullopt;
}

ExitCode run_key(const Options& options, const DaemonClient& client, Console& console) {
  if (options.subcommand == "generate") return generate_key(console, options.key_file);
  if (options.subcommand == "list") return list_keys(client, console);
  if (options.subcommand == "install") return install_key(client, console, options.key_file);
  return change_key(client, console, options.subcommand, options.key);
}

ExitCode run_checkpoint(const Options& options, const DaemonClient& client, Console& console) {
  if (options.subcommand == "show") return show_checkpoint(console, options.exported.checkpoint);
  if (options.subcommand == "export") return export_checkpoint(console, options.exported);
  return write_checkpoint_now(client, console);
}

ExitCode run_words(const std::string& command, const Options& options, Console& console) {
  if (command == "completion") {
    CLI::App all{"", "gossipctl"};
    Options unused;
    declare(all, unused);
    console.out << completion_script(all, options.shell);
    return ExitCode::ok;
  }
  if (console.output == Output::json)
    console.out << "{\"version\":\"" GOSSIPD_VERSION "\"}\n";
  else
    console.out << "gossipctl " GOSSIPD_VERSION "\n";
  return ExitCode::ok;
}

ExitCode run_command(const std::string& command, const Options& options, const DaemonClient& client,
                     Console& console) {
  if (command == "members") return show_members(client, console);
  if (command == "invite") return invite(client, console, options.invite);
  if (command == "forget") return forget_member(client, console, options.member);
  if (command == "status") return show_status(client, console);
  if (command == "links") return show_links(client, console);
  if (command == "job" && !options.next_job.empty())
    return start_job(client, console, options.next_job);
  if (command == "job")
    return options.more_samples > 0 ? extend_job(client, console, options.more_samples)
                                    : show_job(client, console);
  if (command == "join") return join_cluster(client, console, options.seeds);
  if (command == "leave") return leave_cluster(client, console);
  if (command == "checkpoint") return run_checkpoint(options, client, console);
  if (command == "pause") return pause_training(client, console);
  if (command == "resume") return resume_training(client, console);
  if (command == "doctor") return run_doctor(client, console, options.doctor);
  if (command == "discover") return discover(console, client.timeout().count() / 1e3);
  if (command == "reachability") return show_reachability(client, console);
  if (command == "top") return top(client, console, options.until);
  if (command == "wait") return wait_for(client, console, options.condition);
  if (command == "key") return run_key(options, client, console);
  return run_words(command, options, console);
}

// The command that words without one probably meant; empty: it cannot be told.
std::string probable_command(const CLI::App& app) {
  const std::string path = named_command(app);
  const std::vector<std::string> unknown = app.remaining(true);
  if (unknown.empty()) return {};
  if (path == "gossipctl job" && unknown.front() == "show")
    return "gossipctl job, which shows the job";
  if (path == "gossipctl wait" && is_condition(unknown.front()))
    return "gossipctl wait --for " + unknown.front();
  return {};
}

ExitCode refuse_words(const CLI::App& app, const CLI::ParseError& error, std::ostream& err) {
  const std::string probable = probable_command(app);
  print_failure(err, {ExitCode::usage, refused_words(app, error), "",
                      probable.empty() ? named_command(app) + " --help lists commands and options"
                                       : probable});
  return ExitCode::usage;
}

// What only words answer, or a mistake in them; nothing for a command to run.
std::optional<ExitCode> parse(CLI::App& app, const std::vector<std::string>& arguments,
                              std::ostream& out, std::ostream& err) {
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
    app.parse(reversed);
  } catch (const CLI::CallForHelp& help) {
    if (!app.remaining(true).empty()) return refuse_words(app, help, err);
    // The help of the innermost command named.
    const CLI::App* asked = &app;
    while (!asked->get_subcommands().empty()) asked = asked->get_subcommands().front();
    out << asked->help();
    return ExitCode::ok;
  } catch (const CLI::CallForVersion& version) {
    out << version.what() << '\n';
    return ExitCode::ok;
  } catch (const CLI::ParseError& error) {
    return refuse_words(app, error, err);
  }
  return std::nullopt;
}

// The command, and its own command if it has one.
std::vector<std::string> names_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* at = &app; !at->get_subcommands().empty();) {
    at = at->get_subcommands().front();
    names.push_back(at->get_name());
  }
  return names;
}

Output output_of(const Options& options) {
  if (options.output == "json") return Output::json;
  return options.output == "tsv" ? Output::tsv : Output::table;
}

// 0: not given, or not to be believed.
std::size_t width_of(const std::map<std::string, std::string>& environment) {
  const auto found = environment.find("COLUMNS");
  std::size_t width = 0;
  if (found != environment.end()) {
    const std::string& text = found->second;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), width);
    if (error != std::errc{} || end != text.data() + text.size()) return 0;
  }
  return width;
}

void read_environment(const std::map<std::string, std::string>& environment, Options& options) {
  const auto read = [&](const char* name, std::string& into) {
    const auto found = environment.find(name);
    if (found != environment.end() && !found->second.empty()) into = found->second;
  };
  read("GOSSIPCTL_REST", options.rest);
  read("GOSSIPCTL_TOKEN_FILE", options.token_file);
  read("GOSSIPCTL_CA_FILE", options.ca_file);
}

}  // namespace

ExitCode run_gossipctl(const std::vector<std::string>& arguments,
                       const std::map<std::string, std::string>& environment, std::ostream& out,
                       std::ostream& err) {
  Options options;
  read_environment(environment, options);
  CLI::App app{"gossipctl - inspect and control a gossipd", "gossipctl"};
  declare(app, options);
  if (const auto code = parse(app, arguments, out, err)) return *code;
  const std::vector<std::string> named = names_of(app);
  const std::string& command = named.front();
  if (command == "help") {  // as if it had been asked for behind the command
    Options unused;
    CLI::App again{app.get_description(), app.get_name()};
    declare(again, unused);
    std::vector<std::string> words = options.help_about;
    words.push_back("--help");
    return parse(again, words, out, err).value_or(ExitCode::failed);
  }
  options.subcommand = named.size() > 1 ? named[1] : std::string();
  Console console{out, err, output_of(options), !options.no_headers, width_of(environment)};
  if (const auto word = not_utf8(options)) {
    print_failure(err, {ExitCode::usage, "'" + *word + "' holds bytes that are no UTF-8",
                        "it was written in another encoding", "write it again in UTF-8"});
    return ExitCode::usage;
  }
  const double timeout_s =
      options.timeout_s > 0 ? options.timeout_s : default_timeout_s(command, options);
  const bool by_option = app.get_option("--token-file")->count() > 0;
  const auto token = std::make_shared<const TokenFile>(
      options.token_file, by_option ? "--token-file" : "GOSSIPCTL_TOKEN_FILE");
  const DaemonClient client(options.rest, token,
                            std::chrono::milliseconds(static_cast<std::int64_t>(timeout_s * 1e3)),
                            options.ca_file);
  return run_command(command, options, client, console);
}

}  // namespace gossipd
