#include "daemon/rest/rest.h"

#include <nlohmann/json.hpp>

#include "core/base/nesting.h"
#include "core/base/settings.h"
#include "core/membership/plausibility.h"
#include "daemon/config/config.h"
#include "daemon/rest/live.h"
#include "daemon/rest/metrics.h"
#include "daemon/rest/openapi.h"

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

// What a command leaves behind.
Json phase_now(const DaemonPort& port) { return Json{{"phase", to_string(port.node().phase)}}; }

HttpResponse late(const Error& error) {
  return problem(504, error.code, "The disk does not answer", error.text,
                 "GET /v1/status shows the disk; the node goes on meanwhile");
}

// Once the disk knows of the command, or is too slow for that: then a restart may forget it.
void answer_when_on_disk(DaemonPort& port, const HttpRespond& respond, std::function<Json()> body) {
  port.when_on_disk([respond, body = std::move(body)](bool on_disk) {
    Json json = body();
    if (!on_disk) json["on_disk"] = false;
    respond(json_response(json.dump() + "\n", 202));
  });
}

HttpResponse bad_seeds(const std::string& detail) {
  return problem(400, "bad-request", "The request is not understood", detail,
                 R"(send {"seeds": ["box1:7610"]} or nothing)");
}

// No object where the body is none, or nests as nothing does that is asked for here.
Json parse_body(const std::string& body) {
  return json_nests_deeper(body) ? Json() : Json::parse(body, nullptr, false);
}

// What is wrong with the keys of a body that takes only `key`; empty: nothing.
std::string wrong_keys(const Json& json, const std::string& key) {
  if (!json.is_object()) return "the body is not a JSON object";
  for (const auto& [found, value] : json.items())
    if (found != key) return "'" + found + "' is unknown; only '" + key + "' is understood";
  return json.contains(key) ? "" : "'" + key + "' is missing";
}

// {"seeds": ["box1", …]}; no body means the seeds already known.
Result<std::vector<Endpoint>> read_seeds(const std::string& body) {
  std::vector<Endpoint> seeds;
  if (body.empty()) return seeds;
  const Json json = parse_body(body);
  if (!json.is_object()) return Error{"bad-request", "the body is not a JSON object"};
  for (const auto& [key, value] : json.items())
    if (key != "seeds" || !value.is_array())
      return Error{"bad-request", "'" + key + "' is not a list named seeds"};
  if (!json.contains("seeds")) return seeds;
  if (json["seeds"].size() > seeds_max)
    return Error{"bad-request", "more than " + std::to_string(seeds_max) + " seeds"};
  for (const Json& seed : json["seeds"]) {
    Endpoint endpoint;
    if (!seed.is_string() || !parse_endpoint(seed.get<std::string>(), peer_port_default, endpoint))
      return Error{"bad-request",
                   bad_endpoint(seed.is_string() ? seed.get<std::string>() : seed.dump())};
    seeds.push_back(endpoint);
  }
  return seeds;
}

HttpResponse ready(const DaemonPort& port) {
  const NodeSummary node = port.node();
  const std::string reason = not_ready_reason(node, port.stopping());
  if (reason.empty()) return json_response(ready_json(node.phase));
  return problem(503, "not-ready", "This node is not ready", reason,
                 "gossipctl status says more; gossipctl wait --for ready waits");
}

HttpResponse metrics(const DaemonPort& port) {
  HttpResponse response = json_response(metrics_text(port.status(), port.links()));
  response.content_type = metrics_content_type;
  return response;
}

std::string members(const DaemonPort& port) {
  return members_json(port.node().cluster, port.members());
}

HttpResponse job(const DaemonPort& port) {
  if (const std::optional<JobView> job = port.job())
    return json_response(job_json(*job, port.node()));
  return problem(
      404, "no-job", "No job is known yet",
      "the job comes from the cluster; this node is " + std::string(to_string(port.node().phase)),
      "gossipctl wait --for ready waits until the node has joined");
}

