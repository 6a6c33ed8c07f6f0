// Plain-text tables for the terminal.
#pragma once

#include <string>
#include <vector>

namespace levin::evaluate {

// First column left-aligned, the others right-aligned; widths count characters, not bytes.
class Table {
 public:
  explicit Table(std::vector<std::string> header);
  // Missing cells at the end are empty.
  void add_row(std::vector<std::string> cells);
  // A line of dashes.
  void add_rule();
  bool empty() const { return rows_.size() == 1; }
  // Lines end with a newline; no trailing blanks.
  std::string to_string() const;

 private:
  std::vector<std::vector<std::string>> rows_;  // an empty row is a rule
};

}  // namespace levin::evaluate
