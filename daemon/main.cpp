// daemon/main.cpp - gossipd: reads the configuration, then hands the thread to the event loop.
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <string_view>
#include <thread>

#include "core/base/disk_full.h"
#include "core/base/printable.h"
#include "daemon/check_job.h"
#include "daemon/config/advertise.h"
#include "daemon/config/config.h"
#include "daemon/config/invite_source.h"
#include "daemon/config/refused_line.h"
#include "daemon/disk/finished_mark.h"
#include "daemon/disk/state_store.h"
#include "daemon/init/init.h"
#include "daemon/job_trial.h"
#include "daemon/log/log.h"
#include "daemon/node_driver.h"
#include "daemon/rest/serve.h"
#include "daemon/service_manager.h"
#include "daemon/start_plan.h"
#include "models/data/count_epoch.h"
#include "models/devices/blas.h"
#include "models/devices/model_files.h"
#include "models/devices/runtime.h"
#include "models/external/segment_list.h"
#include "models/external/trainer_socket.h"
#include "models/files/data_file.h"
#include "models/job/epochs.h"
#include "models/training/torch_engine.h"
#include "net/event_loop.h"
#include "net/peer/invite.h"

namespace {

using namespace gossipd;

// Signals to stop within this time are one request.
constexpr Duration one_request = std::chrono::milliseconds(500);

int fail(const Error& error, int code) {
  const std::string text = without_secrets(error.text);  // a word in it may be a mistaken invite
  std::fprintf(stderr, "gossipd: %s\n", printable(text, Lines::many).c_str());
  return code;
}

void warn(const std::string& text) {
  std::fprintf(stderr, "warning: %s\n", printable(text).c_str());
}

// 78 keeps a supervisor from trying again what only the operator can put right.
int exit_code_of(const Error& error) {
  for (const char* passing : {"state-locked", "io-error", "no-space", "no-memory", "listen",
                              "device-failed", "stop-too-slow", data_unreadable})
    if (error.code == passing) return 1;
  if (error.code == "job-failed") return exit_job_failed;
  return exit_bad_config;
}

// A model that cannot be trained is refused before a cluster is founded with it.
std::optional<Error> check_job(DaemonConfig& config) {
  if (config.job_file.empty()) return std::nullopt;
  const auto samples = count_epoch(config.job_file, config.data_dir);
  if (!samples) return samples.error();
  config.epoch_samples = *samples;
  const auto job = load_job(config.job_file, config.epoch_samples);
  if (!job) return job.error();
  return check_model(*job);
}

// A member has its job already. The file of one before it, or the data in which that was counted,
// may be gone since; what the file says wrongly is still an error.
std::optional<Error> check_given_job(DaemonConfig& config) {
  std::optional<Error> error = check_job(config);
  if (!error || StateStore::is_new(config.state_dir)) return error;
  std::error_code unknown;
  const bool data =
      error->code == "no-data" || error->code == "bad-data" || error->code == data_unreadable;
  if (!data && std::filesystem::exists(config.job_file, unknown)) return error;
  log_warning(error->text + "; this node goes on with the job that it has; leave out --job");
  config.job_file.clear();
  return std::nullopt;
}

std::optional<Error> use_memory_dir(const DaemonConfig& config) {
  const auto wrong = use_model_files(config.exchange_memory_dir);
  if (!wrong) return std::nullopt;
  return Error{"bad-config", "exchange.memory_dir: " + config.exchange_memory_dir + ": " + *wrong +
                                 "; name a directory on a disk with room that this user can write "
                                 "to, or leave it out"};
}

int check_config(DaemonConfig config) {
  if (const auto error = check_job(config)) return fail(*error, exit_bad_config);
  if (!config.peer_tls.ca.empty())
    if (const auto certificates = PeerCertificates::read(config.peer_tls); !certificates)
      return fail(certificates.error(), exit_bad_config);
  for (const auto& wrong : {check_token(config), try_log_file(config.log_file),
                            StateStore::try_directory(config.state_dir)})
    if (wrong) return fail(*wrong, exit_bad_config);
  const Result<TriedJob> tried = try_job(config);
  if (!tried) return fail(tried.error(), exit_bad_config);
  if (const auto error = use_memory_dir(config)) return fail(*error, exit_bad_config);
  for (const std::string& warning : tried->warnings) warn(warning);
  std::fputs(printable(tried->comments + to_toml(config), Lines::many).c_str(), stdout);
  return 0;
}

// With `--until finished`: this node has ended with this job before.
bool is_finished(const DaemonConfig& config, const StartPlan& plan, const StateStore& store) {
  if (config.until != "finished" || plan.kind != StartPlan::Kind::rejoin || !plan.job) return false;
  const Budget& budget = plan.state.budget;
  const FinishedMark mark{plan.job->hash,
                          budget.revision > 0 ? budget.samples : plan.job->budget_samples};
  std::error_code ignored;
  return read_finished_mark(store.directory()) == mark &&
         std::filesystem::exists(store.checkpoint_path("final"), ignored);
}

// One line to paste on another box. It holds the key, so only a person gets it: what is not a
// terminal may be a log that others read.
void print_invite(const StartPlan& plan, const Endpoint& address) {
  if (plan.kind != StartPlan::Kind::found || !plan.keys || ::isatty(STDOUT_FILENO) == 0) return;
  if (is_loopback(address)) std::printf("note: %s\n", printable(only_here(address)).c_str());
  const Invite invite{plan.state.cluster, plan.keys->in_use(), {address}};
  std::printf(
      "\nTo join this cluster from another box (whoever has this line is a member; `gossipctl "
      "invite` prints it again):\n\n    gossipd --join %s --data DIR\n\n",
      format_invite(invite).c_str());
  std::fflush(stdout);
}

bool names_seeds(const std::vector<std::string>& arguments) {
  return std::ranges::any_of(arguments, [](const std::string& word) {
    return word == "--join" || word.starts_with("--join=");
  });
}

// The first process of a container loses a signal that it does not handle, and handlers end with
// execv(): meanwhile the signals to stop are held back, until the new program has its own.
void hold_stop_signals(bool held) {
  sigset_t signals;
  ::sigemptyset(&signals);
  for (const int number : {SIGTERM, SIGINT}) ::sigaddset(&signals, number);
  ::pthread_sigmask(held ? SIG_BLOCK : SIG_UNBLOCK, &signals, nullptr);
}

// From now on a signal to stop waits for the new program, whichever thread it comes to: execv()
// keeps what is pending for the thread that calls it, and the other threads do not block it.
void keep_stop_signals() {
  static pthread_t keeper;
  keeper = ::pthread_self();
  hold_stop_signals(true);
  for (const int number : {SIGTERM, SIGINT})
    std::signal(number, [](int caught) { ::pthread_kill(keeper, caught); });
}

// With the same arguments, but for invites, which may be gone. Seeds of the node file and the
// environment stay there, where SIGHUP looks for them; a member does without an invite that is gone
// from there. Only nobody is to be asked for one again.
int start_again(const std::vector<std::string>& arguments, const DaemonConfig& config,
                char* program) {
  std::vector<std::string> words = names_seeds(arguments) || invite_was_asked_for()
                                       ? without_invites(arguments, config.join)
                                       : arguments;
  std::vector<char*> argv{program};
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::signal(SIGHUP, SIG_IGN);            // its default, until main() ignores it, would be the end
  ::execv("/proc/self/exe", argv.data());  // what is open is closed by it
  const std::string why = std::strerror(errno);
  return fail(Error{"io-error", "cannot start again: " + why + "; start gossipd by hand"}, 1);
}

// Where the log goes to standard error, the last word is a line of the log as well, which parses.
int fail_logged(const DaemonConfig& config, const Error& error, int code) {
  if (config.log_format == LogFormat::text || !config.log_file.empty()) return fail(error, code);
  log_line(Level::error, "event=failed code=" + log_word(error.code) +
                             " reason=" + log_quoted(mistakes_in_log(error)));
  flush_log();
  return code;
}

// Before there is a log.
int refuse_start(DaemonConfig config, const Error& error, int code) {
  config.log_file.clear();
  if (open_log({.level = "info", .file = "", .format = config.log_format, .node = config.name}))
    return fail(error, code);
  return fail_logged(config, error, code);
}

// An exception that nobody expected, on whatever thread; mostly of a machine out of memory.
[[noreturn]] void end_with_a_word() {
  static std::atomic_flag said;
  std::string code = "internal", reason = "an unexpected end; please report it";
  try {
    if (const auto cause = std::current_exception()) std::rethrow_exception(cause);
  } catch (const std::bad_alloc&) {
    code = "no-memory";
    reason =
        "no memory is left for this process: a smaller model or batch needs less, and a limit "
        "(ulimit -v, a container's) may be raised; a restart goes on from the last checkpoint";
  } catch (const std::exception& error) {
    reason = error.what();
  } catch (...) {
  }
  if (!said.test_and_set())
    log_last_words("event=failed code=" + code + " reason=" + log_quoted(reason));
  std::abort();
}

// The configuration as files and environment have it now. Seeds of the command line stay, and
// those of an invite that is gone.
Result<DaemonConfig> configured_now(const std::vector<std::string>& arguments,
                                    const DaemonConfig& config) {
  const Result<CommandLine> line = read_command_line(
      names_seeds(arguments) ? without_invites(arguments, config.join) : arguments,
      process_environment());
  if (!line) return line.error();
  DaemonConfig now = line->config;
  keep_seeds_of_lost_invite(now, config);
  return now;
}

// The founder of an external job waits here for the model that the cluster is about. Nothing runs
// yet, so a signal just ends it.
Result<JobFile> first_segments(const std::string& job_name, const StateStore& store,
                               TrainerSocket& socket) {
  socket.wait("preparing", "the daemon founds the cluster of job '" + job_name + "'");
  log_line(Level::info, "event=waiting-for-trainer socket=" + log_quoted(socket.path()) +
                            " hint=\"the first trainer's model is the cluster's: start it\"");
  flush_log();
  {
    EventLoop not_run;
    ServiceManager(not_run, service_environment()).waits_for("a trainer at " + socket.path());
  }
  const std::string list = format_segment_list(socket.first_schema().segments());
  const JobFile content = content_of_segment_list(list);
  const auto bytes = std::as_bytes(std::span(list));
  const Result<bool> kept = store.files().add_piece(content, 0, Bytes(bytes.begin(), bytes.end()));
  if (!kept) return kept.error();
  return content;
}

// Opens `socket` where the job may be external. A joiner hears from the cluster whether it is, and
// until then a trainer may wait there.
Result<StartPlan> make_plan_with_socket(const DaemonConfig& config, const StateStore& store,
                                        std::unique_ptr<TrainerSocket>& socket) {
  const auto open = [&]() -> std::optional<Error> {
    auto opened = TrainerSocket::open(config.trainer_socket.empty()
                                          ? (store.directory() / "trainer.sock").string()
                                          : config.trainer_socket);
    if (!opened) return opened.error();
    socket = std::move(*opened);
    return std::nullopt;
  };
  const bool may_open = config.trainer_socket != "none";
  FirstSegments segments;
  if (may_open)
    segments = [&](const std::string& job) -> Result<JobFile> {
      if (auto error = open()) return *error;
      return first_segments(job, store, *socket);
    };
  Result<StartPlan> plan = make_start_plan(config, store, segments);
  if (!plan) return plan;
  if (may_open && !socket && (!plan->job || plan->job->is_external))
    if (auto error = open()) return *error;
  return plan;
}

// The first signal that asked for the end.
struct StopAsked {
  Instant at;
  int signal = 0;
};

// What follows once the loop has stopped.
int end_of(EventLoop& loop, const NodeDriver& driver, const DaemonConfig& config,
           const std::optional<StopAsked>& stop_asked, const std::vector<std::string>& arguments,
           char* program) {
  if (driver.restart_wanted()) {
    keep_stop_signals();
    loop.run_ready();  // a SIGTERM while the log was flushed
  }
  const std::optional<Error>& failure = driver.failure();
  if (!failure && driver.restart_wanted() && !stop_asked)
    return start_again(arguments, config, program);
  // To a scheduler 0 says that the job is done, so that what waits for the model may begin.
  const bool broken_off = stop_asked && config.until == "finished" && !driver.job_finished();
  const int code = broken_off ? 128 + stop_asked->signal : 0;
  if (!failure && !driver.left_trainer_behind()) return code;
  flush_log();
  // A trainer that did not stop in time must not hold up the exit: everything durable is written.
  std::_Exit(failure ? fail_logged(config, *failure, exit_code_of(*failure)) : code);
}

int run(const CommandLine& line, const std::vector<std::string>& arguments, char* program) {
  DaemonConfig config = line.config;
  if (!config.name_given)
    if (const std::string kept = StateStore::kept_name(config.state_dir); !kept.empty())
      config.name = kept;
  // nor may another process of this user read its memory
  if (!config.core_dumps) ::prctl(PR_SET_DUMPABLE, 0);
  const LogOptions log{config.log_level, config.log_file, config.log_format, config.name};
  if (auto error = open_log(log)) return refuse_start(config, *error, exit_code_of(*error));
  std::set_terminate(end_with_a_word);
  for (const std::string& warning : line.warnings) log_warning(warning);
  prepare_training_process(static_cast<int>(
      config.threads != 0 ? config.threads : std::max(1u, std::thread::hardware_concurrency())));

  if (const auto error = check_given_job(config))
    return fail_logged(config, *error, exit_code_of(*error));
  // Now: a member that exits after it has joined is missed by the others.
  if (const auto error = check_device(config.device))
    return fail_logged(config, *error, exit_code_of(*error));
  for (const auto refused :
       {refuse_new_node, refuse_first_weights, check_token, use_memory_dir, refuse_busy_ports})
    if (const auto error = refused(config))
      return fail_logged(config, *error, exit_code_of(*error));
  Result<StateStore> store = StateStore::open(config.state_dir);
  if (!store) return fail_logged(config, store.error(), exit_code_of(store.error()));
  std::unique_ptr<TrainerSocket> socket;
  const Result<StartPlan> plan = make_plan_with_socket(config, *store, socket);
  if (!plan) return fail_logged(config, plan.error(), exit_code_of(plan.error()));

  if (is_finished(config, *plan, *store)) {
    log_line(Level::info,
             "event=job-finished why=" +
                 log_quoted("this node finished job " + to_hex(plan->job->hash) + " before") +
                 " final=" + log_quoted(store->checkpoint_path("final").string()) +
                 " hint=\"without --until finished it goes on as a member\"");
    flush_log();
    return 0;
  }

  EventLoop loop;
  NodeDriver driver(loop, config, *store, socket.get());
  driver.find_own_address(*plan);  // a signal just ends it
  std::optional<StopAsked> stop_asked;
  // Before it tells the service manager that it is ready, and may be stopped.
  loop.on_signals({SIGTERM, SIGINT, SIGHUP}, [&](int number) {
    if (number == SIGHUP) return driver.reload(configured_now(arguments, config));
    // `timeout` and others signal a process and then its group: that is one request.
    if (stop_asked && EventLoop::now() - stop_asked->at > one_request) std::_Exit(128 + number);
    if (!stop_asked) stop_asked = {EventLoop::now(), number};
    driver.stop(number == SIGTERM ? "SIGTERM" : "SIGINT");
  });
  if (auto error = driver.start(*plan)) return fail_logged(config, *error, exit_code_of(*error));
  if (const NoCuda why = why_on_cpu(config.device); !why.text.empty())
    log_line(why.urgent ? Level::warning : Level::info,
             "event=device device=cpu reason=" + log_quoted(why.text));
  print_invite(*plan, driver.address());
  loop.run();
  return end_of(loop, driver, config, stop_asked, arguments, program);
}

}  // namespace

