#include "tools/gossipctl/gossipctl.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <optional>
#include <ostream>

#include "core/base/printable.h"
#include "core/base/settings.h"
#include "core/membership/plausibility.h"
#include "tools/gossipctl/checkpoint_file.h"
#include "tools/gossipctl/commands.h"
#include "tools/unknown_words.h"

namespace gossipd {

namespace {

namespace fs = std::filesystem;

constexpr const char* bash_completion = R"(_gossipctl() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}
  case $before in
    -o|--output) COMPREPLY=($(compgen -W "table json" -- "$word")); return ;;
    --for)
      COMPREPLY=($(compgen -W "ready finished left members= step= samples=" -- "$word"))
      return ;;
    job) COMPREPLY=($(compgen -W "extend" -- "$word")); return ;;
    checkpoint) COMPREPLY=($(compgen -W "show export" -- "$word")); return ;;
    key) COMPREPLY=($(compgen -W "generate list install use retire" -- "$word")); return ;;
    completion) COMPREPLY=($(compgen -W "bash" -- "$word")); return ;;
    --token-file|--ca-file|generate|install|show|export|--model)
      COMPREPLY=($(compgen -f -- "$word"))
      return ;;
  esac
  COMPREPLY=($(compgen -W "join leave members forget status links wait job checkpoint pause resume
    key version completion --rest --output --timeout --token-file --ca-file --help" -- "$word"))
}
complete -F _gossipctl gossipctl
)";

struct Options {
  std::string rest = "127.0.0.1:7611";
  std::string token_file;
  std::string ca_file;
  std::string output = "table";
  double timeout_s = 0;  // 0: the command's own
  std::vector<std::string> seeds;
  std::string condition = "ready";
  std::uint64_t more_samples = 0;  // of job extend
  std::string key_command;
  std::string key_file = "cluster.key";
  std::string key_id;
  std::string member_id;  // of forget
  std::string shell = "bash";
  std::string checkpoint_command;
  CheckpointExport exported;
};

constexpr double timeout_s_min = 0.001, timeout_s_max = 366.0 * 24 * 3600;

template <typename T>
bool is_within(const std::string& text, T least, T most) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size() && value >= least &&
         value <= most;  // false of nan
}

// What CLI11 asks of a check: nothing, or what is wrong.
std::string timeout_mistake(const std::string& text) {
  if (is_within(text, timeout_s_min, timeout_s_max)) return {};
  return gossipd::quoted(text) + " is no timeout; give seconds, a number from 0.001 to 31622400";
}

std::string samples_mistake(const std::string& text) {
  if (is_within(text, Samples{1}, budget_samples_max)) return {};
  return gossipd::quoted(text) + " is no number of samples; give a whole number from 1 to " +
         std::to_string(budget_samples_max);
}

std::string seed_mistake(const std::string& text) {
  Endpoint seed;
  // bytes that are no UTF-8 are refused with words of their own
  return !is_utf8(text) || parse_endpoint(text, peer_port_default, seed) ? "" : bad_endpoint(text);
}

double default_timeout_s(const std::string& command) {
  if (command == "wait") return 300;
  if (command == "leave" || command == "checkpoint") return 60;
  return 10;
}

bool read_token(const std::string& path, std::string& token, std::ostream& err) {
  if (path.empty()) return true;
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  if (fs::is_regular_file(status) &&
      (status.permissions() & (fs::perms::group_all | fs::perms::others_all)) != fs::perms::none) {
    print_failure(
        err, {ExitCode::usage,
              "the token file " + path + " is open to other users, and the token controls the node",
              "", "chmod 600 " + path});
    return false;
  }
  std::ifstream file(path);  // may be a pipe
  if (std::getline(file, token) && !token.empty()) return true;
  print_failure(err, {ExitCode::usage, "no token can be read from " + path, "",
                      "check --token-file and the file's permissions"});
  return false;
}

// JSON requires UTF-8; file names that stay on this machine may be anything.
std::optional<std::string> not_utf8(const Options& options) {
  std::vector<std::string> sent = options.seeds;
  sent.insert(sent.end(), {options.key_id, options.member_id, options.condition});
  if (options.key_command == "install") sent.push_back(options.key_file);
  for (const std::string& word : sent)
    if (!is_utf8(word)) return word;
  return std::nullopt;
}

