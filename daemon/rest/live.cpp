#include "daemon/rest/live.h"

#include "daemon/rest/dashboard/files.h"
#include "daemon/rest/events.h"
#include "daemon/rest/member_history.h"

namespace gossipd {

namespace {

// Nothing from elsewhere, nothing inline, in nobody's frame.
constexpr const char* content_security_policy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

HttpResponse file_response(const DashboardFile& file) {
  return HttpResponse{.content_type = std::string(file.content_type),
                      .body = std::string(file.content),
                      .headers = {{"Content-Security-Policy", content_security_policy},
                                  {"Referrer-Policy", "no-referrer"},
                                  {"Cross-Origin-Opener-Policy", "same-origin"},
                                  {"Cross-Origin-Resource-Policy", "same-origin"}}};
}

HttpResponse bad_query(const std::string& detail) {
  return problem(400, "bad-request", "The request is not understood", detail,
                 "GET /v1/events takes after=ID, snapshots=false and follow=false");
}

// An absent value is true; nullopt: neither true nor false.
std::optional<bool> flag_of(const HttpRequest& request, const std::string& name) {
  const auto found = request.query.find(name);
  if (found == request.query.end() || found->second == "true") return true;
  if (found->second == "false") return false;
  return std::nullopt;
}

HttpResponse events(DaemonPort& port, const HttpRequest& request) {
  for (const auto& [name, value] : request.query)
    if (name != "snapshots" && name != "follow" && name != "after")
      return bad_query("'" + name + "' means nothing here");
  const std::optional<bool> snapshots = flag_of(request, "snapshots");
  const std::optional<bool> follow = flag_of(request, "follow");
  if (!snapshots || !follow) return bad_query("snapshots and follow are true or false");
  Events::Wanted wanted{.after = "", .snapshots = *snapshots, .follow = *follow};
  if (const auto after = request.query.find("after"); after != request.query.end())
    wanted.after = after->second;
  if (const auto after = request.headers.find("last-event-id"); after != request.headers.end())
    wanted.after = after->second;
  HttpResponse response;
  response.content_type = "text/event-stream";
  response.stream = port.events().open(wanted, *snapshots ? snapshot_json(port) : std::string());
  return response;
}

}  // namespace

std::string snapshot_json(const DaemonPort& port) {
  const auto without_end = [](std::string json) {
    while (json.ends_with('\n')) json.pop_back();
    return json;
  };
  return "{\"status\":" + without_end(status_json(port.status())) +
         ",\"members\":" + without_end(members_json(port.node().cluster, port.members())) +
         ",\"links\":" + without_end(links_json(port.links(), port.sessions(), port.wire())) + "}";
}

std::vector<std::string> dashboard_paths() {
  std::vector<std::string> paths;
  for (const DashboardFile& file : dashboard_files()) paths.emplace_back(file.path);
  return paths;
}

void add_live_routes(HttpRouter& router, DaemonPort& port) {
  using Answer = std::function<HttpResponse(const HttpRequest&)>;
  router.add("GET", "/v1/events",
             Answer([&port](const HttpRequest& request) { return events(port, request); }));
  router.add("GET", "/v1/history/members", Answer([&port](const HttpRequest&) {
               HttpResponse response;
               response.body = port.member_history().json();
               return response;
             }));
}

void add_dashboard(HttpRouter& router) {
  using Answer = std::function<HttpResponse(const HttpRequest&)>;
  for (const DashboardFile& file : dashboard_files())
    router.add("GET", std::string(file.path),
               Answer([&file](const HttpRequest&) { return file_response(file); }));
}

}  // namespace gossipd