void join(DaemonPort& port, const HttpRequest& request, const HttpRespond& respond) {
  const Result<std::vector<Endpoint>> seeds = read_seeds(request.body);
  if (!seeds) return respond(bad_seeds(seeds.error().text));
  const auto error = port.join(*seeds);
  if (error && error->code == "self")
    return respond(problem(409, error->code, "A node cannot join itself", error->text,
                           "name the address of another member of the cluster"));
  if (error) return respond(refused_by_state(*error));
  answer_when_on_disk(port, respond, [&port] { return phase_now(port); });
}

HttpResponse not_extended(const Error& error, Samples budget) {
  return problem(400, error.code, "The budget is not extended", error.text,
                 "samples is what is added to the budget of " + std::to_string(budget) +
                     ": at least 1, and both together at most " +
                     std::to_string(budget_samples_max));
}

// {"samples": N}
void extend(DaemonPort& port, const HttpRequest& request, const HttpRespond& respond) {
  const Json json = parse_body(request.body);
  std::string wrong = wrong_keys(json, "samples");
  if (wrong.empty() && !json["samples"].is_number_unsigned())
    wrong = "'samples' is no whole number";
  if (!wrong.empty())
    return respond(problem(400, "bad-request", "The request is not understood", wrong,
                           R"(send {"samples": 100000})"));
  if (const auto error = port.extend_budget(json["samples"].get<Samples>()))
    return respond(error->code == "bad-budget" ? not_extended(*error, port.node().budget_samples)
                                               : refused_by_state(*error));
  answer_when_on_disk(port, respond, [&port] {
    return Json{{"budget_samples", port.node().budget_samples}};
  });
}

// A failure of this node, not a refusal.
bool is_of_disk(const Error& error) {
  return error.code == "no-space" || error.code == "io-error" || error.code == "key-write" ||
         error.code == "state-gone";
}

std::string disk_hint(const Error& error) {
  return error.code == "no-space" ? "free some space where the state directory lies"
                                  : "gossipctl doctor looks at the disk; mend that";
}

// The one string of a JSON object {"name": "…"}; it is not empty.
Result<std::string> read_word(const std::string& body, const std::string& name) {
  const Json json = parse_body(body);
  if (const std::string wrong = wrong_keys(json, name); !wrong.empty())
    return Error{"bad-request", wrong};
  if (!json[name].is_string()) return Error{"bad-request", "'" + name + "' is no string"};
  if (json[name] == "") return Error{"bad-request", "'" + name + "' is empty"};
  return json[name].get<std::string>();
}

// {"file": "/path/to/job.toml"}
void start_job(DaemonPort& port, const HttpRequest& request, const HttpRespond& respond) {
  const Result<std::string> file = read_word(request.body, "file");
  if (!file)
    return respond(problem(400, "bad-request", "The request is not understood", file.error().text,
                           R"(send {"file": "/path/to/job.toml"})"));
  port.start_job(*file, [respond](const Result<DaemonPort::StartedJob>& started) {
    if (started)
      return respond(json_response(
          Json{
              {"name", started->name}, {"hash", to_hex(started->hash)}, {"number", started->number}}
                  .dump() +
              "\n",
          202));
    const Error& error = started.error();
    if (error.code == "still-trying")
      return respond(problem(504, error.code, "The job is still tried", error.text,
                             "gossipctl status shows it: waiting_for while it is tried, and "
                             "warnings where it is not started"));
    if (is_of_disk(error))
      return respond(problem(500, error.code, "The job is not started", error.text,
                             disk_hint(error) + ", then start the job again; the node stays with "
                                                "its job until then"));
    if (error.code == "not-tried")
      return respond(problem(500, error.code, "The job is not tried", error.text,
                             "free memory, or raise gossipd's limits of processes and open files "
                             "(ulimit -u, ulimit -n), then start the job again"));
    if (error.code == "other-job")
      return respond(problem(409, error.code, "Another job is the cluster's next", error.text,
                             "GET /v1/job shows it; start yours once that one is finished"));
    for (const char* const by_state :
         {"left", "job-starting", "job-running", "no-job", "same-job", "stopping"})
      if (error.code == by_state) return respond(refused_by_state(error));
    respond(problem(400, error.code, "The job is not started", error.text,
                    "gossipd --check-config --job FILE --data DIR tries it"));
  });
}

