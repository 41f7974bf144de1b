#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "daemon/rest/openapi.h"
#include "daemon/rest/rest.h"
#include "tests/unit/daemon_made_up.h"

using namespace gossipd;
using Json = nlohmann::json;

namespace {

Json document() {
  Json json = Json::parse(openapi_json(), nullptr, false);
  REQUIRE(json.is_object());
  return json;
}

void gather_references(const Json& json, std::set<std::string>& to) {
  if (json.is_object() && json.contains("$ref")) to.insert(json["$ref"].get<std::string>());
  if (json.is_structured())
    for (const Json& within : json) gather_references(within, to);
}

std::string upper(std::string word) {
  for (char& c : word)
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  return word;
}

}  // namespace

TEST_CASE("openapi.json names each route of the router, and no other") {
  MadeUpDaemon daemon;
  std::set<std::string> served, documented;
  for (const auto& [method, path] : make_rest(daemon).routes()) served.insert(method + " " + path);
  const Json whole = document();
  for (const auto& [path, methods] : whole["paths"].items())
    for (const auto& [method, operation] : methods.items())
      documented.insert(upper(method) + " " + path);
  for (const std::string& route : served) {
    INFO("describe it in daemon/rest/openapi.json: ", route);
    CHECK(documented.contains(route));
  }
  for (const std::string& route : documented) {
    INFO("no handler serves what daemon/rest/openapi.json describes: ", route);
    CHECK(served.contains(route));
  }
}

TEST_CASE("each operation of openapi.json has a name of its own and what it answers") {
  std::set<std::string> names;
  const Json whole = document();
  for (const auto& [path, methods] : whole["paths"].items())
    for (const auto& [method, operation] : methods.items()) {
      INFO(method, " ", path);
      CHECK(names.insert(operation.value("operationId", "")).second);
      CHECK(!operation.value("summary", "").empty());
      CHECK(operation["responses"].size() >= 2);  // what it is for, and a problem
      CHECK(operation["responses"].contains("default"));
    }
}

TEST_CASE("no reference of openapi.json leads nowhere, and no schema is unused") {
  const Json json = document();
  std::set<std::string> references;
  gather_references(json, references);
  for (const std::string& reference : references) {
    INFO(reference);
    REQUIRE(reference.starts_with("#/"));
    CHECK(json.contains(Json::json_pointer(reference.substr(1))));
  }
  for (const auto& [name, schema] : json["components"]["schemas"].items()) {
    INFO(name);
    CHECK(references.contains("#/components/schemas/" + name));
  }
}

TEST_CASE("the document that is served is the one of the sources") {
  MadeUpDaemon daemon;
  std::ifstream file(GOSSIPD_SOURCE_DIR "/daemon/rest/openapi.json");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  HttpRequest request;
  request.method = "GET";
  request.path = "/v1/openapi.json";
  HttpResponse answer;
  make_rest(daemon)(request, [&answer](HttpResponse given) { answer = std::move(given); });
  CHECK(answer.status == 200);
  CHECK(answer.content_type == "application/json");
  CHECK(answer.body == text);
}
