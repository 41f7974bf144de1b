// Events, curves of all members and the dashboard's files, without a socket.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "daemon/rest/live.h"
#include "daemon_made_up.h"
#include "net/http/body_stream.h"

using namespace gossipd;
using Json = nlohmann::json;

namespace {

constexpr double noon = 1'700'000'000;

struct Told {
  std::string event, id, data;
};

// Everything that waits in a stream, as a client would read it.
std::vector<Told> read(HttpBodyStream& stream) {
  std::string text;
  for (auto piece = stream.front(); piece; piece = stream.front()) {
    text += *piece;
    stream.pop();
  }
  std::vector<Told> told(1);
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t end = text.find('\n', at);
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    const auto value = [&line](const char* field) { return line.substr(std::strlen(field)); };
    if (line.empty()) told.emplace_back();
    if (line.starts_with("event: ")) told.back().event = value("event: ");
    if (line.starts_with("id: ")) told.back().id = value("id: ");
    if (line.starts_with("data: ")) told.back().data = value("data: ");
  }
  told.pop_back();
  return told;
}

std::vector<Told> read_after(Events& events, const std::string& after) {
  return read(*events.open({.after = after, .snapshots = false, .follow = false}, ""));
}

HttpResponse ask(DaemonPort& port, const std::string& path,
                 std::map<std::string, std::string> query = {},
                 std::map<std::string, std::string> headers = {}) {
  std::optional<HttpResponse> given;
  HttpRequest request{.method = "GET", .path = path, .query = {}, .headers = {}, .body = ""};
  request.query = std::move(query);
  request.headers = std::move(headers);
  HttpRouter router = make_rest(port);
  add_dashboard(router);
  router(request, [&given](HttpResponse response) { given = std::move(response); });
  REQUIRE(given);
  return *given;
}

}  // namespace