void checkpoint(DaemonPort& port, const HttpRespond& respond) {
  port.write_checkpoint([respond](Result<CheckpointView> written) {
    if (written) return respond(json_response(checkpoint_json(*written)));
    const Error& error = written.error();
    if (error.code == "no-model") return respond(refused_by_state(error));
    if (error.code == "disk-slow") return respond(late(error));
    std::string hint = "what was written before is untouched; ";
    if (error.code == "state-gone")
      hint =
          "bring the directory back, or stop this node and let it join anew with what `gossipctl "
          "invite` prints: without it a restart knows nothing";
    else if (is_of_disk(error))
      hint += "gossipctl doctor looks at the disk";
    else if (error.code == "not-finite" || error.code == "device-failed")
      hint += "gossipctl status and the log say what is wrong with the training";
    else
      hint += "try again later; the log may say more";
    respond(problem(500, error.code, "The checkpoint was not written", error.text, hint));
  });
}

HttpResponse keys(const DaemonPort& port) {
  const Result<KeysView> view = port.keys();
  if (view) return json_response(keys_json(*view));
  return problem(404, view.error().code, "This cluster has no key", view.error().text,
                 view.error().code == "certificates" ? "the log says which: event=peer-tls"
                                                     : "start the cluster with a key");
}

HttpResponse keys_changed(const DaemonPort& port, const std::optional<Error>& error) {
  if (!error) return keys(port);
  if (error->code == "certificates" || error->code == "no-key") return keys(port);
  if (error->code == "disk-slow") return late(*error);
  if (is_of_disk(*error))
    return problem(500, error->code, "The keys are as they were", error->text,
                   disk_hint(*error) + ", then try again");
  const bool unread = error->code == "key-read" || error->code == "key-missing";
  return problem(409, error->code, "The keys are as they were", error->text,
                 unread ? "the file must be readable by the user that gossipd runs as, on its "
                          "machine; a service has a /tmp of its own"
                        : "gossipctl key list shows them");
}

void install_key(DaemonPort& port, const HttpRequest& request, const HttpRespond& respond) {
  const Result<std::string> file = read_word(request.body, "file");
  if (!file)
    return respond(problem(400, "bad-request", "The request is not understood", file.error().text,
                           R"(send {"file": "/path/to/new.key"})"));
  port.install_key(*file, [&port, respond](const std::optional<Error>& error) {
    respond(keys_changed(port, error));
  });
}

// {"id": "0123456789abcdef"} of a member that failed or left.
void forget(DaemonPort& port, const HttpRequest& request, const HttpRespond& respond) {
  const Result<std::string> id = read_word(request.body, "id");
  std::uint64_t value = 0;
  if (!id || id->size() != 16 || !from_hex(*id, value))
    return respond(problem(400, "bad-request", "The request is not understood",
                           id ? "'" + *id + "' is not 16 hex digits" : id.error().text,
                           R"(send {"id": "0123456789abcdef"})"));
  const auto error = port.forget(NodeId{value});
  if (!error)
    return answer_when_on_disk(port, respond, [&port] { return Json::parse(members(port)); });
  if (error->code == "unknown-member")
    return respond(problem(404, error->code, "There is no such member", error->text,
                           "GET /v1/members lists them"));
  respond(problem(409, error->code, "Refused by the member's state", error->text,
                  "GET /v1/members shows the states"));
}

void change_key(DaemonPort& port, const HttpRequest& request, const HttpRespond& respond,
                void (DaemonPort::*change)(std::uint64_t, DaemonPort::KeysChanged)) {
  const Result<std::string> id = read_word(request.body, "id");
  std::uint64_t value = 0;
  if (!id || id->size() != 16 || !from_hex(*id, value))
    return respond(problem(400, "bad-request", "The request is not understood",
                           id ? "'" + *id + "' is not 16 hex digits" : id.error().text,
                           R"(send {"id": "0123456789abcdef"})"));
  (port.*change)(value, [&port, respond](const std::optional<Error>& error) {
    respond(keys_changed(port, error));
  });
}

