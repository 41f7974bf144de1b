#include "daemon/disk/state_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <concepts>
#include <cstring>
#include <ctime>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "core/base/lasting_error.h"
#include "core/base/nesting.h"
#include "core/base/printable.h"
#include "daemon/disk/durable_file.h"
#include "models/files/regular_file.h"

namespace gossipd {

namespace {

using Json = nlohmann::json;

constexpr int state_format = 1;
constexpr std::uint64_t down_max_s = 365 * 24 * 3600;
constexpr std::uint64_t clock_step_s = 300;  // a clock is put right by less every day

std::uint64_t checksum(const std::string& text) { return XXH3_64bits(text.data(), text.size()); }

std::int64_t unix_now() { return static_cast<std::int64_t>(std::time(nullptr)); }

double finite(double value) { return std::isfinite(value) ? value : 0; }

Json to_json(const MemberRecord& r, bool met) {
  return {{"id", to_hex(r.id)},
          {"met", met},
          {"name", r.name},
          {"host", r.address.host},
          {"port", r.address.port},
          {"incarnation", r.incarnation},
          {"state", to_string(r.state)},
          {"tick", r.tick},
          {"news", r.news},
          {"phase", to_string(r.phase)},
          {"samples", r.samples},
          {"step", r.step},
          {"samples_per_second", finite(r.samples_per_second)},
          {"batch", r.batch},
          {"loss", finite(r.loss)},
          {"consensus_distance", finite(r.consensus_distance)}};
}

// The exceptions of these readers end in parse_node_state().
std::uint64_t id_from(const Json& json, const char* key) {
  std::uint64_t id = 0;
  if (!from_hex(json.at(key).get<std::string>(), id))
    throw std::invalid_argument(std::string(key) + " is no id");
  return id;
}

// nlohmann would convert a float, undefined beyond the integer's range.
template <std::unsigned_integral T>
T whole_from(const Json& json, const char* key, std::optional<T> if_missing = {}) {
  if (if_missing && !json.contains(key)) return *if_missing;
  const Json& value = json.at(key);
  // a positive number as a program may set it is signed
  if (!value.is_number_integer() || value < 0 || !std::in_range<T>(value.get<std::uint64_t>()))
    throw std::invalid_argument(std::string(key) + " is no whole number from 0 to " +
                                std::to_string(std::numeric_limits<T>::max()));
  return value.get<T>();
}

template <typename E>
E word_from(const Json& json, const char* key, E last) {
  const std::string word = json.at(key).get<std::string>();
  for (int i = 0; i <= static_cast<int>(last); ++i)
    if (word == to_string(static_cast<E>(i))) return static_cast<E>(i);
  throw std::invalid_argument(std::string(key) + " '" + word + "' is unknown");
}

MemberRecord record_from(const Json& json) {
  MemberRecord r;
  r.id = NodeId{id_from(json, "id")};
  r.name = json.at("name").get<std::string>();
  r.address = {json.at("host").get<std::string>(), whole_from<std::uint16_t>(json, "port")};
  r.incarnation = whole_from<std::uint64_t>(json, "incarnation");
  r.state = word_from(json, "state", MemberState::forgotten);
  r.tick = whole_from<std::uint64_t>(json, "tick");
  r.news = whole_from<std::uint64_t>(json, "news", 0);  // missing in the files of older versions
  r.phase = word_from(json, "phase", Phase::waiting_for_trainer);
  r.samples = whole_from<Samples>(json, "samples");
  r.step = whole_from<Step>(json, "step");
  r.samples_per_second = json.at("samples_per_second").get<double>();
  r.batch = whole_from<std::uint32_t>(json, "batch");
  r.loss = json.at("loss").get<double>();
  r.consensus_distance = json.value("consensus_distance", 1.0);
  return r;
}

// Missing in the files of older versions. One that no operator could have given is none.
std::string name_from(const Json& json) {
  const std::string name = json.value("name", std::string());
  return name.size() <= name_bytes_max && log_word(name) == name ? name : std::string();
}

// A clock that is behind, as that of a box which has lost the time, does not tell how old the state
// is, and neither does a state without a time. Then the others may know any number of this node's
// samples: bounded by too short a time they would never be believed.
void read_times(const Json& json, std::int64_t unix_s, NodeState& s) {
  const auto now = static_cast<std::uint64_t>(std::max<std::int64_t>(unix_s, 0));
  const auto written = whole_from<std::uint64_t>(json, "written_unix_s", 0);
  const bool is_known = written > 0 && written <= now + clock_step_s;
  // both were cut to whole seconds
  const std::uint64_t since_s = is_known ? now - std::min(written, now) + 1 : 1;
  const std::uint64_t unsure_s =
      is_known ? whole_from<std::uint64_t>(json, "unsure_s", 0) : down_max_s;
  s.down_for = std::chrono::seconds(std::min(since_s, down_max_s));
  s.unsure_for = std::chrono::seconds(std::min(unsure_s, down_max_s));
}

NodeState state_from(const Json& json, std::int64_t unix_s) {
  NodeState s;
  s.id = NodeId{id_from(json, "id")};
  s.cluster = ClusterId{id_from(json, "cluster")};
  s.incarnation = whole_from<std::uint64_t>(json, "incarnation");
  s.left = json.at("left").get<bool>();
  s.paused = json.value("paused", false);  // missing in the files of older versions
  s.name = name_from(json);
  s.founder = json.value("founder", false);  // missing in the files of older versions
  s.job = JobHash{id_from(json, "job")};
  // Missing in the files of older versions.
  s.generation = whole_from<std::uint64_t>(json, "generation", 1);
  if (json.contains("meeting_in")) s.meeting_in = ClusterId{id_from(json, "meeting_in")};
  if (json.contains("former_job")) s.former_job = JobHash{id_from(json, "former_job")};
  s.former_generation = whole_from<std::uint64_t>(json, "former_generation", 0);
  s.own_samples = whole_from<Samples>(json, "own_samples");
  // Missing in the files of older versions.
  s.budget = Budget{whole_from<std::uint64_t>(json, "budget_revision", 0),
                    whole_from<Samples>(json, "budget_samples", 0)};
  s.samples_per_second = json.value("samples_per_second", 0.0);
  if (json.contains("former_id")) s.former_id = NodeId{id_from(json, "former_id")};
  s.former_samples = whole_from<Samples>(json, "former_samples", 0);
  read_times(json, unix_s, s);
  const Json& members = json.at("members");
  if (members.size() > members_max) throw std::invalid_argument("too many members");
  for (const Json& member : members) {
    s.members.push_back(record_from(member));
    // missing in the files of older versions
    if (member.value("met", false)) s.met.insert(s.members.back().id);
  }
  return s;
}

Error cannot_create(const std::filesystem::path& directory, const std::error_code& reason) {
  return Error{is_lasting(reason.value()) ? "bad-config" : "io-error",
               directory.string() + ": cannot create it: " + reason.message() +
                   "; choose another --state-dir"};
}

// 0: it is there; ENOENT: it is not; else why that cannot be told.
int why_not_seen(const std::filesystem::path& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0) return 0;
  return errno == ENOTDIR ? ENOENT : errno;
}

Error cannot(const std::filesystem::path& path, const char* doing) {
  return Error{is_lasting(errno) ? "bad-config" : "io-error",
               path.string() + ": cannot " + doing + ": " + std::strerror(errno) +
                   "; check who owns it, or choose another --state-dir"};
}

}  // namespace

