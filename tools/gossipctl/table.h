// tools/gossipctl/table.h - rows for a person or for a program, and numbers as people read them.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

namespace gossipd {

struct Column {
  std::string title;  // of the table; empty: only in tab-separated values
  std::string name;   // of tab-separated values, the field's name in JSON; empty: only in the table
  // 0: always shown. Where a line is too wide, columns with the highest number go first.
  int dispensable = 0;
};

struct Cell {
  std::string text;
  std::string value;  // for programs: without units and grouping; empty: the text
  // Implicit, so that rows are lists of cells and strings.
  Cell(std::string shown) : text(std::move(shown)) {}
  Cell(const char* shown) : text(shown) {}
  Cell(std::string shown, std::string for_programs)
      : text(std::move(shown)), value(std::move(for_programs)) {}
};
using Cells = std::vector<Cell>;

enum class Output { table, tsv, json };

struct Layout {
  Output output = Output::table;
  bool headers = true;
  std::size_t width = 0;  // of the terminal; 0: none, nothing is left out or shortened
};

// As a table: columns are as wide as their widest cell on the terminal, where a Chinese character
// takes two columns and an accent none; what does not fit in the width is left out, least important
// columns first, then the widest cells are shortened. No trailing spaces. As tab-separated values:
// all columns, and no cell has a space in it or is empty, so that cut, awk and read agree.
void print_rows(std::ostream& out, const std::vector<Column>& columns,
                const std::vector<Cells>& rows, const Layout& layout);

// Label and text, without a header.
void print_labelled(std::ostream& out, const std::vector<std::vector<std::string>>& rows);
// As print_rows() writes a cell.
[[nodiscard]] std::string tsv_cell(const std::string& text);

[[nodiscard]] std::string grouped(std::uint64_t number);  // "18 240"
// "0.2 s", "3 min 05 s", "2 h 10 min"
[[nodiscard]] std::string human_seconds(double seconds);
[[nodiscard]] std::string human_milliseconds(double milliseconds);  // "0.4 ms", "1.2 s"
[[nodiscard]] std::string human_bytes(double bytes);         // "999 B", "1.2 MB": powers of 1000
[[nodiscard]] std::string fixed(double number, int digits);  // "0.231"

}  // namespace gossipd
