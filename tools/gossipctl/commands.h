// tools/gossipctl/commands.h - the subcommands: what each requests and prints.
#pragma once

#include <chrono>
#include <ostream>
#include <string>
#include <vector>

#include "tools/gossipctl/client.h"
#include "tools/gossipctl/table.h"

namespace gossipd {

struct Console {
  std::ostream& out;  // data
  std::ostream& err;  // words
  Output output = Output::table;
  bool headers = true;
  std::size_t width = 0;  // of the terminal that `out` is; 0: it is none
  [[nodiscard]] Layout layout() const { return {output, headers, width}; }
};

// What a command has written: its path, or with -o json an object that names it `key`.
void print_path(Console&, const char* key, const std::string& path);

ExitCode show_status(const DaemonClient&, Console&);
ExitCode show_job(const DaemonClient&, Console&);
ExitCode join_cluster(const DaemonClient&, Console&, const std::vector<std::string>& seeds);
ExitCode leave_cluster(const DaemonClient&, Console&);  // returns when the node has left
ExitCode write_checkpoint_now(const DaemonClient&, Console&);
ExitCode pause_training(const DaemonClient&, Console&);
ExitCode resume_training(const DaemonClient&, Console&);
// `member`: an id, a name or the beginning of one.
ExitCode forget_member(const DaemonClient&, Console&, const std::string& member);
// As the daemon is told of a file: from the root. `file` where this directory is gone.
[[nodiscard]] std::string sent_path(const std::string& file);
ExitCode start_job(const DaemonClient&, Console&, const std::string& file);
ExitCode extend_job(const DaemonClient&, Console&, std::uint64_t samples);
// Whether wait_for() takes it: ready, finished, left, members=N, step=N or samples=N.
[[nodiscard]] bool is_condition(const std::string& words);
// For a node that has left, or is broken, and may be brought back meanwhile.
inline constexpr std::chrono::minutes patience_with_hopeless{1};
// Also waits for the daemon itself.
ExitCode wait_for(const DaemonClient&, Console&, const std::string& condition,
                  std::chrono::milliseconds with_hopeless = patience_with_hopeless);
ExitCode install_key(const DaemonClient&, Console&, const std::string& file);
// `what`: use or retire; `key`: an id or the beginning of one.
ExitCode change_key(const DaemonClient&, Console&, const std::string& what, const std::string& key);
// `file` "-": the key goes to `out`.
ExitCode generate_key(Console&, const std::string& file);

}  // namespace gossipd
