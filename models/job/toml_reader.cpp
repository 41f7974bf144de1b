#include "models/job/toml_reader.h"

#include <toml++/toml.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <deque>
#include <fstream>
#include <map>
#include <set>

#include "core/base/did_you_mean.h"
#include "core/base/lasting_error.h"
#include "core/base/nesting.h"
#include "models/files/regular_file.h"

namespace gossipd {

namespace {

constexpr std::size_t shown_bytes_max = 64;

// A text from outside, fit to stand in a one-line message.
std::string shown(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, shown_bytes_max))
    out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  if (text.size() > shown_bytes_max) out += "...";
  return out;
}

std::string_view type_name(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::table: return "a table";
    case toml::node_type::array: return "an array";
    case toml::node_type::string: return "a string";
    case toml::node_type::integer: return "an integer";
    case toml::node_type::floating_point: return "a number";
    case toml::node_type::boolean: return "true or false";
    default: return "a date or time";
  }
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.10g", value);
  return text;
}

template <typename Range>
std::string join(const Range& words) {
  std::string out;
  for (const auto& word : words) out += (out.empty() ? "" : ", ") + std::string(word);
  return out;
}

}  // namespace

struct TomlTable::Scope {
  const toml::table* table = nullptr;  // null: the text has no such table
  std::string path;                    // "optimizer.", empty for the root
  std::uint32_t line = 0;
  std::set<std::string, std::less<>> known, refused;
  std::map<std::string, Scope*, std::less<>> children;

  const toml::node* find(std::string_view key) {
    known.emplace(key);
    return table != nullptr ? table->get(key) : nullptr;
  }
};

struct TomlReader::State {
  struct Mistake {
    std::uint32_t line = 0;
    std::string text;
  };
  toml::table document;
  std::deque<TomlTable::Scope> scopes;  // addresses stay
  std::vector<Mistake> mistakes;
  std::size_t mistakes_left_out = 0;
  std::string parse_error;  // then nothing else is worth saying

  void note(std::uint32_t line, std::string text) {
    if (!parse_error.empty()) return;
    if (mistakes.size() < toml_errors_max)
      mistakes.push_back({line, std::move(text)});
    else
      ++mistakes_left_out;
  }
  void note(const TomlTable::Scope& scope, std::string_view key, const toml::node* node,
            std::string_view why) {
    const std::uint32_t line = node != nullptr ? node->source().begin.line : scope.line;
    note(line, scope.path + shown(key) + ": " + std::string(why));
  }
  void note_unknown_keys();
};

TomlReader::TomlReader(std::string_view text, std::string origin, std::size_t bytes_max)
    : origin_(std::move(origin)), state_(std::make_unique<State>()) {
  state_->scopes.emplace_back();
  if (text.size() > bytes_max) {
    state_->parse_error = origin_ + ": the text has " + std::to_string(text.size()) +
                          " bytes; at most " + std::to_string(bytes_max) + " are read";
    return;
  }
  if (toml_key_is_longer(text)) {
    state_->parse_error = origin_ + ": a key has more than " + std::to_string(toml_key_parts_max) +
                          " parts; shorten it";
    return;
  }
  try {
    state_->document = toml::parse(text, std::string_view(origin_));
    state_->scopes.front().table = &state_->document;
  } catch (const toml::parse_error& error) {
    state_->parse_error = origin_ + ":" + std::to_string(error.source().begin.line) +
                          ": this is not TOML: " + shown(error.description()) +
                          "; see https://toml.io for the format";
  }
}

TomlReader::~TomlReader() = default;

TomlTable TomlReader::root() { return TomlTable(this, &state_->scopes.front()); }

