// What all report pages share: one self-contained file, styles inline, bars in CSS, no script and
// no network.
#pragma once

#include <string>
#include <string_view>

#include "bench/spread.h"

namespace levin::bench {

std::string escaped(std::string_view text);

// From the doctype to the open body; `title` is escaped here.
std::string page_head(std::string_view title);

// A row of a chart: name, drawing, value, all HTML.
std::string chart_row(std::string_view name, std::string_view drawing, std::string_view value);

// A bar from zero to the median, on a scale that ends at `largest`, with a whisker where the value
// has a spread. `colour_class` is one of the style sheet's.
std::string chart_bar(const char* colour_class, const Spread& spread, double largest);

}  // namespace levin::bench