// After a start through /proc/self/exe the process is called "exe", and ps, pgrep -x and killall
// would not find it.
void take_own_name(const char* program) {
  char now[16] = "";
  if (::prctl(PR_GET_NAME, now) == 0 && std::string_view(now) == "exe")
    ::prctl(PR_SET_NAME, ::basename(program));
}

// The exit code of what only prints: 1 in place of 0 where a part was not written.
int once_written(int code) {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  const int error = errno;
  const std::string reason = error == 0 ? "" : std::string(" (") + std::strerror(error) + ")";
  std::fprintf(stderr,
               "gossipd: standard output cannot be written%s; what it was sent to lacks a part%s\n",
               reason.c_str(), disk_hint(error));
  return code == 0 ? 1 : code;
}

// The kernel withholds a signal's default from the first process of a container, so that reading
// the data or waiting for a trainer could not be ended.
void die_as_first_process() {
  if (::getpid() != 1) return;
  for (const int number : {SIGTERM, SIGINT})
    std::signal(number, [](int caught) { ::_exit(128 + caught); });
}

int main(int argc, char** argv) {
  take_own_name(argv[0]);
  die_as_first_process();
  hold_stop_signals(false);  // as they were before execv()
  end_with_daemon();
  std::signal(SIGHUP, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (!arguments.empty() && arguments[0] == "init")
    return once_written(run_init({arguments.begin() + 1, arguments.end()}));
  hold_stop_signals(true);
  use_best_blas(argv[0], arguments);  // before anything is read that can be read once
  hold_stop_signals(false);
  hide_invites(argc, argv);
  const Result<CommandLine> line = read_command_line(arguments, process_environment());
  if (!line) {
    const bool checks = std::ranges::find(arguments, "--check-config") != arguments.end();
    return refuse_start(config_of_refusal(arguments, process_environment()), line.error(),
                        checks ? exit_bad_config : exit_code_of(line.error()));
  }
  switch (line->action) {
    case CommandLine::Action::print_and_exit:
      std::fputs(line->output.c_str(), stdout);
      return once_written(0);
    case CommandLine::Action::check_config:
      for (const std::string& warning : line->warnings) warn(warning);
      return once_written(check_config(line->config));
    case CommandLine::Action::run: break;
  }
  return run(*line, arguments, argv[0]);
}
