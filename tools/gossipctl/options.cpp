#include "tools/gossipctl/options.h"

#include <charconv>

#include "core/base/printable.h"
#include "core/base/settings.h"
#include "core/membership/plausibility.h"

namespace gossipd {

namespace {

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

// As of a variable that is not set.
CLI::Validator named(const std::string& what) {
  return CLI::Validator(
      [what](const std::string& text) {
        return text.empty() ? "the name is empty; give " + what : std::string();
      },
      "");
}

std::string seed_mistake(const std::string& text) {
  Endpoint seed;
  // bytes that are no UTF-8 are refused with words of their own
  return !is_utf8(text) || parse_endpoint(text, peer_port_default, seed) ? "" : bad_endpoint(text);
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
  app.add_option(
         "-o,--output", options.output,
         "table: for people; tsv: tab-separated, no spaces in a cell, never shortened; json: the "
         "daemon's own answer")
      ->check(CLI::IsMember({"table", "tsv", "json"}))
      ->capture_default_str();
  app.add_flag("--no-headers", options.no_headers, "print no header line above lists");
  app.add_option("--timeout", options.timeout_s,
                 "longest wait; default 10, leave, checkpoint and job start 60, wait 300")
      ->type_name("SECONDS")
      ->check(timeout_mistake);
  app.set_version_flag("-V,--version", "gossipctl " GOSSIPD_VERSION, "print the version");
}

void declare_membership(CLI::App& app, Options& options) {
  CLI::App* join = app.add_subcommand("join", "join a cluster again, or ask more seeds");
  join->add_option("SEED", options.seeds, "HOST[:PORT] of a member")->check(seed_mistake);
  CLI::App* invite = app.add_subcommand(
      "invite", "print the line with which another box joins; it holds the cluster's key");
  invite
      ->add_option("--key-file", options.invite.key_file,
                   "the cluster's key (default: of the daemon's state directory)")
      ->type_name("FILE");
  invite
      ->add_option("--file", options.invite.to_file,
                   "write it to a new file, for gossipd --join @FILE")
      ->type_name("FILE");
  invite->footer(
      "An invite works until the cluster's key is changed (gossipctl key): the key has neither an "
      "end nor a count of uses, so an invite cannot have one.");
  app.add_subcommand("leave", "leave the cluster durably; the daemon stays up until join");
  app.add_subcommand("members", "list the members of the cluster");
  app.add_subcommand("forget", "drop a member that failed or left from all lists")
      ->add_option("MEMBER", options.member, "its name or id, or how only that one begins")
      ->required()
      ->check(named("a member"));
  app.add_subcommand("links", "show the exchange with each neighbour");
}

void declare_training(CLI::App& app, Options& options) {
  app.add_subcommand("status", "show what this node is doing");
  app.add_subcommand("top", "watch this node and its cluster; on no terminal, a line every 10 s")
      ->add_option("--until", options.until, "end when this node is in that phase")
      ->check(CLI::IsMember({"finished", "left"}));
  CLI::App* wait = app.add_subcommand("wait", "wait for a condition");
  wait->add_option("--for", options.condition, "N is a whole number")
      ->type_name("CONDITION")
      ->check(CLI::Validator([](std::string&) { return std::string(); },
                             "{ready,finished,left,members=N,step=N,samples=N}"))
      ->capture_default_str();
  CLI::App* job = app.add_subcommand(
      "job", "show the job as canonical TOML; job extend trains longer, job start begins the next");
  job->add_subcommand("extend", "train the whole cluster on more samples, even after the job's end")
      ->add_option("SAMPLES", options.more_samples,
                   "samples beyond the budget, or beyond those trained on if that is more")
      ->required()
      ->check(samples_mistake);
  job->add_subcommand("start", "go on to the cluster's next job, once this one is finished")
      ->add_option("FILE", options.next_job, "the job file, on the daemon's machine")
      ->required()
      ->check(named("the job file"));
  app.add_subcommand("pause", "make no steps until resume");
  app.add_subcommand("resume", "go on training");
}

void declare_doctor(CLI::App& app, Options& options) {
  CLI::App* doctor = app.add_subcommand(
      "doctor", "look for what is wrong with this machine, its node and its lines, with advice");
  doctor
      ->add_option("--state-dir", options.doctor.state_dir,
                   "the node's state directory (default: the daemon's, or the usual one)")
      ->type_name("DIR");
  doctor->add_option("--data", options.doctor.data_dir, "the directory of the job's data files")
      ->type_name("DIR");
  doctor->footer(
      "Works without a daemon too. It writes 4 KB to the state directory, to time the disk, and "
      "removes them. Exit code 8: a check fails.");
  app.add_subcommand("discover", "list nodes that announce themselves in this network (Avahi)");
  app.add_subcommand("reachability", "who finds whom at the address that it advertises");
}

void declare_checkpoint(CLI::App& app, Options& options) {
  CLI::App* checkpoint = app.add_subcommand(
      "checkpoint",
      "write one now and print its path; checkpoint show and checkpoint export read one");
  const auto source = [&options](CLI::App* command) {
    command
        ->add_option("CHECKPOINT", options.exported.checkpoint,
                     "a file, or a node's state directory: final, or current if the job was "
                     "extended since, or else best")
        ->required()
        ->check(named("a file or a node's state directory"));
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
  CLI::App* key = app.add_subcommand(
      "key",
      "change the cluster's secret as it works: key generate, list, install, use and retire");
  key->require_subcommand(1);
  CLI::App* generate = key->add_subcommand("generate", "write a new cluster key");
  generate->add_option("FILE", options.key_file, "the file; - for standard output")
      ->check(named("a file"))
      ->capture_default_str();
  key->add_subcommand("list", "list the keys of this node");
  key->add_subcommand("install", "accept one more key")
      ->add_option("FILE", options.key_file, "a key file on the daemon's machine")
      ->required()
      ->check(named("a key file"));
  key->add_subcommand("use", "dial with this key")
      ->add_option("KEY", options.key, "its id, or how only that one begins; see list")
      ->required()
      ->check(named("the id of a key"));
  key->add_subcommand("retire", "never accept this key again")
      ->add_option("KEY", options.key, "its id, or how only that one begins; see list")
      ->required()
      ->check(named("the id of a key"));
}

}  // namespace

void declare(CLI::App& app, Options& options) {
  declare_globals(app, options);
  declare_membership(app, options);
  declare_training(app, options);
  declare_doctor(app, options);
  declare_checkpoint(app, options);
  declare_keys(app, options);
  app.add_subcommand("help", "show the help of a command")
      ->add_option("COMMAND", options.help_about, "the command, for example job extend");
  app.add_subcommand("version", "print the version");
  CLI::App* completion = app.add_subcommand("completion", "print a completion script");
  completion->add_option("SHELL", options.shell, "whose completion")
      ->check(CLI::IsMember({"bash", "zsh", "fish"}))
      ->capture_default_str();
  completion->footer(
      "bash: source <(gossipctl completion)\n"
      "zsh:  gossipctl completion zsh >DIR/_gossipctl, where DIR is in fpath\n"
      "fish: gossipctl completion fish >~/.config/fish/completions/gossipctl.fish");
}

}  // namespace gossipd
