#include "tools/gossipctl/completion.h"

#include <set>
#include <vector>

namespace gossipd {

namespace {

using Words = std::vector<std::string>;

struct Word {
  std::string text, meaning;
};

// What may stand at one place.
struct Choice {
  std::vector<Word> words;
  bool files = false;
  bool members = false;
};

struct Switch {
  Words names;  // -o, --output
  std::string meaning;
  bool takes_value = false;
  Choice value;
};

struct Command {
  std::string path;  // "job extend"; empty: gossipctl itself
  std::vector<Word> commands;
  std::vector<Switch> switches;  // its own, and at the end of the path those of all
  Choice positional;
};

// In "CONDITION:{ready,left,members=N}" what is between the braces, a number left to the user.
std::vector<Word> values_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const std::size_t open = type.find('{'), shut = type.find('}');
  std::vector<Word> values;
  if (open == std::string::npos || shut == std::string::npos) return values;
  for (std::size_t at = open + 1; at < shut;) {
    const std::size_t end = std::min(type.find(',', at), shut);
    std::string word = type.substr(at, end - at);
    if (word.ends_with("=N")) word.pop_back();
    values.push_back({word, ""});
    at = end + 1;
  }
  return values;
}

Choice choice_of(const CLI::Option& option) {
  static const std::set<std::string> files = {"FILE", "CHECKPOINT", "OUT", "DIR"};
  const bool positional = option.get_positional();
  const std::string name = positional ? option.get_name() : option.get_type_name();
  return {values_of(option), files.contains(name), positional && name == "MEMBER"};
}

void add_switch(const CLI::Option& option, Command& command) {
  Switch one;
  for (const std::string& name : option.get_snames()) one.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) one.names.push_back("--" + name);
  one.meaning = option.get_description();
  one.takes_value = option.get_items_expected_max() > 0;
  one.value = choice_of(option);
  command.switches.push_back(std::move(one));
}

void gather(const CLI::App& app, const std::string& path, std::vector<Command>& to) {
  Command command;
  command.path = path;
  for (const CLI::App* within : app.get_subcommands([](const CLI::App*) { return true; }))
    command.commands.push_back({within->get_name(), within->get_description()});
  for (const CLI::Option* option : app.get_options())
    if (option->get_positional())
      command.positional = choice_of(*option);
    else
      add_switch(*option, command);
  if (path == "help") command.positional.words = to.front().commands;
  to.push_back(std::move(command));
  for (const CLI::App* within : app.get_subcommands([](const CLI::App*) { return true; }))
    gather(*within, path + (path.empty() ? "" : " ") + within->get_name(), to);
}

