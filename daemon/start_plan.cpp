#include "daemon/start_plan.h"

#include <algorithm>

#include "core/node/job_generation.h"
#include "models/data/data_set.h"
#include "models/job/epochs.h"
#include "net/free_port.h"

namespace gossipd {

std::optional<Error> check_data(const Job& job, const DaemonConfig& config,
                                const std::string& start) {
  if (config.data_dir.empty())
    return Error{"no-data", "the data of job '" + job.name + "' is not named; " + start +
                                " with --data DIR, where DIR holds " + files_wanted(job.data)};
  LoadOptions options;
  options.directory = config.data_dir;
  options.seed = job.seed;
  const auto sets = load_data(job.data, options);
  if (!sets) return sets.error();
  return check_shard(job, config, sets->train->count());
}

std::optional<Error> check_shard(const Job& job, const DaemonConfig& config, std::size_t samples) {
  if (config.shard_count == 0) return std::nullopt;
  const std::string shard = shard_words(config);
  if (job.model.kind == ModelSpec::Kind::external)
    return Error{"bad-config", "shard: " + shard + " is given by hand, but job '" + job.name +
                                   "' is trained by a process that attaches and has its own "
                                   "data; take --shard out"};
  if (job.data.division == DataSpec::Division::shared)
    return Error{"bad-config",
                 "shard: " + shard + " is given by hand, but the nodes of job '" + job.name +
                     "' divide the set among themselves (division = \"shared\"); take --shard "
                     "out, or write division = \"own\" under [data] of the job"};
  if (samples > 0 && samples < config.shard_count)
    return Error{"bad-config", "shard: of " + shard +
                                   " some would be empty, since there are only " +
                                   std::to_string(samples) +
                                   " training samples; use fewer shards, or give --data a "
                                   "directory with more"};
  return std::nullopt;
}

namespace {

Error bad_config(std::string text) { return Error{"bad-config", std::move(text)}; }

Error nothing_to_do(const std::string& state_dir) {
  return bad_config("nothing to do: " + state_dir +
                    " belongs to no cluster yet; found one with --job FILE, or join one with "
                    "--join and what `gossipctl invite` prints on a member");
}

Error no_key_file(const std::string& path) {
  return bad_config("key_file: " + path +
                    " does not exist; copy the cluster's key file from a member" +
                    " (its founder wrote it), readable by its owner only");
}

Error no_secret(const std::string& what, const std::string& state_dir) {
  return bad_config(
      what + " needs the cluster's secret, and there is none in " + state_dir +
      "; give --join an invite (`gossipctl invite` on a member prints one), --key-file FILE (the "
      "founder wrote it), peer_tls.* where the cluster uses certificates, or --key-file none for "
      "a cluster in plain on this machine");
}

bool lies_there(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

std::optional<Error> founders_data(const DaemonConfig& config) {
  const Result<Job> job = load_job(config.job_file, config.epoch_samples);
  if (!job) return job.error();
  if (job->model.kind == ModelSpec::Kind::external) return std::nullopt;
  return check_data(*job, config, "start");
}

KnownJob known(const Job& job) {
  return KnownJob{.document = job.canonical_text(),
                  .hash = job.hash(),
                  .budget_samples = job.budget_samples,
                  .name = job.name,
                  .file = job.model.content,
                  .file_from = "",
                  .starts_from_file = job.start_content.bytes > 0,
                  .start_from = "",
                  .is_external = job.model.kind == ModelSpec::Kind::external};
}

Result<StartPlan> read_identity(const DaemonConfig& config, const StateStore& store) {
  const Result<StoredState> stored = store.load_state();
  if (!stored) return stored.error();
  StartPlan plan;
  if (!stored->fallback_reason.empty())
    plan.warnings.push_back(stored->fallback_reason +
                            "; set aside as *.corrupt.json, the previous one is used");
  if (stored->state) plan.state = *stored->state;
  if (auto error = store.set_former_job_aside(plan.state)) return *error;
  if (config.name_given) plan.state.name = config.name;
  if (plan.state.id == NodeId{}) plan.state.id = NodeId{random_64()};
  return plan;
}

bool knows_somebody(const DaemonConfig& config, const NodeState& state) {
  return !config.join.empty() || std::ranges::any_of(state.members, [](const MemberRecord& member) {
    return member.state != MemberState::left && member.state != MemberState::forgotten;
  });
}

// A cluster that nobody joined and in which nothing was trained, for example because its job did
// not work, binds nobody.
bool is_unused(const NodeState& state) {
  return state.members.empty() && state.own_samples == 0 && !state.left &&
         state.generation == JobGeneration::founding;
}

void forget_cluster(StartPlan& plan) {
  plan.warnings.push_back("the job has changed since job " + to_hex(plan.state.job) +
                          " founded a cluster in which nothing was trained; a new cluster begins");
  NodeState fresh;
  fresh.id = plan.state.id;
  fresh.name = plan.state.name;
  fresh.incarnation = plan.state.incarnation;
  plan.state = std::move(fresh);
  plan.job.reset();
}

// The stored job is of no use, by `reason`: the job file that is given again replaces it, or the
// cluster is asked for it. With neither, waiting would have no end.
std::optional<Error> replace_stored_job(const DaemonConfig& config, const StateStore& store,
                                        const std::string& reason, StartPlan& plan) {
  if (!config.job_file.empty()) {
    const Result<Job> job = load_job(config.job_file, config.epoch_samples);
    if (!job) return job.error();
    if (job->hash() != plan.state.job && is_unused(plan.state)) {
      forget_cluster(plan);
      return std::nullopt;
    }
    if (job->hash() != plan.state.job)
      return Error{"other-job", reason + "; and " + config.job_file + " is another job, " +
                                    to_hex(job->hash()) + " (" + job->name +
                                    "); name the job file that this node began with"};
    plan.warnings.push_back(reason + "; written again from " + config.job_file +
                            ", and kept as job.previous.toml");
    plan.job = known(*job);
    return std::nullopt;
  }
  if (!knows_somebody(config, plan.state))
    return Error{"bad-state", reason +
                                  ", and no other member is known that could send the job; start "
                                  "once with --job FILE, the job file that this node began with, "
                                  "or put back " +
                                  (store.directory() / "job.toml").string() +
                                  " from a backup; nothing was changed or removed"};
  plan.warnings.push_back(reason + "; asking the cluster for the job");
  plan.state.job = JobHash{};
  return std::nullopt;
}

// The job that the stored state names.
std::optional<Error> read_stored_job(const DaemonConfig& config, const StateStore& store,
                                     StartPlan& plan) {
  if (plan.state.job == JobHash{}) return std::nullopt;
  const Result<StoredJob> stored = store.load_job(plan.state.job);
  if (!stored) return stored.error();
  if (!stored->document) return replace_stored_job(config, store, stored->fallback_reason, plan);
  if (!stored->fallback_reason.empty()) plan.warnings.push_back(stored->fallback_reason);
  const std::string path = (store.directory() / "job.toml").string();
  const Result<Job> job = Job::parse(*stored->document, path);
  if (job && job->hash() == plan.state.job) {
    plan.job = known(*job);
    return std::nullopt;
  }
  return replace_stored_job(config, store,
                            path + ": is not understood by this version" +
                                (job ? std::string() : " (" + job.error().text + ")"),
                            plan);
}

// A job file says kind = "external" and no more: the rest of the job is the cluster's already, or
// the first trainer's to say.
std::optional<Error> complete(const DaemonConfig& config, const StartPlan& plan,
                              const FirstSegments& first_segments, Job& job) {
  if (job.model.kind != ModelSpec::Kind::external || job.model.content.bytes > 0)
    return std::nullopt;
  if (plan.job) job.model.content = plan.job->file;
  if (plan.job && (job.hash() == plan.job->hash || !is_unused(plan.state))) return std::nullopt;
  job.model.content = {};
  if (!config.join.empty() && !config.ordinal)
    return bad_config("job: " + config.job_file +
                      " does not say the model's segments, so it cannot be compared with the "
                      "cluster's job; leave out --job to join, the cluster has it");
  if (!first_segments)
    return bad_config("trainer.socket is none, but job '" + job.name +
                      "' is trained by a process that attaches there; leave trainer.socket out");
  Result<JobFile> segments = first_segments(job.name);
  if (!segments) return segments.error();
  job.model.content = *segments;
  return std::nullopt;
}

std::optional<Error> read_job_file(const DaemonConfig& config, const StateStore& store,
                                   const FirstSegments& first_segments, StartPlan& plan) {
  if (config.job_file.empty()) return std::nullopt;
  Result<Job> job = load_job(config.job_file, config.epoch_samples);
  if (!job) return job.error();
  // All of a fixed set have one command line; node 0's first trainer completes the job for all.
  const bool gets_it_from_node_0 = config.ordinal.value_or(0) != 0 && !plan.job &&
                                   job->model.kind == ModelSpec::Kind::external &&
                                   job->model.content.bytes == 0;
  if (gets_it_from_node_0) return std::nullopt;
  if (auto error = complete(config, plan, first_segments, *job)) return error;
  if (plan.job && plan.job->hash != job->hash() && is_unused(plan.state)) forget_cluster(plan);
  // The command line still names the job that the cluster was founded with, or an earlier one.
  if (plan.job && plan.job->hash != job->hash() &&
      plan.state.generation > JobGeneration::founding) {
    plan.warnings.push_back(config.job_file + ": is job " + to_hex(job->hash()) + " (" + job->name +
                            "), but the cluster has gone on to job " + to_hex(plan.job->hash) +
                            " (" + plan.job->name + "), which this node trains; leave out --job");
    return std::nullopt;
  }
  if (plan.job && plan.job->hash != job->hash())
    return Error{"other-job",
                 config.job_file + ": is job " + to_hex(job->hash()) + " (" + job->name +
                     "), but this node trains job " + to_hex(plan.job->hash) + " (" +
                     plan.job->name + "), kept in " + store.directory().string() +
                     "; leave out --job to go on with it, or give the new job its own --state-dir"};
  plan.job = known(*job);
  plan.job->file_from = job->model.file;
  plan.job->start_from = job->start_from;
  return std::nullopt;
}

// The first of a fixed set: it joins, or founds where all others say that they have no cluster.
std::optional<Error> let_found(const DaemonConfig& config, StartPlan& plan) {
  if (config.job_file.empty())
    return bad_config(
        "bootstrap: this is node 0, which founds the cluster, so it needs the job; give --job "
        "FILE");
  plan.founds = ClusterId{random_64()};
  return std::nullopt;
}

// A joiner that has a state but has reached nobody yet needs its invite still; without, it would
// found a second cluster with its --job.
std::optional<Error> refuse_lost_invite(const DaemonConfig& config, const StartPlan& plan) {
  if (!config.invite_missing || plan.state.cluster != ClusterId{}) return std::nullopt;
  return bad_config("join: " + config.invite_missing->text);
}

std::optional<Error> choose_kind(const DaemonConfig& config, const StateStore& store,
                                 StartPlan& plan) {
  if (auto error = refuse_lost_invite(config, plan)) return error;
  if (plan.state.cluster != ClusterId{}) {
    plan.kind = StartPlan::Kind::rejoin;
  } else if (!config.join.empty()) {
    plan.kind = StartPlan::Kind::join;
    if (config.ordinal == 0u) return let_found(config, plan);
  } else if (!config.job_file.empty()) {
    plan.kind = StartPlan::Kind::found;
    plan.state.cluster = ClusterId{random_64()};
    plan.state.job = plan.job->hash;
    plan.state.founder = true;
  } else {
    return nothing_to_do(store.directory().string());
  }
  return std::nullopt;
}

std::optional<Error> write_new_key(const std::string& path, StartPlan& plan) {
  const Result<ClusterKey> key = generate_cluster_key();
  if (!key) return key.error();
  if (auto error = write_cluster_key(path, *key)) return error;
  plan.keys = *key;
  plan.key_written = path;
  return std::nullopt;
}

// A key file that is named at every start tells of one key; what `gossipctl key` did to it since
// lies in STATE, also of a node that has not joined yet.
std::optional<Error> prefer_kept_keys(const StateStore& store, const std::string& given,
                                      StartPlan& plan) {
  const Result<Keyring> kept = read_keyring(store.key_path().string());
  // Kept keys that cannot be read may be newer than the given one, which may have been retired.
  if (!kept && kept.error().code != "key-missing") return kept.error();
  if (!kept) return std::nullopt;
  const std::uint64_t id = plan.keys->in_use().id;
  if (kept->was_retired(id))
    plan.warnings.push_back("the key " + to_hex(id) + " of " + given +
                            " was retired on this node; it uses " + to_hex(kept->in_use().id) +
                            " from " + store.key_path().string() + "; take " + given +
                            " out of the configuration");
  if (kept->was_retired(id) || kept->find(id) != nullptr) plan.keys = *kept;
  return std::nullopt;
}

std::optional<Error> read_certificates(const DaemonConfig& config, StartPlan& plan) {
  const Result<PeerCertificates> certificates = PeerCertificates::read(config.peer_tls);
  if (!certificates) return certificates.error();
  plan.certificates = *certificates;
  return std::nullopt;
}

// As a key file: at a restart with the same command line, what the node has kept since counts more.
std::optional<Error> take_invited_key(const DaemonConfig& config, const StateStore& store,
                                      StartPlan& plan) {
  const Invite& invite = *config.invite;
  const bool member = plan.kind == StartPlan::Kind::rejoin;
  if (member && plan.state.cluster != invite.cluster)
    return bad_config("join: the invite is to cluster " + to_hex(invite.cluster) +
                      ", but this node belongs to cluster " + to_hex(plan.state.cluster) +
                      ", kept in " + store.directory().string() +
                      "; leave the invite out to go on there, or give --state-dir DIR for a new "
                      "node");
  plan.keys = invite.key;
  return prefer_kept_keys(store, "the invite", plan);
}

std::optional<Error> choose_key(const DaemonConfig& config, const StateStore& store,
                                StartPlan& plan) {
  if (!config.peer_tls.ca.empty()) return read_certificates(config, plan);
  if (config.invite) return take_invited_key(config, store, plan);
  if (config.key_file == "none") return std::nullopt;
  const bool founding = plan.kind == StartPlan::Kind::found;
  const std::string path = config.key_file.empty() ? store.key_path().string() : config.key_file;
  if (!lies_there(path)) {
    if (founding) return write_new_key(path, plan);
    if (!config.key_file.empty()) return no_key_file(path);
    return no_secret(plan.kind == StartPlan::Kind::join ? "joining" : "going on as a member",
                     store.directory().string());
  }
  Result<Keyring> keys = read_keyring(path);
  if (!keys) return keys.error();
  plan.keys = *keys;
  if (!config.key_file.empty()) return prefer_kept_keys(store, "key_file " + path, plan);
  return std::nullopt;
}

std::optional<Error> choose_listen(const DaemonConfig& config, StartPlan& plan) {
  const bool safe = plan.keys || plan.certificates;
  plan.listen = config.listen.value_or(Endpoint{safe ? "*" : "127.0.0.1", peer_port_default});
  if (!safe && !is_loopback(plan.listen))
    return bad_config("listen: " + to_string(plan.listen) +
                      " is beyond loopback, but this cluster has no key and travels in plain; "
                      "listen on 127.0.0.1, or start the cluster with a key or certificates");
  return std::nullopt;
}

std::optional<Error> refuse_joiners_key(const DaemonConfig& config) {
  if (!config.peer_tls.ca.empty() || config.invite || config.key_file == "none")
    return std::nullopt;
  const bool named = !config.key_file.empty();
  const std::string path = named ? config.key_file : config.state_dir + "/cluster.key";
  if (!lies_there(path)) return named ? no_key_file(path) : no_secret("joining", config.state_dir);
  if (const Result<Keyring> keys = read_keyring(path); !keys) return keys.error();
  return std::nullopt;
}

}  // namespace

const char* to_string(StartPlan::Kind kind) {
  switch (kind) {
    case StartPlan::Kind::found: return "found";
    case StartPlan::Kind::join: return "join";
    case StartPlan::Kind::rejoin: return "rejoin";
  }
  return "?";
}

std::optional<Error> refuse_new_node(const DaemonConfig& config) {
  if (auto error = StateStore::why_hidden(config.state_dir)) return error;
  if (!StateStore::is_new(config.state_dir)) return std::nullopt;
  if (config.join.empty() && config.job_file.empty()) return nothing_to_do(config.state_dir);
  if (config.ordinal == 0u && config.job_file.empty()) {
    StartPlan ignored;
    return let_found(config, ignored);
  }
  if (config.join.empty()) return founders_data(config);
  if (config.ordinal == 0u)
    if (auto error = founders_data(config)) return error;
  return refuse_joiners_key(config);
}

std::optional<Error> refuse_busy_ports(const DaemonConfig& config) {
  if (!StateStore::is_new(config.state_dir)) return std::nullopt;
  const bool plain = config.key_file == "none";
  std::vector<std::pair<std::string, Endpoint>> wanted = {
      {"listen", config.listen.value_or(Endpoint{plain ? "127.0.0.1" : "*", peer_port_default})}};
  Endpoint rest;
  if (config.rest != "none" && !config.rest.starts_with("unix:") &&
      parse_endpoint(config.rest, rest_port_default, rest))
    wanted.emplace_back("rest.listen", rest);
  if (config.metrics_listen) wanted.emplace_back("metrics.listen", *config.metrics_listen);
  for (const auto& [key, where] : wanted)
    if (const auto error = refuse_busy_port(where))
      return Error{error->code, key + ": " + error->text};
  return std::nullopt;
}

Result<StartPlan> make_start_plan(const DaemonConfig& config, const StateStore& store,
                                  const FirstSegments& first_segments) {
  Result<StartPlan> plan = read_identity(config, store);
  if (!plan) return plan;
  // also before a trainer is waited for
  if (auto error = refuse_lost_invite(config, *plan)) return *error;
  if (auto error = read_stored_job(config, store, *plan)) return *error;
  if (auto error = read_job_file(config, store, first_segments, *plan)) return *error;
  if (auto error = choose_kind(config, store, *plan)) return *error;
  if (auto error = choose_key(config, store, *plan)) return *error;
  if (auto error = choose_listen(config, *plan)) return *error;
  return plan;
}

}  // namespace gossipd
