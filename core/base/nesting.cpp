#include "core/base/nesting.h"

#include <algorithm>

namespace gossipd {
namespace {

// Behind the text in quotes that begins at `at`; behind everything where it does not end. With
// three quotes it may have lines.
std::size_t skip_quoted(std::string_view text, std::size_t at, bool toml) {
  const char quote = text[at];
  const bool three =
      toml && text.substr(at, 3) == std::string_view(quote == '"' ? R"(""")" : "'''");
  const std::string_view end = text.substr(at, three ? 3 : 1);
  for (std::size_t i = at + end.size(); i < text.size(); ++i) {
    if (toml && !three && text[i] == '\n') return i;
    if (quote == '"' && text[i] == '\\') {
      ++i;
    } else if (text.substr(i, end.size()) == end) {
      i += end.size();
      // of the text itself
      for (int more = 0; three && more < 2 && i < text.size() && text[i] == quote; ++more) ++i;
      return i;
    }
  }
  return text.size();
}

bool is_part_of_key(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-' || c == ' ' || c == '\t';
}

}  // namespace

bool json_nests_deeper(std::string_view text, std::size_t levels_max) {
  std::size_t levels = 0;
  for (std::size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (c == '"') {
      i = skip_quoted(text, i, false);
      continue;
    }
    if ((c == '[' || c == '{') && ++levels > levels_max) return true;
    if ((c == ']' || c == '}') && levels > 0) --levels;
    ++i;
  }
  return false;
}

bool toml_key_is_longer(std::string_view text, std::size_t parts_max) {
  std::size_t dots = 0;
  for (std::size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (c == '"' || c == '\'') {
      i = skip_quoted(text, i, true);
      continue;
    }
    if (c == '#') {
      i = std::min(text.find('\n', i), text.size());
      continue;
    }
    if (c == '.') {
      if (++dots >= parts_max) return true;
    } else if (!is_part_of_key(c)) {
      dots = 0;
    }
    ++i;
  }
  return false;
}

}  // namespace gossipd
