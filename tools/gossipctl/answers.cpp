#include "tools/gossipctl/answers.h"

#include "core/base/nesting.h"
#include "core/base/printable.h"

namespace gossipd {

Json parse_answer(const std::string& body) {
  return json_nests_deeper(body) ? Json() : Json::parse(body, nullptr, false);
}

std::string text(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
}

std::optional<double> number(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

std::uint64_t count(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_number_unsigned() ? found->get<std::uint64_t>() : 0;
}

bool flag(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_boolean() && found->get<bool>();
}

Json list(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_array() ? *found : Json::array();
}

ExitCode fail(Console& console, const Failure& failure) {
  print_failure(console.err, failure);
  return failure.code;
}

Asked ask(const DaemonClient& client, const std::string& target) {
  const DaemonClient::Answer answer = client.get(target);
  if (!answer.ok) return {.json = {}, .body = {}, .failure = answer.failure};
  Json json = parse_answer(answer.body);
  std::string wrong;
  if (!json.is_object())
    wrong = " is not a JSON object";
  else if (target == "/v1/status" && text(json, "phase").empty())
    wrong = " names no phase";
  if (!wrong.empty())
    return {.json = {},
            .body = {},
            .failure = Failure{ExitCode::failed, "the answer to " + target + wrong,
                               "something other than gossipd listens at " + client.address(),
                               "check --rest"}};
  return {.json = std::move(json), .body = answer.body, .failure = std::nullopt};
}

ExitCode show(const DaemonClient& client, Console& console, const std::string& target,
              const std::function<void(const Json&)>& print,
              const std::function<std::optional<Failure>(const Json&)>& judge) {
  const Asked asked = ask(client, target);
  if (asked.failure) return fail(console, *asked.failure);
  if (console.output == Output::json)
    console.out << printable(asked.body, Lines::many);
  else
    print(asked.json);
  const std::optional<Failure> verdict = judge ? judge(asked.json) : std::nullopt;
  return verdict ? fail(console, *verdict) : ExitCode::ok;
}

}  // namespace gossipd
