#include "daemon/disk/run_account.h"

#include <charconv>
#include <nlohmann/json.hpp>

#include "daemon/disk/durable_file.h"

namespace gossipd {

namespace {

using Json = nlohmann::json;

std::string token_text(const attach::RunToken& run) {
  std::string text;
  for (const std::uint8_t byte : run) text += to_hex(std::uint64_t{byte}).substr(14);
  return text;
}

bool parse_token(const std::string& text, attach::RunToken& out) {
  if (text.size() != 2 * out.size()) return false;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const char* const at = text.data() + 2 * i;
    const auto [end, error] = std::from_chars(at, at + 2, out[i], 16);
    if (error != std::errc{} || end != at + 2) return false;
  }
  return true;
}

bool parse_counters(const Json& json, const std::string& of, attach::Counters& out) {
  const auto steps = json.find(of + "_steps"), samples = json.find(of + "_samples");
  if (steps == json.end() || samples == json.end() || !steps->is_number_unsigned() ||
      !samples->is_number_unsigned())
    return false;
  out.steps = *steps;
  out.samples = *samples;
  return out.steps <= attach::counter_max && out.samples <= attach::counter_max;
}

}  // namespace

std::optional<RunAccount> read_run_account(const std::filesystem::path& path) {
  const Result<std::string> text = read_whole(path, 4096);
  if (!text) return std::nullopt;
  const Json json = Json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
  RunAccount out;
  const auto run = json.find("run");
  if (run == json.end() || !run->is_string() || !parse_token(*run, out.run) ||
      !parse_counters(json, "run_began", out.run_began) ||
      !parse_counters(json, "node_began", out.node_began))
    return std::nullopt;
  return out;
}

std::optional<Error> write_run_account(const std::filesystem::path& path,
                                       const RunAccount& account) {
  const Json json = {{"run", token_text(account.run)},
                     {"run_began_steps", account.run_began.steps},
                     {"run_began_samples", account.run_began.samples},
                     {"node_began_steps", account.node_began.steps},
                     {"node_began_samples", account.node_began.samples}};
  return write_durably(path, json.dump(1) + '\n');
}

}  // namespace gossipd
