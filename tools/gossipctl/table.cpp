#include "tools/gossipctl/table.h"

#include <clocale>
#include <cwchar>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "core/base/figures.h"
#include "core/base/printable.h"

namespace gossipd {

namespace {

// The characters of a UTF-8 text as the C library knows them, whatever the terminal's locale is.
// What is none takes a byte and a column.
class Characters {
 public:
  explicit Characters(const std::string& text) : text_(text) { uselocale(utf8()); }
  ~Characters() { uselocale(LC_GLOBAL_LOCALE); }
  Characters(const Characters&) = delete;
  Characters& operator=(const Characters&) = delete;

  [[nodiscard]] bool ended() const { return at_ >= text_.size(); }
  [[nodiscard]] std::size_t at() const { return at_; }  // in bytes
  // Of the next character, in columns: 2 of a wide one, 0 of one that is drawn over the one before.
  std::size_t take() {
    wchar_t character = 0;
    std::mbstate_t state{};
    const std::size_t bytes = std::mbrtowc(&character, &text_[at_], text_.size() - at_, &state);
    const bool known = bytes > 0 && bytes <= text_.size() - at_;
    at_ += known ? bytes : 1;
    const int columns = known ? wcwidth(character) : 1;
    return static_cast<std::size_t>(std::max(columns, 0));
  }

 private:
  static locale_t utf8() {
    static const locale_t one = newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
    return one != nullptr ? one : LC_GLOBAL_LOCALE;
  }

  const std::string& text_;
  std::size_t at_ = 0;
};

std::size_t width(const std::string& text) {
  std::size_t columns = 0;
  for (Characters left(text); !left.ended();) columns += left.take();
  return columns;
}

constexpr std::size_t gap = 2;       // between columns
constexpr std::size_t shortest = 6;  // to which a cell is shortened

// In at most `most` columns, the last of them '…' where characters are missing.
std::string shortened(const std::string& text, std::size_t most) {
  if (width(text) <= most) return text;
  Characters left(text);
  std::size_t kept = 0;
  for (std::size_t columns = left.take(); columns < most; columns += left.take()) kept = left.at();
  return text.substr(0, kept) + "…";
}

// The rows as text, a column of which is a column of the table.
using Texts = std::vector<std::vector<std::string>>;

std::vector<std::size_t> widths_of(const Texts& texts) {
  std::vector<std::size_t> widths;
  for (const auto& row : texts)
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (i == widths.size()) widths.push_back(0);
      widths[i] = std::max(widths[i], width(row[i]));
    }
  return widths;
}

std::size_t line_width(const std::vector<std::size_t>& widths) {
  std::size_t sum = 0;
  for (const std::size_t one : widths) sum += one + gap;
  return sum < gap ? 0 : sum - gap;
}

// The most dispensable column; of equals the rightmost. No place: none may go.
std::size_t next_to_go(const std::vector<Column>& columns) {
  std::size_t found = columns.size();
  for (std::size_t i = 0; i < columns.size(); ++i)
    if (columns[i].dispensable > 0 &&
        (found == columns.size() || columns[i].dispensable >= columns[found].dispensable))
      found = i;
  return found;
}

void fit(Texts& texts, std::vector<Column> columns, std::size_t most) {
  std::vector<std::size_t> widths = widths_of(texts);
  while (line_width(widths) > most) {
    const std::size_t gone = next_to_go(columns);
    if (gone == columns.size()) break;
    const auto place = static_cast<std::ptrdiff_t>(gone);
    columns.erase(columns.begin() + place);
    widths.erase(widths.begin() + place);
    for (auto& row : texts) row.erase(row.begin() + place);
  }
  while (line_width(widths) > most) {
    const auto widest = std::max_element(widths.begin(), widths.end());
    if (*widest <= shortest) return;
    --*widest;
  }
  for (auto& row : texts)
    for (std::size_t i = 0; i < row.size(); ++i) row[i] = shortened(row[i], widths[i]);
}

void print_aligned(std::ostream& out, const Texts& texts) {
  const std::vector<std::size_t> widths = widths_of(texts);
  for (const auto& row : texts) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += row[i];
      if (i + 1 < row.size()) line += std::string(widths[i] - width(row[i]) + gap, ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out << line << '\n';
  }
}

void print_tsv_row(std::ostream& out, const std::vector<std::string>& row) {
  for (std::size_t i = 0; i < row.size(); ++i) out << (i == 0 ? "" : "\t") << row[i];
  out << '\n';
}

}  // namespace

std::string tsv_cell(const std::string& text) {
  std::string cell = printable(text);
  std::replace(cell.begin(), cell.end(), ' ', '_');
  return cell.empty() ? "-" : cell;
}

void print_rows(std::ostream& out, const std::vector<Column>& columns,
                const std::vector<Cells>& rows, const Layout& layout) {
  const bool tsv = layout.output == Output::tsv;
  std::vector<Column> shown;
  std::vector<std::size_t> places;  // of the columns that are shown
  for (std::size_t i = 0; i < columns.size(); ++i) {
    if ((tsv ? columns[i].name : columns[i].title).empty()) continue;
    shown.push_back(columns[i]);
    places.push_back(i);
  }
  Texts texts;
  if (layout.headers) {
    texts.emplace_back();
    for (const Column& column : shown) texts.back().push_back(tsv ? column.name : column.title);
  }
  for (const Cells& row : rows) {
    texts.emplace_back();
    for (const std::size_t place : places) {
      const Cell& cell = row[place];  // may come from a peer
      texts.back().push_back(tsv ? tsv_cell(cell.value.empty() ? cell.text : cell.value)
                                 : printable(cell.text));
    }
  }
  if (tsv) {
    for (const auto& row : texts) print_tsv_row(out, row);
    return;
  }
  if (layout.width > 0) fit(texts, std::move(shown), layout.width);
  print_aligned(out, texts);
}

void print_labelled(std::ostream& out, const std::vector<std::vector<std::string>>& rows) {
  Texts texts = rows;
  for (auto& row : texts)
    for (std::string& cell : row) cell = printable(cell);
  print_aligned(out, texts);
}

std::string fixed(double number, int digits) {
  return std::isfinite(number) ? decimals(number, digits) : "-";
}

std::string grouped(std::uint64_t number) {
  std::string digits = std::to_string(number), out;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i != 0 && (digits.size() - i) % 3 == 0) out += ' ';
    out += digits[i];
  }
  return out;
}

std::string human_seconds(double seconds) {
  if (!std::isfinite(seconds)) return "-";
  if (seconds < 59.95) return fixed(seconds, 1) + " s";
  const auto whole = static_cast<std::uint64_t>(std::llround(seconds));
  char text[64];
  if (whole < 3600)
    std::snprintf(text, sizeof text, "%u min %02u s", static_cast<unsigned>(whole / 60),
                  static_cast<unsigned>(whole % 60));
  else
    std::snprintf(text, sizeof text, "%llu h %02u min",
                  static_cast<unsigned long long>(whole / 3600),
                  static_cast<unsigned>(whole % 3600 / 60));
  return text;
}

std::string human_milliseconds(double milliseconds) {
  return milliseconds < 999.95 ? fixed(milliseconds, 1) + " ms" : human_seconds(milliseconds / 1e3);
}

std::string human_bytes(double bytes) {
  static constexpr const char* units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
  std::size_t unit = 0;
  while (bytes >= 999.5 && unit + 1 < std::size(units)) bytes /= 1000, ++unit;
  return fixed(bytes, unit == 0 || bytes >= 99.95 ? 0 : 1) + " " + units[unit];
}

}  // namespace gossipd