void TomlReader::State::note_unknown_keys() {
  for (const TomlTable::Scope& scope : scopes) {
    if (scope.table == nullptr) continue;
    const std::vector<std::string> known(scope.known.begin(), scope.known.end());
    for (const auto& [key, node] : *scope.table) {
      if (scope.known.contains(key.str())) continue;
      const std::string guess = did_you_mean(key.str(), known);
      std::string why = "unknown key; ";
      if (!guess.empty())
        why += "did you mean '" + guess + "'?";
      else if (known.empty())
        why += "remove it";
      else
        why += "remove it, or use one of: " + join(known);
      note(key.source().begin.line, scope.path + shown(key.str()) + ": " + why);
    }
  }
}

std::optional<Error> TomlReader::finish() {
  State& state = *state_;
  if (!state.parse_error.empty()) return Error{"bad-toml", state.parse_error};
  state.note_unknown_keys();
  if (state.mistakes.empty()) return std::nullopt;
  std::stable_sort(state.mistakes.begin(), state.mistakes.end(),
                   [](const auto& a, const auto& b) { return a.line < b.line; });
  std::string text;
  for (const auto& [line, what] : state.mistakes)
    text += (text.empty() ? "" : "\n") + origin_ + (line > 0 ? ":" + std::to_string(line) : "") +
            ": " + what;
  if (state.mistakes_left_out > 0)
    text += "\n... and " + std::to_string(state.mistakes_left_out) + " more";
  return Error{"bad-config", text};
}

bool TomlTable::present() const { return scope_->table != nullptr; }

bool TomlTable::has(std::string_view key) const { return scope_->find(key) != nullptr; }

std::vector<std::string> TomlTable::keys() const {
  std::vector<std::string> out;
  if (scope_->table != nullptr)
    for (const auto& [key, node] : *scope_->table) out.emplace_back(key.str());
  return out;
}

TomlTable TomlTable::table(std::string_view key) {
  const toml::node* node = scope_->find(key);
  if (const auto child = scope_->children.find(key); child != scope_->children.end())
    return {reader_, child->second};
  Scope& child = reader_->state_->scopes.emplace_back();
  child.path = scope_->path + std::string(key) + ".";
  if (node != nullptr) {
    child.table = node->as_table();
    child.line = node->source().begin.line;
    if (child.table == nullptr)
      refuse(key, "must be a table, not " + std::string(type_name(*node)) + "; write [" +
                      scope_->path + std::string(key) + "] on a line of its own");
  }
  scope_->children.emplace(key, &child);
  return {reader_, &child};
}

std::vector<TomlTable> TomlTable::tables(std::string_view key, std::size_t count_max) {
  const toml::node* node = scope_->find(key);
  if (node == nullptr) return {};
  const toml::array* array = node->as_array();
  if (array == nullptr ||
      !std::all_of(array->begin(), array->end(), [](const auto& n) { return n.is_table(); })) {
    refuse(key, "must be a list of tables; write [[" + scope_->path + std::string(key) +
                    "]] before each");
    return {};
  }
  if (array->size() > count_max) {
    refuse(key, "there are " + std::to_string(array->size()) + " of these; at most " +
                    std::to_string(count_max) + " are allowed");
    return {};
  }
  std::vector<TomlTable> out;
  for (std::size_t i = 0; i < array->size(); ++i) {
    const std::string name = std::string(key) + "[" + std::to_string(i) + "]";
    const auto found = scope_->children.find(name);
    Scope* child = found != scope_->children.end() ? found->second : nullptr;
    if (child == nullptr) {
      child = &reader_->state_->scopes.emplace_back();
      child->path = scope_->path + name + ".";
      child->table = array->get(i)->as_table();
      child->line = array->get(i)->source().begin.line;
      scope_->children.emplace(name, child);
    }
    out.push_back(TomlTable(reader_, child));
  }
  return out;
}

void TomlTable::refuse(std::string_view key, std::string_view reason_and_way_out) {
  if (scope_->refused.emplace(key).second)
    reader_->state_->note(*scope_, key, scope_->find(key), reason_and_way_out);
}