std::uint64_t random_64() {
  std::uint64_t value = 0;
  while (value == 0) {
    const ssize_t got = ::getrandom(&value, sizeof value, 0);
    if (got != static_cast<ssize_t>(sizeof value)) value = 0;  // a signal came in between
  }
  return value;
}

std::string format_node_state(const NodeState& state, std::int64_t unix_s) {
  Json members = Json::array();
  for (const MemberRecord& r : state.members)
    members.push_back(to_json(r, state.met.contains(r.id)));
  const Json body = {
      {"id", to_hex(state.id)},
      {"cluster", to_hex(state.cluster)},
      {"incarnation", state.incarnation},
      {"left", state.left},
      {"paused", state.paused},
      {"name", state.name},
      {"founder", state.founder},
      {"job", to_hex(state.job)},
      {"generation", state.generation},
      {"meeting_in", to_hex(state.meeting_in)},
      {"former_job", to_hex(state.former_job)},
      {"former_generation", state.former_generation},
      {"own_samples", state.own_samples},
      {"budget_revision", state.budget.revision},
      {"budget_samples", state.budget.samples},
      {"samples_per_second", finite(state.samples_per_second)},
      {"former_id", to_hex(state.former_id)},
      {"former_samples", state.former_samples},
      {"unsure_s", std::chrono::duration_cast<std::chrono::seconds>(state.unsure_for).count()},
      {"written_unix_s", std::max<std::int64_t>(unix_s, 0)},
      {"members", std::move(members)}};
  // A name is whatever a peer says it is: bytes that are no UTF-8 are replaced, not thrown about.
  const std::string text = body.dump(-1, ' ', false, Json::error_handler_t::replace);
  return "{\"format\":" + std::to_string(state_format) + ",\"checksum\":\"" +
         to_hex(checksum(text)) + "\",\"state\":" + text + "}\n";
}