TEST_CASE("a line of the log becomes an event with its fields") {
  const Json json = Json::parse(event_json(
      Level::warning,
      R"(event=refused-by peer=00aa code=job-mismatch reason="it says \"no\", twice")", noon));
  CHECK(json["kind"] == "refused-by");
  CHECK(json["level"] == "warning");
  CHECK(json["time"] == "2023-11-14T22:13:20Z");
  CHECK(json["fields"] ==
        Json{{"peer", "00aa"}, {"code", "job-mismatch"}, {"reason", "it says \"no\", twice"}});
}

TEST_CASE("words that are no fields, no text and no UTF-8 still make an event") {
  for (const std::string& words :
       {std::string(), std::string("alone"), std::string("=\"\"=== \" x=\""), std::string("a=\""),
        std::string("event=\xff\xfe x=\"\xc3"), std::string(5000, '"'), std::string(5000, '=')}) {
    CAPTURE(words);
    CHECK(Json::parse(event_json(Level::info, words, noon)).is_object());
  }
  std::string many = "event=many";
  for (int n = 0; n < 100; ++n) many += " k" + std::to_string(n) + "=1";
  CHECK(Json::parse(event_json(Level::info, many, noon))["fields"].size() == Events::fields_max);
}

TEST_CASE("a client that comes back gets what it has missed, each once") {
  Events events(7);
  for (int n = 1; n <= 5; ++n) events.note(Level::info, "event=e" + std::to_string(n), noon);
  const auto all = read_after(events, "");
  REQUIRE(all.size() == 5);
  CHECK(all[0].id == "7-1");
  const auto later = read_after(events, all[2].id);
  REQUIRE(later.size() == 2);
  CHECK(later[0].id == "7-4");
  CHECK(read_after(events, events.last_id()).empty());
}

TEST_CASE("events that are gone are counted as a gap") {
  Events events(7);
  const std::size_t told = Events::kept_max + 10;
  for (std::size_t n = 1; n <= told; ++n) events.note(Level::info, "event=e", noon);
  const auto later = read_after(events, "7-4");
  REQUIRE(later.size() == Events::kept_max + 1);
  CHECK(later[0].event == "gap");
  CHECK(Json::parse(later[0].data)["missed"] == 6);
  CHECK(later[1].id == "7-11");
}

TEST_CASE("an id of another life, or none at all, begins with the first event") {
  Events events(7);
  events.note(Level::info, "event=e", noon);
  for (const char* id :
       {"6-1", "7", "7-", "7-x", "7-1x", "7-2", "7-99999999999999999999999", "-", "7--1", "7-0"}) {
    CAPTURE(id);
    CHECK(read_after(events, id).size() == 1);
  }
}

TEST_CASE("a follower hears events as they happen, until it closes") {
  Events events(7);
  const auto stream = events.open({.after = "", .snapshots = false, .follow = true}, "");
  events.note(Level::info, "event=link-up", noon);
  const auto told = read(*stream);
  REQUIRE(told.size() == 1);
  CHECK(told[0].event == "event");
  stream->break_off();
  events.note(Level::info, "event=link-down", noon);
  CHECK(events.listeners() == 0);
}

TEST_CASE("snapshots come about once a second, to those who have read the last one") {
  using std::chrono::milliseconds;
  Events events(7);
  const Instant start{std::chrono::hours(1)};
  CHECK_FALSE(events.snapshot_due(start, 3));  // nobody listens
  const auto quick = events.open({}, "{}");
  const auto slow = events.open({}, "{}");
  (void)read(*quick);
  CHECK(events.snapshot_due(start, 3));
  CHECK_FALSE(events.snapshot_due(start + milliseconds(400), 3));
  events.tell_snapshot("{\"n\":1}");
  CHECK(read(*quick).size() == 1);
  CHECK(read(*slow).size() == 1);  // the first one only
  CHECK(events.snapshot_due(start + milliseconds(990), 3));
  SUBCASE("and more rarely in a large cluster") {
    CHECK_FALSE(events.snapshot_due(start + milliseconds(3000), 1000));
    CHECK(events.snapshot_due(start + milliseconds(7000), 1000));
  }
}

TEST_CASE("a follower that does not read is dropped, whatever is told") {
  Events events(7);
  const auto stream = events.open({}, "{}");
  const std::string words = "event=flood text=\"" + std::string(900, 'x') + '"';
  int told = 0;
  while (events.listeners() > 0 && told < 100'000) {
    events.note(Level::info, words, noon);
    ++told;
  }
  CHECK(told < 100'000);
  CHECK(stream->overflowed());
  CHECK(stream->waiting_bytes() == 0);
}

TEST_CASE("GET /v1/events begins with a snapshot of status, members and links") {
  MadeUpDaemon daemon;
  daemon.live.note(Level::info, "event=link-up peer=bb", noon);
  const HttpResponse response = ask(daemon, "/v1/events");
  CHECK(response.content_type == "text/event-stream");
  REQUIRE(response.stream);
  const auto told = read(*response.stream);
  REQUIRE(told.size() == 2);
  CHECK(told[0].event == "event");
  CHECK(told[1].event == "snapshot");
  const Json snapshot = Json::parse(told[1].data);
  CHECK(snapshot["status"]["name"] == "box1");
  CHECK(snapshot["members"]["members"].size() == 2);
  CHECK(snapshot["links"]["links"].size() == 1);
  CHECK(response.stream->is_open());
}

TEST_CASE("GET /v1/events takes an id, and refuses what it does not know") {
  MadeUpDaemon daemon;
  for (int n = 0; n < 3; ++n) daemon.live.note(Level::info, "event=e", noon);
  const std::map<std::string, std::string> only{{"snapshots", "false"}, {"follow", "false"}};
  const HttpResponse by_header = ask(daemon, "/v1/events", only, {{"last-event-id", "7-2"}});
  CHECK(read(*by_header.stream).size() == 1);
  CHECK_FALSE(by_header.stream->is_open());
  auto with_id = only;
  with_id["after"] = "7-1";
  CHECK(read(*ask(daemon, "/v1/events", with_id).stream).size() == 2);
  CHECK(ask(daemon, "/v1/events", {{"follow", "maybe"}}).status == 400);
  CHECK(ask(daemon, "/v1/events", {{"sort", "up"}}).status == 400);
}

TEST_CASE("the dashboard's files are whole, typed and allow nothing from elsewhere") {
  MadeUpDaemon daemon;
  std::size_t bytes = 0;
  for (const std::string& path : dashboard_paths()) {
    CAPTURE(path);
    const HttpResponse file = ask(daemon, path);
    CHECK(file.status == 200);
    CHECK(file.body.size() > 100);
    CHECK(file.body.find('\0') == std::string::npos);
    bytes += file.body.size();
    const auto policy = std::ranges::find(file.headers, "Content-Security-Policy",
                                          &std::pair<std::string, std::string>::first);
    REQUIRE(policy != file.headers.end());
    CHECK(policy->second.find("default-src 'none'") != std::string::npos);
    CHECK(policy->second.find("unsafe") == std::string::npos);
    // No address of another site, but for SVG's name.
    std::string text = file.body;
    const std::string svg = "http://www.w3.org/2000/svg";
    if (const auto at = text.find(svg); at != std::string::npos) text.erase(at, svg.size());
    CHECK(text.find("://") == std::string::npos);
    // The ways in which text becomes markup.
    for (const char* way : {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write",
                            "eval(", "onclick=", "style=\""})
      CHECK(text.find(way) == std::string::npos);
  }
  CHECK(bytes < 100'000);
  CHECK(ask(daemon, "/").content_type == "text/html; charset=utf-8");
  CHECK(ask(daemon, "/").body.find("<!doctype html>") == 0);
}

TEST_CASE("curves of members share one clock, and say null where nothing is known") {
  MemberHistory history;
  auto members = std::vector{MadeUpDaemon::member(0xaa, "box1", true)};
  history.add(0, members);
  members.push_back(MadeUpDaemon::member(0xbb, "<b>\xff", false));
  CHECK_FALSE(history.due(1.5));
  CHECK(history.due(2));
  history.add(2, members);
  const Json json = Json::parse(history.json());
  CHECK(json["time_s"] == Json{0, 2});
  REQUIRE(json["members"].size() == 2);
  CHECK(json["members"][0]["name"] == "box1");
  CHECK(json["members"][0]["loss"] == Json{0.2314, 0.2314});
  CHECK(json["members"][1]["loss"] == Json{nullptr, 0.2314});
}

TEST_CASE("curves of a churning cluster stay within their bounds") {
  MemberHistory history;
  double time_s = 0;
  std::uint64_t next = 1;
  for (int n = 0; n < 3000; ++n, time_s += 2) {
    if (!history.due(time_s)) continue;
    std::vector<MemberView> members;
    for (std::uint64_t k = 0; k < 100; ++k)
      members.push_back(MadeUpDaemon::member(next + k, "box", false));
    next += 7;
    history.add(time_s, members);
  }
  const Json json = Json::parse(history.json());
  CHECK(json["time_s"].size() <= MemberHistory::columns_max);
  CHECK(json["time_s"].size() >= MemberHistory::columns_max / 2);
  CHECK(json["members"].size() <= MemberHistory::members_max);
  for (const Json& member : json["members"]) CHECK(member["loss"].size() == json["time_s"].size());
}