std::string TomlTable::get_string(std::string_view key, std::string_view fallback) {
  const toml::node* node = scope_->find(key);
  if (node == nullptr) return std::string(fallback);
  const auto* text = node->as_string();
  if (text == nullptr) {
    refuse(key, "must be a string, not " + std::string(type_name(*node)) + "; write " +
                    std::string(key) + " = \"...\"");
    return std::string(fallback);
  }
  if ((*text)->size() > toml_string_bytes_max) {
    refuse(key, "the string is longer than " + std::to_string(toml_string_bytes_max) +
                    " bytes; shorten it");
    return std::string(fallback);
  }
  return text->get();
}

std::string TomlTable::require_string(std::string_view key) {
  const bool given = has(key);
  std::string text = get_string(key, "");
  if (!given)
    refuse(key, "is missing; write " + std::string(key) + " = \"...\"");
  else if (text.empty() && scope_->find(key)->is_string() &&
           (*scope_->find(key)->as_string())->empty())
    refuse(key, "must not be empty");
  return text;
}

bool TomlTable::get_bool(std::string_view key, bool fallback) {
  const toml::node* node = scope_->find(key);
  if (node == nullptr) return fallback;
  if (const auto* value = node->as_boolean()) return value->get();
  refuse(key, "must be true or false (without quotes), not " + std::string(type_name(*node)));
  return fallback;
}

std::int64_t TomlTable::get_integer(std::string_view key, std::int64_t fallback, std::int64_t min,
                                    std::int64_t max) {
  const toml::node* node = scope_->find(key);
  if (node == nullptr) return fallback;
  const auto* value = node->as_integer();
  if (value == nullptr) {
    // 1e9 is meant as it looks
    const double meant = node->value<double>().value_or(0.5);
    const bool whole = meant == std::floor(meant) && meant >= static_cast<double>(min) &&
                       meant <= std::min(static_cast<double>(max), 1e15);
    refuse(key, "must be an integer, not " + std::string(type_name(*node)) + "; for example " +
                    std::string(key) + " = " +
                    std::to_string(whole ? static_cast<std::int64_t>(meant) : fallback));
    if (whole) return static_cast<std::int64_t>(meant);
    return fallback;
  }
  if (value->get() < min || value->get() > max) {
    refuse(key, std::to_string(value->get()) + " is out of range; choose a value from " +
                    std::to_string(min) + " to " + std::to_string(max));
    return fallback;
  }
  return value->get();
}

std::int64_t TomlTable::require_integer(std::string_view key, std::int64_t min, std::int64_t max) {
  if (!has(key)) {
    refuse(key, "is missing; write " + std::string(key) + " = N, from " + std::to_string(min) +
                    " to " + std::to_string(max));
    return min;
  }
  return get_integer(key, min, min, max);
}

double TomlTable::get_double(std::string_view key, double fallback, double min, double max) {
  const toml::node* node = scope_->find(key);
  if (node == nullptr) return fallback;
  if (!node->is_number()) {
    refuse(key, "must be a number, not " + std::string(type_name(*node)) + "; for example " +
                    std::string(key) + " = " + number(fallback));
    return fallback;
  }
  const double value = node->is_integer() ? static_cast<double>(node->as_integer()->get())
                                          : node->as_floating_point()->get();
  if (std::isfinite(value) && value >= min && value <= max) return value + 0.0;  // -0 reads as 0
  refuse(key, number(value) + " is out of range; choose a value from " + number(min) + " to " +
                  number(max));
  return fallback;
}

