// daemon/rest/live.h - the routes that show a node as it changes: events, curves of all members and
// the dashboard.
#pragma once

#include <string>
#include <vector>

#include "daemon/rest/rest.h"

namespace gossipd {

// /v1/events and /v1/history/members. `port` must outlive the router.
void add_live_routes(HttpRouter& router, DaemonPort& port);

// Status, members and links in one JSON object, each as its own route answers.
[[nodiscard]] std::string snapshot_json(const DaemonPort& port);

// The page at / and its files.
void add_dashboard(HttpRouter& router);
// The files of the dashboard hold nothing of the node, so they need no token.
[[nodiscard]] std::vector<std::string> dashboard_paths();

}  // namespace gossipd
