#include "tools/unknown_words.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "core/base/did_you_mean.h"

namespace gossipd {
namespace {

using Names = std::vector<std::string>;

Names command_names(const CLI::App& app) {
  Names names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(command->get_name());
  return names;
}

void add_option_names(const CLI::App& app, Names& names) {
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
}

std::string suggestion(const std::string& word, const Names& names) {
  if (word.size() < 3) return {};  // every short one is close to every other
  const std::string close = did_you_mean(word, names);
  return close.empty() ? std::string() : "; did you mean '" + close + "'?";
}

std::string joined(const Names& names) {
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
  return all;
}

// CLI11's own words count what is "required" of the option's values.
std::string other_mistake(const CLI::ParseError& error) {
  const std::string words = error.what();
  const std::size_t at = words.find(": At Most 1 required but received ");
  const bool repeated =
      at != std::string::npos && dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr;
  return repeated ? words.substr(0, at) + " may be given once only" : words;
}

}  // namespace

std::string named_command(const CLI::App& app) {
  const auto within = app.get_subcommands();
  return app.get_name() + (within.empty() ? "" : " " + named_command(*within.front()));
}

std::string refused_words(const CLI::App& app, const CLI::ParseError& error) {
  Names options;
  const CLI::App* command = &app;  // the innermost that was named
  add_option_names(app, options);
  while (!command->get_subcommands().empty()) {
    command = command->get_subcommands().front();
    add_option_names(*command, options);
  }
  const std::string path = named_command(app);
  const Names commands = command_names(*command), unknown = app.remaining(true);
  const bool missing_command =
      dynamic_cast<const CLI::RequiredError*>(&error) != nullptr && !commands.empty();
  if (unknown.empty())
    return missing_command ? "'" + path + "' needs a command: " + joined(commands)
                           : other_mistake(error);
  const std::string& word = unknown.front();
  if (word.size() > 1 && word.front() == '-') {
    const std::string name = word.substr(0, word.find('='));
    return "unknown option '" + name + "'" + suggestion(name, options);
  }
  if (commands.empty()) return "'" + path + "' takes no argument '" + word + "'";
  const std::string close = suggestion(word, commands);
  // Of a command with few parts all can be named.
  return "unknown command '" + word + "'" +
         (close.empty() && command != &app ? "; '" + path + "' has " + joined(commands) : close);
}

}  // namespace gossipd