Result<NodeState> parse_node_state(const std::string& text, std::int64_t unix_s) {
  if (json_nests_deeper(text))
    return Error{"bad-state", "is damaged (it nests deeper than any state)"};
  try {
    const Json json = Json::parse(text);
    if (json.at("format").get<int>() != state_format)
      return Error{"bad-state", "has format " + std::to_string(json.at("format").get<int>()) +
                                    ", this gossipd reads " + std::to_string(state_format)};
    const Json& body = json.at("state");
    if (json.at("checksum").get<std::string>() != to_hex(checksum(body.dump())))
      return Error{"bad-state", "has a wrong checksum"};
    return state_from(body, unix_s);
  } catch (const std::exception& error) {
    return Error{"bad-state", std::string("is damaged (") + error.what() + ")"};
  }
}

std::string StateStore::kept_name(const std::filesystem::path& directory) {
  for (const std::filesystem::path& path :
       {directory / "node.json", previous_of(directory / "node.json")}) {
    const Result<std::string> text = read_whole(path);
    if (!text) continue;
    if (const Result<NodeState> state = parse_node_state(*text, unix_now())) return state->name;
  }
  return "";
}

bool StateStore::is_new(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "node.json";
  return why_not_seen(path) == ENOENT && why_not_seen(previous_of(path)) == ENOENT;
}

std::optional<Error> StateStore::why_hidden(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "node.json";
  int why = why_not_seen(path);
  if (why == ENOENT) why = why_not_seen(previous_of(path));
  if (why == 0 || why == ENOENT) return std::nullopt;
  const char* const way_out =
      why == EACCES     ? "run gossipd as the user that owns it, or name another one with "
                          "--state-dir"
      : is_lasting(why) ? "name another one with --state-dir"
                        : "look for the disk's errors in the system's log";
  return Error{is_lasting(why) ? "bad-config" : "io-error",
               "state_dir: " + directory.string() +
                   " cannot be looked into: " + std::strerror(why) + "; " + way_out};
}

