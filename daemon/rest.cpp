#include "daemon/rest.h"

#include <nlohmann/json.hpp>

#include "core/base/nesting.h"
#include "daemon/config.h"
#include "daemon/metrics.h"

namespace gossipd {

namespace {

using Json = nlohmann::json;

HttpResponse json_response(std::string body, int status = 200) {
  HttpResponse response;
  response.status = status;
  response.body = std::move(body);
  response.headers.emplace_back("Cache-Control", "no-store");
  return response;
}

HttpResponse refused_by_state(const Error& error) {
  return problem(409, error.code, "Refused by the node's state", error.text,
                 "GET /v1/status shows the phase; gossipctl wait --for … waits for one");
}

// What a command leaves behind: the phase, now.
HttpResponse accepted(const DaemonPort& port) {
  return json_response(Json{{"phase", to_string(port.view().node.phase)}}.dump() + "\n", 202);
}

HttpResponse bad_seeds(const std::string& detail) {
  return problem(400, "bad-request", "The request is not understood", detail, R"(send {"seeds": ["box1:7610"]} or nothing)");
}

// No object where the body is none, or nests as nothing does that is asked for here.
Json parse_body(const std::string& body) { return json_nests_deeper(body) ? Json() : Json::parse(body, nullptr, false); }

// {"seeds": ["box1", …]}; no body means the seeds already known.
Result<std::vector<Endpoint>> read_seeds(const std::string& body) {
  std::vector<Endpoint> seeds;
  if (body.empty()) return seeds;
  const Json json = parse_body(body);
  if (!json.is_object()) return Error{"bad-request", "the body is not a JSON object"};
  for (const auto& [key, value] : json.items())
    if (key != "seeds" || !value.is_array()) return Error{"bad-request", "'" + key + "' is not a list named seeds"};
  if (!json.contains("seeds")) return seeds;
  if (json["seeds"].size() > seeds_max) return Error{"bad-request", "more than " + std::to_string(seeds_max) + " seeds"};
  for (const Json& seed : json["seeds"]) {
    Endpoint endpoint;
    if (!seed.is_string() || !parse_endpoint(seed.get<std::string>(), peer_port_default, endpoint))
      return Error{"bad-request", seed.dump() + " is no address"};
    seeds.push_back(endpoint);
  }
  return seeds;
}

HttpResponse ready(const DaemonPort& port) {
  const DaemonView view = port.view();
  const std::string reason = not_ready_reason(view);
  if (reason.empty()) return json_response(ready_json(view));
  return problem(503, "not-ready", "This node is not ready", reason, "gossipctl status says more; gossipctl wait --for ready waits");
}

HttpResponse metrics(const DaemonPort& port) {
  HttpResponse response = json_response(metrics_text(port.view()));
  response.content_type = metrics_content_type;
  return response;
}

HttpResponse job(const DaemonPort& port) {
  const DaemonView view = port.view();
  if (view.job) return json_response(job_json(view));
  return problem(404, "no-job", "No job is known yet", "the job comes from the cluster; this node is " + std::string(to_string(view.node.phase)),
                 "gossipctl wait --for ready waits until the node has joined");
}

HttpResponse join(DaemonPort& port, const HttpRequest& request) {
  const Result<std::vector<Endpoint>> seeds = read_seeds(request.body);
  if (!seeds) return bad_seeds(seeds.error().text);
  const auto error = port.join(*seeds);
  if (error && error->code == "self")
    return problem(409, error->code, "A node cannot join itself", error->text, "name the address of another member of the cluster");
  if (error) return refused_by_state(*error);
  return accepted(port);
}

// {"samples": N}
HttpResponse extend(DaemonPort& port, const HttpRequest& request) {
  const Json json = parse_body(request.body);
  if (!json.is_object() || json.size() != 1 || !json.contains("samples") || !json["samples"].is_number_unsigned())
    return problem(400, "bad-request", "The request is not understood", "the body names no number of samples", R"(send {"samples": 100000})");
  if (const auto error = port.extend_budget(json["samples"].get<Samples>())) return refused_by_state(*error);
  return json_response(Json{{"budget_samples", port.view().node.budget_samples}}.dump() + "\n", 202);
}

void checkpoint(DaemonPort& port, const HttpRespond& respond) {
  port.write_checkpoint([respond](Result<CheckpointView> written) {
    if (written) return respond(json_response(checkpoint_json(*written)));
    const Error& error = written.error();
    if (error.code == "no-model") return respond(refused_by_state(error));
    respond(problem(500, error.code, "The checkpoint was not written", error.text, "the previous checkpoint is still in place"));
  });
}

HttpResponse keys(const DaemonPort& port) {
  const Result<KeysView> view = port.keys();
  if (view) return json_response(keys_json(*view));
  return problem(404, view.error().code, "This cluster has no key", view.error().text,
                 view.error().code == "certificates" ? "the log says which: event=peer-tls" : "start the cluster with a key");
}

// The one string of a JSON object {"name": "…"}.
Result<std::string> read_word(const std::string& body, const std::string& name) {
  const Json json = parse_body(body);
  if (!json.is_object() || json.size() != 1 || !json.contains(name) || !json[name].is_string())
    return Error{"bad-request", "the body is not an object with the one string '" + name + "'"};
  return json[name].get<std::string>();
}

HttpResponse keys_changed(const DaemonPort& port, const std::optional<Error>& error) {
  if (!error) return keys(port);
  if (error->code == "certificates" || error->code == "no-key") return keys(port);
  return problem(409, error->code, "The keys are as they were", error->text, "gossipctl key list shows them");
}

HttpResponse install_key(DaemonPort& port, const HttpRequest& request) {
  const Result<std::string> file = read_word(request.body, "file");
  if (!file) return problem(400, "bad-request", "The request is not understood", file.error().text, R"(send {"file": "/path/to/new.key"})");
  return keys_changed(port, port.install_key(*file));
}

// {"id": "0123456789abcdef"} of a member that failed or left.
HttpResponse forget(DaemonPort& port, const HttpRequest& request) {
  const Result<std::string> id = read_word(request.body, "id");
  std::uint64_t value = 0;
  if (!id || id->size() != 16 || !from_hex(*id, value))
    return problem(400, "bad-request", "The request is not understood", id ? "'" + *id + "' is not 16 hex digits" : id.error().text, R"(send {"id": "0123456789abcdef"})");
  const auto error = port.forget(NodeId{value});
  if (!error) return json_response(members_json(port.view()), 202);
  if (error->code == "unknown-member") return problem(404, error->code, "There is no such member", error->text, "GET /v1/members lists them");
  return problem(409, error->code, "Refused by the member's state", error->text, "GET /v1/members shows the states");
}

HttpResponse change_key(DaemonPort& port, const HttpRequest& request, std::optional<Error> (DaemonPort::*change)(std::uint64_t)) {
  const Result<std::string> id = read_word(request.body, "id");
  std::uint64_t value = 0;
  if (!id || id->size() != 16 || !from_hex(*id, value))
    return problem(400, "bad-request", "The request is not understood", id ? "'" + *id + "' is not 16 hex digits" : id.error().text, R"(send {"id": "0123456789abcdef"})");
  return keys_changed(port, (port.*change)(value));
}

}  // namespace

HttpRouter make_rest(DaemonPort& port) {
  HttpRouter router;
  using Answer = std::function<HttpResponse(const HttpRequest&)>;
  const auto get = [&router](const char* path, Answer answer) { router.add("GET", path, std::move(answer)); };
  get("/livez", [](const HttpRequest&) { return json_response("{\"alive\":true}\n"); });
  get("/readyz", [&port](const HttpRequest&) { return ready(port); });
  get("/metrics", [&port](const HttpRequest&) { return metrics(port); });
  get("/v1/status", [&port](const HttpRequest&) { return json_response(status_json(port.view())); });
  get("/v1/members", [&port](const HttpRequest&) { return json_response(members_json(port.view())); });
  get("/v1/links", [&port](const HttpRequest&) { return json_response(links_json(port.view())); });
  get("/v1/job", [&port](const HttpRequest&) { return job(port); });
  get("/v1/history", [&port](const HttpRequest&) { return json_response(history_json(port.history(), port.view())); });

  router.add("POST", "/v1/cluster/join", Answer([&port](const HttpRequest& request) { return join(port, request); }));
  router.add("POST", "/v1/job/extend", Answer([&port](const HttpRequest& request) { return extend(port, request); }));
  router.add("POST", "/v1/members/forget", Answer([&port](const HttpRequest& request) { return forget(port, request); }));
  const auto command = [&router, &port](const char* path, std::function<std::optional<Error>()> run) {
    router.add("POST", path, Answer([&port, run = std::move(run)](const HttpRequest&) {
      const std::optional<Error> error = run();
      return error ? refused_by_state(*error) : accepted(port);
    }));
  };
  command("/v1/cluster/leave", [&port] { return port.leave(); });
  command("/v1/training/pause", [&port] { return port.pause(); });
  command("/v1/training/resume", [&port] { return port.resume(); });
  get("/v1/keys", [&port](const HttpRequest&) { return keys(port); });
  router.add("POST", "/v1/keys/install", Answer([&port](const HttpRequest& request) { return install_key(port, request); }));
  router.add("POST", "/v1/keys/use", Answer([&port](const HttpRequest& request) { return change_key(port, request, &DaemonPort::use_key); }));
  router.add("POST", "/v1/keys/retire", Answer([&port](const HttpRequest& request) { return change_key(port, request, &DaemonPort::retire_key); }));
  router.add("POST", "/v1/checkpoint",
             HttpHandler([&port](const HttpRequest&, HttpRespond respond) { checkpoint(port, respond); }));
  return router;
}

}  // namespace gossipd