void add_metrics(HttpRouter& router, DaemonPort& port) {
  const auto get = [&router](const char* path, std::function<HttpResponse()> answer) {
    router.add("GET", path, [answer = std::move(answer)](const HttpRequest&) { return answer(); });
  };
  get("/livez", [] { return json_response("{\"alive\":true}\n"); });
  get("/readyz", [&port] { return ready(port); });
  get("/metrics", [&port] { return metrics(port); });
}

// What the operator says in a word.
void add_commands(HttpRouter& router, DaemonPort& port) {
  router.add("POST", "/v1/cluster/leave", [&port](const HttpRequest&, const HttpRespond& respond) {
    const std::optional<Error> error = port.leave();
    respond(error ? refused_by_state(*error) : json_response(phase_now(port).dump() + "\n", 202));
  });
  const auto kept = [&router, &port](const char* path, std::function<std::optional<Error>()> run) {
    router.add("POST", path,
               [&port, run = std::move(run)](const HttpRequest&, const HttpRespond& respond) {
                 if (const std::optional<Error> error = run())
                   return respond(refused_by_state(*error));
                 answer_when_on_disk(port, respond, [&port] { return phase_now(port); });
               });
  };
  kept("/v1/training/pause", [&port] { return port.pause(); });
  kept("/v1/training/resume", [&port] { return port.resume(); });
}

}  // namespace

HttpRouter make_metrics(DaemonPort& port) {
  HttpRouter router;
  add_metrics(router, port);
  return router;
}

HttpRouter make_rest(DaemonPort& port) {
  HttpRouter router;
  add_metrics(router, port);
  using Answer = std::function<HttpResponse(const HttpRequest&)>;
  const auto get = [&router](const char* path, Answer answer) {
    router.add("GET", path, std::move(answer));
  };
  get("/v1/openapi.json",
      [](const HttpRequest&) { return json_response(std::string(openapi_json())); });
  get("/v1/status",
      [&port](const HttpRequest&) { return json_response(status_json(port.status())); });
  get("/v1/members", [&port](const HttpRequest&) { return json_response(members(port)); });
  get("/v1/links", [&port](const HttpRequest&) {
    return json_response(links_json(port.links(), port.sessions(), port.wire()));
  });
  get("/v1/job", [&port](const HttpRequest&) { return job(port); });
  get("/v1/history", [&port](const HttpRequest&) {
    return json_response(history_json(port.history(), port.node().name));
  });

  const auto post = [&router](const char* path, HttpHandler handler) {
    router.add("POST", path, std::move(handler));
  };
  post("/v1/cluster/join", [&port](const HttpRequest& request, const HttpRespond& respond) {
    join(port, request, respond);
  });
  post("/v1/job/extend", [&port](const HttpRequest& request, const HttpRespond& respond) {
    extend(port, request, respond);
  });
  post("/v1/job/start", [&port](const HttpRequest& request, const HttpRespond& respond) {
    start_job(port, request, respond);
  });
  post("/v1/members/forget", [&port](const HttpRequest& request, const HttpRespond& respond) {
    forget(port, request, respond);
  });
  add_commands(router, port);
  get("/v1/keys", [&port](const HttpRequest&) { return keys(port); });
  post("/v1/keys/install", [&port](const HttpRequest& request, const HttpRespond& respond) {
    install_key(port, request, respond);
  });
  post("/v1/keys/use", [&port](const HttpRequest& request, const HttpRespond& respond) {
    change_key(port, request, respond, &DaemonPort::use_key);
  });
  post("/v1/keys/retire", [&port](const HttpRequest& request, const HttpRespond& respond) {
    change_key(port, request, respond, &DaemonPort::retire_key);
  });
  post("/v1/checkpoint",
       [&port](const HttpRequest&, const HttpRespond& respond) { checkpoint(port, respond); });
  add_live_routes(router, port);
  return router;
}

}  // namespace gossipd