std::optional<Error> StateStore::try_directory(const std::filesystem::path& directory) {
  // Of what is not there yet, the directory in which it would be made.
  std::filesystem::path there = std::filesystem::absolute(directory).lexically_normal();
  struct stat info {};
  while (::stat(there.c_str(), &info) != 0) {
    if (errno == EACCES) return std::nullopt;
    if (errno != ENOENT) return cannot_create(directory, {errno, std::generic_category()});
    if (!there.has_relative_path()) break;
    there = there.parent_path();
  }
  if (!S_ISDIR(info.st_mode)) return cannot_create(directory, {ENOTDIR, std::generic_category()});
  if (is_read_only(there)) return cannot_create(directory, {EROFS, std::generic_category()});
  return std::nullopt;
}

namespace {

// Whether it is this user's, and nothing but a node's files lies there.
bool is_only_ours(const std::filesystem::path& directory) {
  struct stat info {};
  if (::stat(directory.c_str(), &info) != 0 || info.st_uid != ::geteuid()) return false;
  constexpr std::array ours = {"node.", "job.",     "jobs",     "lock",      "checkpoints",
                               "files", "cluster.", "history.", "finished.", "trainer",
                               "rest",  "metrics",  "control",  "gossipd"};
  std::error_code error;
  const std::filesystem::directory_iterator entries(directory, error);
  return !error && std::all_of(begin(entries), end(entries), [&](const auto& entry) {
    const std::string name = entry.path().filename().string();
    return std::ranges::any_of(ours, [&](const char* start) { return name.starts_with(start); });
  });
}

}  // namespace

Result<StateStore> StateStore::open(const std::filesystem::path& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return cannot_create(directory, error);
  const std::filesystem::path checkpoints = directory / "checkpoints";
  std::filesystem::create_directories(checkpoints, error);
  if (error) return cannot_create(checkpoints, error);
  // One that others use as well, such as /tmp or a volume, stays as it is, even where root could.
  if (is_only_ours(directory)) (void)::chmod(directory.c_str(), 0700);
  (void)::chmod(checkpoints.c_str(), 0700);

  const std::filesystem::path path = directory / "lock";
  const int lock = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock < 0) return cannot(path, "open it");
  if (::flock(lock, LOCK_EX | LOCK_NB) != 0) {
    const Error reason =
        errno == EWOULDBLOCK
            ? Error{"state-locked", directory.string() +
                                        ": another gossipd is running with this state directory; "
                                        "stop it, or give this one its own --state-dir"}
            : cannot(path, "lock it");
    ::close(lock);
    return reason;
  }
  return StateStore(directory, lock);
}

StateStore::StateStore(StateStore&& other) noexcept
    : directory_(std::move(other.directory_)), lock_(std::exchange(other.lock_, -1)) {}

StateStore::~StateStore() {
  if (lock_ >= 0) ::close(lock_);
}

Result<StoredState> StateStore::load_state() const {
  const std::filesystem::path path = directory_ / "node.json", previous = previous_of(path);
  const auto load = [](const std::filesystem::path& from) -> Result<NodeState> {
    const Result<std::string> text = read_whole(from);
    if (!text) return text.error();
    Result<NodeState> state = parse_node_state(*text, unix_now());
    if (!state) return Error{state.error().code, from.string() + ": " + state.error().text};
    return state;
  };
  Result<NodeState> current = load(path);
  if (current) return StoredState{*current, {}};
  Result<NodeState> before = load(previous);
  if (current.error().code == "not-found" && !before && before.error().code == "not-found")
    return StoredState{};
  if (current.error().code == "io-error" || current.error().code == "bad-file")
    return current.error();
  if (!before && before.error().code == "io-error") return before.error();
  if (!before)
    return Error{"bad-state", current.error().text + ", and " + before.error().text +
                                  "; restore one of them from a backup, "
                                  "or move the state directory away to start as a new node"};
  set_aside(path);
  return StoredState{*before, current.error().text};
}

