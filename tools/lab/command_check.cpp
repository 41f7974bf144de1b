// gossip-lab check.
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "tools/lab/commands.h"
#include "tools/lab/scenario.h"

namespace gossipd::lab {

namespace {

// What is wrong with a line; empty if nothing is.
std::string mistake_of(const std::string& line) {
  const auto words = nlohmann::json::parse(line, nullptr, false);
  const auto is_text = [](const nlohmann::json& word) { return word.is_string(); };
  if (!words.is_array() || words.empty() || !std::all_of(words.begin(), words.end(), is_text))
    return R"(it is not of the form ["FILE", "KEY=VALUE", ...])";
  const auto texts = words.get<std::vector<std::string>>();
  const Result<Scenario> scenario = Scenario::load(texts.front(), {texts.begin() + 1, texts.end()});
  return scenario ? "" : scenario.error().text;
}

}  // namespace

void add_check(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "check",
      "say what is wrong with many scenarios at once: reads them from standard input, one a line, "
      "as JSON: [\"FILE\", \"KEY=VALUE\", ...]");
  command->callback([&exit_code] {
    std::string line;
    for (std::size_t number = 1; std::getline(std::cin, line); ++number) {
      const std::string mistake = mistake_of(line);
      if (mistake.empty()) continue;
      std::cerr << "gossip-lab: line " << number << ": " << mistake << "\n";
      exit_code = 2;
    }
  });
}

}  // namespace gossipd::lab
