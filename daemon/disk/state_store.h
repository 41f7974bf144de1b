// daemon/disk/state_store.h - what a node keeps on disk: who it is, what it trains, where its
// checkpoints lie.
//
//     STATE/lock             held while a daemon runs here
//     STATE/node.json        NodeState with a checksum; node.previous.json is the one before
//     STATE/job.toml         the cluster's job, canonical, so that its own hash is its checksum
//     STATE/cluster.key      the cluster's secret, once it is known to work
//     STATE/files/           the file that belongs to a TorchScript job (job_files.h)
//     STATE/checkpoints/     current, best and final .safetensors, each with its previous one
//     STATE/jobs/N-HASH/     job, checkpoints and history of the cluster's Nth job, when it has
//                            gone on to another
//
// Directories are of mode 0700 and files of 0600. A damaged file is set aside as *.corrupt.* and
// the previous one used, with the reason. Files are loaded before the loop runs and saved by one
// thread at a time.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "core/node.h"
#include "daemon/disk/job_files.h"

namespace gossipd {

// 64 bits of the operating system's randomness; never 0.
[[nodiscard]] std::uint64_t random_64();

// As kept in node.json; parse returns code "bad-state".
// `unix_s`: the time now, in seconds since 1970. It is written down, and what was written then
// tells how long the node was down.
[[nodiscard]] std::string format_node_state(const NodeState&, std::int64_t unix_s);
[[nodiscard]] Result<NodeState> parse_node_state(const std::string& text, std::int64_t unix_s);

struct StoredState {
  std::optional<NodeState> state;  // nothing: this directory is new
  std::string fallback_reason;     // not empty: why the previous file was used
};

struct StoredJob {
  std::optional<std::string> document;  // canonical
  std::string fallback_reason;
};

class StateStore {
 public:
  // Whether a directory can be there, whoever may write to it. Changes nothing.
  [[nodiscard]] static std::optional<Error> try_directory(const std::filesystem::path& directory);
  // No node has a state there, for sure. Creates nothing.
  [[nodiscard]] static bool is_new(const std::filesystem::path& directory);
  // Where it cannot be told whether there is state: "bad-config" (this process may not look),
  // "io-error" (may pass).
  [[nodiscard]] static std::optional<Error> why_hidden(const std::filesystem::path& directory);
  // The name that the node there was once given; empty: none, or its state cannot be read.
  [[nodiscard]] static std::string kept_name(const std::filesystem::path& directory);
  // Creates the directories, takes others' rights on them away (mode 0700) and takes the lock.
  // Codes "state-locked" (another daemon runs here), "io-error", "bad-config" (no directory can be
  // there, or this user may not write to it).
  static Result<StateStore> open(const std::filesystem::path& directory);
  StateStore(StateStore&&) noexcept;
  StateStore& operator=(StateStore&&) = delete;
  ~StateStore();

  // Code "state-gone" where the directory is no longer the one that was locked: it may be another
  // node's by now, so whoever writes there asks before; "io-error" where that cannot be told. Any
  // thread.
  [[nodiscard]] std::optional<Error> check_lock() const;

  // Code "bad-state": neither file is whole; the text says the way out.
  [[nodiscard]] Result<StoredState> load_state() const;
  [[nodiscard]] std::optional<Error> save_state(const NodeState&) const;
  // The document whose hash this is; nothing when neither file has it.
  [[nodiscard]] Result<StoredJob> load_job(JobHash) const;
  [[nodiscard]] std::optional<Error> save_job(const std::string& canonical) const;

  // Where `state` begins another job: checkpoints and history of the one before go to
  // STATE/jobs/NUMBER-HASH, then the state is written without that. After a crash it goes on where
  // it was.
  [[nodiscard]] std::optional<Error> set_former_job_aside(NodeState& state) const;

  [[nodiscard]] const std::filesystem::path& directory() const { return directory_; }
  [[nodiscard]] std::filesystem::path key_path() const { return directory_ / "cluster.key"; }
  [[nodiscard]] JobFiles files() const { return JobFiles(directory_ / "files"); }
  // `which`: "current", "best" or "final".
  [[nodiscard]] std::filesystem::path checkpoint_path(const std::string& which) const;

 private:
  StateStore(std::filesystem::path directory, int lock)
      : directory_(std::move(directory)), lock_(lock) {}
  std::filesystem::path directory_;
  int lock_;  // -1: moved away
};

}  // namespace gossipd