ExitCode run_key(const Options& options, const DaemonClient& client, Console& console) {
  if (options.key_command == "generate") return generate_key(console, options.key_file);
  if (options.key_command == "list") return list_keys(client, console);
  if (options.key_command == "install") return install_key(client, console, options.key_file);
  return change_key(client, console, options.key_command, options.key_id);
}

ExitCode run_checkpoint(const Options& options, const DaemonClient& client, Console& console) {
  if (options.checkpoint_command == "show")
    return show_checkpoint(console, options.exported.checkpoint);
  if (options.checkpoint_command == "export") return export_checkpoint(console, options.exported);
  return write_checkpoint_now(client, console);
}

ExitCode run_words(const std::string& command, Console& console) {
  if (command == "completion") {
    console.out << bash_completion;
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
  if (command == "forget") return forget_member(client, console, options.member_id);
  if (command == "status") return show_status(client, console);
  if (command == "links") return show_links(client, console);
  if (command == "job")
    return options.more_samples > 0 ? extend_job(client, console, options.more_samples)
                                    : show_job(client, console);
  if (command == "join") return join_cluster(client, console, options.seeds);
  if (command == "leave") return leave_cluster(client, console);
  if (command == "checkpoint") return run_checkpoint(options, client, console);
  if (command == "pause") return pause_training(client, console);
  if (command == "resume") return resume_training(client, console);
  if (command == "wait") return wait_for(client, console, options.condition);
  if (command == "key") return run_key(options, client, console);
  return run_words(command, console);
}

void declare_globals(CLI::App& app, Options& options) {
  app.require_subcommand(1);
  app.fallthrough();  // global flags may also come after the command
  app.add_option("--rest", options.rest, "the daemon's REST address (also GOSSIPCTL_REST)")
      ->type_name("[https://]HOST:PORT|unix:PATH")
      ->capture_default_str();
  app.add_option("--token-file", options.token_file,
                 "token for a REST address beyond loopback (also GOSSIPCTL_TOKEN_FILE)")
      ->type_name("FILE");
  app.add_option("--ca-file", options.ca_file,
                 "the daemon's certificate or its signer's, for https (also GOSSIPCTL_CA_FILE)")
      ->type_name("FILE");
  app.add_option("-o,--output", options.output, "table or json")
      ->check(CLI::IsMember({"table", "json"}))
      ->capture_default_str();
  app.add_option("--timeout", options.timeout_s,
                 "longest wait; default 10, leave and checkpoint 60, wait 300")
      ->type_name("SECONDS")
      ->check(timeout_mistake);
}

void declare_membership(CLI::App& app, Options& options) {
  CLI::App* join = app.add_subcommand("join", "join a cluster again, or ask more seeds");
  join->add_option("SEED", options.seeds, "HOST[:PORT] of a member")->check(seed_mistake);
  app.add_subcommand("leave", "leave the cluster durably; the daemon stays up until join");
  app.add_subcommand("members", "list the members of the cluster");
  app.add_subcommand("forget", "drop a member that failed or left from all lists")
      ->add_option("ID", options.member_id, "16 hex digits, see members -o json")
      ->required();
  app.add_subcommand("links", "show the exchange with each neighbour");
}

void declare_training(CLI::App& app, Options& options) {
  app.add_subcommand("status", "show what this node is doing");
  CLI::App* wait = app.add_subcommand("wait", "wait for a condition");
  wait->add_option("--for", options.condition,
                   "ready, finished, left, members=N, step=N or samples=N")
      ->type_name("CONDITION")
      ->capture_default_str();
  CLI::App* job = app.add_subcommand("job", "show the job as canonical TOML");
  job->add_subcommand("extend", "train the whole cluster on more samples, even after the job's end")
      ->add_option("SAMPLES", options.more_samples,
                   "samples beyond the budget, or beyond those trained on if that is more")
      ->required()
      ->check(samples_mistake);
  app.add_subcommand("pause", "make no steps until resume");
  app.add_subcommand("resume", "go on training");
}

void declare_checkpoint(CLI::App& app, Options& options) {
  CLI::App* checkpoint = app.add_subcommand(
      "checkpoint", "write a checkpoint now and print its path; or read one as a file");
  const auto source = [&options](CLI::App* command) {
    command
        ->add_option("CHECKPOINT", options.exported.checkpoint,
                     "a file, or a node's state directory")
        ->required();
  };
  source(checkpoint->add_subcommand("show", "show a checkpoint's metadata and job"));
  CLI::App* exported = checkpoint->add_subcommand("export", "convert a checkpoint for others");
  source(exported);
  exported
      ->add_option("OUT", options.exported.to,
                   "NAME.safetensors: only the weights; NAME.pt: TorchScript, for torch.jit.load")
      ->required();
  exported
      ->add_option("--model", options.exported.model,
                   "the job's TorchScript file, unless it is beside the checkpoint")
      ->type_name("FILE");
}

void declare_keys(CLI::App& app, Options& options) {
  CLI::App* key = app.add_subcommand("key", "change the cluster's secret while the cluster works");
  key->require_subcommand(1);
  CLI::App* generate = key->add_subcommand("generate", "write a new cluster key");
  generate->add_option("FILE", options.key_file, "the file; - for standard output")
      ->capture_default_str();
  key->add_subcommand("list", "list the keys of this node");
  key->add_subcommand("install", "accept one more key")
      ->add_option("FILE", options.key_file, "a key file on the daemon's machine")
      ->required();
  key->add_subcommand("use", "dial with this key")
      ->add_option("ID", options.key_id, "16 hex digits, see list")
      ->required();
  key->add_subcommand("retire", "never accept this key again")
      ->add_option("ID", options.key_id, "16 hex digits, see list")
      ->required();
}

void declare(CLI::App& app, Options& options) {
  declare_globals(app, options);
  declare_membership(app, options);
  declare_training(app, options);
  declare_checkpoint(app, options);
  declare_keys(app, options);
  app.add_subcommand("version", "print the version");
  CLI::App* completion = app.add_subcommand("completion", "print a completion script");
  completion->add_option("SHELL", options.shell, "bash")
      ->check(CLI::IsMember({"bash"}))
      ->capture_default_str();
}

}  // namespace

