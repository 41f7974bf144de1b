// tools/gossipctl/commands.h - the subcommands: what each requests and prints.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "tools/gossipctl/client.h"

namespace gossipd {

enum class Output { table, json };

struct Console {
  std::ostream& out;  // data
  std::ostream& err;  // words
  Output output = Output::table;
};

ExitCode show_members(const DaemonClient&, Console&);
ExitCode show_status(const DaemonClient&, Console&);
ExitCode show_links(const DaemonClient&, Console&);
ExitCode show_job(const DaemonClient&, Console&);
ExitCode join_cluster(const DaemonClient&, Console&, const std::vector<std::string>& seeds);
ExitCode leave_cluster(const DaemonClient&, Console&);  // returns when the node has left
ExitCode write_checkpoint_now(const DaemonClient&, Console&);
ExitCode pause_training(const DaemonClient&, Console&);
ExitCode resume_training(const DaemonClient&, Console&);
ExitCode forget_member(const DaemonClient&, Console&, const std::string& id);
ExitCode extend_job(const DaemonClient&, Console&, std::uint64_t samples);
// `condition`: ready, finished, left, members=N, step=N or samples=N. Also waits for the daemon
// itself.
ExitCode wait_for(const DaemonClient&, Console&, const std::string& condition);
ExitCode list_keys(const DaemonClient&, Console&);
ExitCode install_key(const DaemonClient&, Console&, const std::string& file);
// `what`: use or retire.
ExitCode change_key(const DaemonClient&, Console&, const std::string& what, const std::string& id);
// `file` "-": the key goes to `out`.
ExitCode generate_key(Console&, const std::string& file);

}  // namespace gossipd