// Another process may use a directory that has been removed and made again.
std::optional<Error> StateStore::check_lock() const {
  struct stat ours {
  }, there{};
  const std::filesystem::path path = directory_ / "lock";
  const bool seen = ::fstat(lock_, &ours) == 0 && ::stat(path.c_str(), &there) == 0;
  if (seen && ours.st_ino == there.st_ino && ours.st_dev == there.st_dev) return std::nullopt;
  if (!seen && errno != ENOENT && errno != ENOTDIR)
    return Error{"io-error", path.string() + ": cannot be looked at: " + std::strerror(errno) +
                                 ", so nothing is written for now; look for the disk's errors in "
                                 "the system's log"};
  return Error{"state-gone", directory_.string() +
                                 ": was removed or replaced while this gossipd runs, so nothing is "
                                 "written there any more; stop it, then put the directory back or "
                                 "join again with a new one"};
}

std::optional<Error> StateStore::save_state(const NodeState& state) const {
  if (auto error = check_lock()) return error;
  return write_durably(directory_ / "node.json", format_node_state(state, unix_now()));
}

Result<StoredJob> StateStore::load_job(JobHash hash) const {
  const std::filesystem::path path = directory_ / "job.toml";
  StoredJob stored;
  for (const std::filesystem::path& from : {path, previous_of(path)}) {
    Result<std::string> text = read_whole(from);
    if (!text && (text.error().code == "io-error" || text.error().code == "bad-file"))
      return text.error();
    if (text && checksum(*text) == raw(hash)) {
      stored.document = std::move(*text);
      return stored;
    }
    if (!stored.fallback_reason.empty()) continue;
    stored.fallback_reason = text ? from.string() + ": is damaged, or another job (its hash is " +
                                        to_hex(checksum(*text)) + ", this node trains job " +
                                        to_hex(hash) + ")"
                                  : text.error().text;
  }
  return stored;
}

std::optional<Error> StateStore::save_job(const std::string& canonical) const {
  if (auto error = check_lock()) return error;
  const std::filesystem::path path = directory_ / "job.toml";
  const Result<std::string> present = read_whole(path);
  if (present && *present == canonical) return std::nullopt;
  return write_durably(path, canonical);
}

std::optional<Error> StateStore::set_former_job_aside(NodeState& state) const {
  if (state.former_job == JobHash{}) return std::nullopt;
  namespace fs = std::filesystem;
  const fs::path former =
      directory_ / "jobs" /
      (std::to_string(state.former_generation) + "-" + to_hex(state.former_job));
  std::error_code error;
  fs::create_directories(former, error);
  for (const fs::path& own : {directory_ / "jobs", former}) (void)::chmod(own.c_str(), 0700);
  const Result<StoredJob> job = load_job(state.former_job);
  if (!job && job.error().code == "io-error") return job.error();
  if (job && job->document)
    if (auto failed = write_durably(former / "job.toml", *job->document)) return failed;
  const fs::path checkpoints = directory_ / "checkpoints";
  for (const char* const name : {"history.jsonl", "finished.json", "checkpoints"}) {
    if (error) break;
    const fs::path from = directory_ / name;
    // empty: made by open() after it was moved
    const bool moves = fs::exists(from, error) && !fs::is_empty(from, error);
    if (moves && !error) fs::rename(from, former / name, error);
  }
  if (!error) fs::create_directories(checkpoints, error);
  if (error)
    return Error{"io-error", former.string() + ": cannot set the job before aside: " +
                                 error.message() + "; nothing of it is lost: start again"};
  (void)::chmod(checkpoints.c_str(), 0700);
  for (const fs::path& changed : {former, directory_ / "jobs", directory_})
    if (auto failed = flush_directory(changed)) return failed;
  NodeState settled = state;
  settled.former_job = {};
  if (auto failed = save_state(settled)) return failed;
  fs::remove(previous_of(directory_ / "node.json"), error);  // it would do all this again
  if (auto failed = flush_directory(directory_)) return failed;
  state = std::move(settled);
  return std::nullopt;
}

std::filesystem::path StateStore::checkpoint_path(const std::string& which) const {
  return directory_ / "checkpoints" / (which + ".safetensors");
}

}  // namespace gossipd