ExitCode run_gossipctl(const std::vector<std::string>& arguments,
                       const std::map<std::string, std::string>& environment, std::ostream& out,
                       std::ostream& err) {
  Options options;
  if (const auto rest = environment.find("GOSSIPCTL_REST");
      rest != environment.end() && !rest->second.empty())
    options.rest = rest->second;
  if (const auto file = environment.find("GOSSIPCTL_TOKEN_FILE"); file != environment.end())
    options.token_file = file->second;
  if (const auto file = environment.find("GOSSIPCTL_CA_FILE"); file != environment.end())
    options.ca_file = file->second;
  CLI::App app{"gossipctl - inspect and control a gossipd", "gossipctl"};
  declare(app, options);
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
    app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    // The help of the innermost command named.
    const CLI::App* asked = &app;
    while (!asked->get_subcommands().empty()) asked = asked->get_subcommands().front();
    out << asked->help();
    return ExitCode::ok;
  } catch (const CLI::ParseError& error) {
    print_failure(err, {ExitCode::usage, refused_words(app, error), "",
                        named_command(app) + " --help lists commands and options"});
    return ExitCode::usage;
  }
  Console console{out, err, options.output == "json" ? Output::json : Output::table};
  std::string token;
  if (!read_token(options.token_file, token, err)) return ExitCode::usage;
  const std::string command = app.get_subcommands().front()->get_name();
  if (command == "key")
    options.key_command = app.get_subcommands().front()->get_subcommands().front()->get_name();
  if (command == "checkpoint" && !app.get_subcommands().front()->get_subcommands().empty())
    options.checkpoint_command =
        app.get_subcommands().front()->get_subcommands().front()->get_name();
  if (const auto word = not_utf8(options)) {
    print_failure(err, {ExitCode::usage, "'" + *word + "' holds bytes that are no UTF-8",
                        "it was written in another encoding", "write it again in UTF-8"});
    return ExitCode::usage;
  }
  const double timeout_s = options.timeout_s > 0 ? options.timeout_s : default_timeout_s(command);
  const DaemonClient client(options.rest, token,
                            std::chrono::milliseconds(static_cast<std::int64_t>(timeout_s * 1e3)),
                            options.ca_file);
  return run_command(command, options, client, console);
}

}  // namespace gossipd