std::vector<std::string> TomlTable::get_strings(std::string_view key,
                                                std::vector<std::string> fallback,
                                                std::size_t count_max) {
  const toml::node* node = scope_->find(key);
  if (node == nullptr) return fallback;
  if (node->is_string()) return {get_string(key, fallback.empty() ? "" : fallback[0])};
  const toml::array* array = node->as_array();
  if (array == nullptr || array->size() > std::min(count_max, toml_array_max)) {
    refuse(key, "must be a list of at most " + std::to_string(std::min(count_max, toml_array_max)) +
                    " strings; write " + std::string(key) + " = [\"...\", \"...\"]");
    return fallback;
  }
  std::vector<std::string> out;
  for (const toml::node& element : *array) {
    const auto* text = element.as_string();
    if (text == nullptr || (*text)->size() > toml_string_bytes_max) {
      refuse(key, "every element must be a string of at most " +
                      std::to_string(toml_string_bytes_max) + " bytes; one is " +
                      std::string(type_name(element)));
      return fallback;
    }
    out.push_back(text->get());
  }
  return out;
}

std::vector<std::int64_t> TomlTable::get_integers(std::string_view key,
                                                  std::vector<std::int64_t> fallback,
                                                  std::int64_t min, std::int64_t max,
                                                  std::size_t count_max) {
  const toml::node* node = scope_->find(key);
  if (node == nullptr) return fallback;
  const toml::array* array = node->as_array();
  if (array == nullptr || array->size() > std::min(count_max, toml_array_max)) {
    refuse(key, "must be a list of at most " + std::to_string(std::min(count_max, toml_array_max)) +
                    " integers; write " + std::string(key) + " = [1, 2]");
    return fallback;
  }
  std::vector<std::int64_t> out;
  for (const toml::node& element : *array) {
    const auto* value = element.as_integer();
    if (value == nullptr || value->get() < min || value->get() > max) {
      refuse(key, "every element must be an integer from " + std::to_string(min) + " to " +
                      std::to_string(max));
      return fallback;
    }
    out.push_back(value->get());
  }
  return out;
}

std::vector<double> TomlTable::get_doubles(std::string_view key, std::vector<double> fallback,
                                           double min, double max) {
  const toml::node* node = scope_->find(key);
  if (node == nullptr) return fallback;
  const toml::array* array = node->as_array();
  if (array == nullptr) return {get_double(key, fallback.empty() ? min : fallback[0], min, max)};
  std::vector<double> out;
  for (const toml::node& element : *array) {
    const double value = element.is_integer() ? static_cast<double>(element.as_integer()->get())
                                              : element.value_or(std::nan(""));
    if (!element.is_number() || !std::isfinite(value) || value < min || value > max ||
        out.size() == toml_array_max) {
      refuse(key, "every element must be a number from " + number(min) + " to " + number(max));
      return fallback;
    }
    out.push_back(value + 0.0);  // -0 reads as 0
  }
  return out;
}

std::string TomlTable::get_choice(std::string_view key, std::string_view fallback,
                                  std::span<const std::string_view> choices) {
  const std::string text = get_string(key, fallback);
  if (std::find(choices.begin(), choices.end(), text) != choices.end() || text == fallback)
    return text;
  const std::vector<std::string> names(choices.begin(), choices.end());
  const std::string guess = did_you_mean(text, names);
  refuse(key, "'" + shown(text) + "' is not a choice; " +
                  (guess.empty() ? "" : "did you mean '" + guess + "'? ") +
                  "choose one of: " + join(names));
  return std::string(fallback);
}

Result<std::string> read_text_file(const std::string& path, std::size_t bytes_max) {
  if (auto refused = refuse_irregular(path)) return *refused;
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (const int why = errno; !file) {
    const bool lasting = why == 0 || why == ENOENT || is_lasting(why);
    return Error{lasting ? "not-found" : "io-error",
                 path + ": cannot be opened: " + std::strerror(why) +
                     (lasting ? "; check the path and its permissions"
                              : "; look for the disk's errors in the system's log, and at the "
                                "limit of open files")};
  }
  std::string text(bytes_max + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) return Error{"io-error", path + ": cannot be read; check the disk"};
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() > bytes_max)
    return Error{"too-large", path + ": has more than " + std::to_string(bytes_max) +
                                  " bytes; this is probably not the file that was meant"};
  return text;
}

}  // namespace gossipd
