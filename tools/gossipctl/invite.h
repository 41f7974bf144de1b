// tools/gossipctl/invite.h - prints the line with which another box joins (net/peer/invite.h).
//
// The secret comes from the key file and not from the daemon, whose answers never hold one: who may
// read the file may invite.
#pragma once

#include <string>

#include "tools/gossipctl/commands.h"

namespace gossipd {

struct InviteRequest {
  std::string key_file;  // empty: of the daemon's state directory
  std::string to_file;   // empty: standard output
};

ExitCode invite(const DaemonClient&, Console&, const InviteRequest&);

}  // namespace gossipd