std::string in_quotes(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

constexpr const char* ask_for_members =
    "gossipctl members -o tsv --no-headers --timeout 2 2>/dev/null | cut -f1";

// ---- bash and zsh: the same functions, which set `found`, `files` and `members` ----

std::string shell_words(const std::vector<Word>& words) {
  std::string line;
  for (const Word& word : words) line += (line.empty() ? "" : " ") + word.text;
  return line;
}

std::string assignments(const Choice& choice) {
  std::string line = "found=" + in_quotes(shell_words(choice.words));
  if (choice.files) line += " files=1";
  if (choice.members) line += " members=1";
  return line;
}

std::string pattern_of(const Switch& one) {
  std::string pattern;
  for (const std::string& name : one.names) pattern += (pattern.empty() ? "" : "|") + name;
  return pattern;
}

// `_gossipctl_at WORD…`: what may follow these words.
std::string shell_function(const std::vector<Command>& commands) {
  std::string paths, values, places;
  std::set<std::string> told;
  for (const Command& command : commands) {
    if (!command.path.empty()) paths += (paths.empty() ? "" : "|") + in_quotes(command.path);
    std::string switches;
    for (const Switch& one : command.switches) {
      for (const std::string& name : one.names)
        if (name.starts_with("--")) switches += " " + name;
      if (one.takes_value && told.insert(pattern_of(one)).second)
        values += "    " + pattern_of(one) + ") " + assignments(one.value) + " ;;\n";
    }
    Choice here = command.positional;
    for (const Word& word : command.commands) here.words.push_back(word);
    places += "    " + in_quotes(command.path) + ") " + assignments(here) +
              " switches=" + in_quotes(switches.empty() ? "" : switches.substr(1)) + " ;;\n";
  }
  std::string every;
  for (const Switch& one : commands.front().switches)
    for (const std::string& name : one.names)
      if (name.starts_with("--")) every += (every.empty() ? "" : " ") + name;
  return "_gossipctl_value() {\n  case $1 in\n" + values +
         "    *) return 1 ;;\n  esac\n}\n"
         "_gossipctl_at() {\n"
         "  local at= before= word\n"
         "  found= files= members= switches= \n"
         "  for word in \"$@\"; do\n"
         "    if [[ -n $before ]]; then before=; continue; fi\n"
         "    if [[ $word == -* ]]; then\n"
         "      _gossipctl_value \"$word\" && before=$word\n"
         "      continue\n"
         "    fi\n"
         "    case \"${at:+$at }$word\" in\n"
         "      " +
         paths +
         ") at=\"${at:+$at }$word\" ;;\n"
         "    esac\n"
         "  done\n"
         "  found= files= members= switches= \n"
         "  if [[ -n $before ]]; then _gossipctl_value \"$before\"; return; fi\n"
         "  case $at in\n" +
         places + "  esac\n  switches=\"$switches " + every +
         "\"\n"
         "  [[ -z $members ]] || found=\"$found $(" +
         ask_for_members + ")\"\n}\n";
}

// Names come from other members: nothing here may expand one, as compgen -W would, and what goes to
// the command line is quoted.
std::string bash(const std::vector<Command>& commands) {
  return "# bash completion of gossipctl; `source <(gossipctl completion)` takes it\n" +
         shell_function(commands) +
         "_gossipctl() {\n"
         "  local found files members switches words one quoted word=${COMP_WORDS[COMP_CWORD]}\n"
         "  _gossipctl_at \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"\n"
         "  [[ $word != -* && -n $found$files ]] || found=\"$found $switches\"\n"
         "  COMPREPLY=()\n"
         "  IFS=$' \\n' read -rd '' -a words <<<\"$found\"\n"
         "  for one in \"${words[@]}\"; do\n"
         "    printf -v quoted %q \"$one\"\n"
         "    [[ $one != \"$word\"* && $quoted != \"$word\"* ]] || COMPREPLY+=(\"$quoted\")\n"
         "  done\n"
         "  if [[ -n $files ]]; then\n"
         "    compopt -o filenames 2>/dev/null\n"
         "    mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -f -- \"$word\")\n"
         "  fi\n"
         "}\n"
         "complete -F _gossipctl gossipctl\n";
}

std::string zsh(const std::vector<Command>& commands) {
  return "#compdef gossipctl\n" + shell_function(commands) +
         "_gossipctl() {\n"
         "  local found files members switches\n"
         "  _gossipctl_at \"${(@)words[2,CURRENT-1]}\"\n"
         "  [[ $words[CURRENT] != -* && -n $found$files ]] || found=\"$found $switches\"\n"
         "  compadd -- ${=found}\n"
         "  [[ -z $files ]] || _files\n"
         "}\n"
         "if [[ $funcstack[1] == _gossipctl ]]; then _gossipctl \"$@\"; else compdef _gossipctl "
         "gossipctl; fi\n";
}

// ---- fish: a line for each word ----

std::string fish_line(const std::string& condition, const std::string& words) {
  return "complete -c gossipctl -n " + in_quotes(condition) + " " + words + "\n";
}

std::string fish_switch(const std::string& condition, const Switch& one) {
  std::string words;
  for (const std::string& name : one.names)
    words += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
  words += " -d " + in_quotes(one.meaning);
  if (one.takes_value) words += " -r";
  if (one.takes_value && !one.value.files) words += " -f";
  if (!one.value.words.empty()) words += " -a " + in_quotes(shell_words(one.value.words));
  return fish_line(condition, words.substr(1));
}

std::string fish(const std::vector<Command>& commands) {
  std::string paths, with_value, lines;
  for (const Command& command : commands) {
    if (!command.path.empty()) paths += " " + in_quotes(command.path);
    const std::string at =
        "test \"$(__gossipctl_at)\" = " + std::string("\"") + command.path + "\"";
    for (const Word& word : command.commands)
      lines += fish_line(at, "-f -a " + word.text + " -d " + in_quotes(word.meaning));
    for (const Switch& one : command.switches) {
      lines += fish_switch(command.path.empty() ? "true" : at, one);
      if (one.takes_value)
        for (const std::string& name : one.names) with_value += " " + name;
    }
    if (!command.positional.words.empty())
      lines += fish_line(at, "-f -a " + in_quotes(shell_words(command.positional.words)));
    if (command.positional.files) lines += fish_line(at, "-F");
    if (command.positional.members)
      lines += fish_line(
          at, std::string("-f -a ") + in_quotes("(" + std::string(ask_for_members) + ")"));
  }
  return "# fish completion of gossipctl\n"
         "function __gossipctl_at\n"
         "  set -l at ''\n"
         "  set -l skip 0\n"
         "  for word in (commandline -opc)[2..]\n"
         "    if test $skip = 1\n"
         "      set skip 0\n"
         "    else if contains -- $word" +
         with_value +
         "\n"
         "      set skip 1\n"
         "    else if contains -- (string trim \"$at $word\")" +
         paths +
         "\n"
         "      set at (string trim \"$at $word\")\n"
         "    end\n"
         "  end\n"
         "  echo $at\n"
         "end\n"
         "complete -c gossipctl -f\n" +
         lines;
}

}  // namespace

std::string completion_script(const CLI::App& app, const std::string& shell) {
  std::vector<Command> commands;
  gather(app, "", commands);
  if (shell == "zsh") return zsh(commands);
  return shell == "fish" ? fish(commands) : bash(commands);
}

}  // namespace gossipd
