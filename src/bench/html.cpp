#include "bench/html.h"

#include <fmt/format.h>

#include "bench/page_style.h"

namespace levin::bench {

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::string page_head(std::string_view title) {
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>{}</title>\n<style>{}</style>\n</head>\n<body>\n",
      escaped(title), kPageStyle);
}

std::string chart_row(std::string_view name, std::string_view drawing, std::string_view value) {
  return fmt::format(
      "<div class=\"row\"><span class=\"name\">{}</span><span class=\"track\">{}</span>"
      "<span class=\"value\">{}</span></div>\n",
      name, drawing, value);
}

std::string chart_bar(const char* colour_class, const Spread& spread, double largest) {
  std::string drawing = fmt::format("<span class=\"bar {}\" style=\"width:{:.2f}%\"></span>",
                                    colour_class, 100 * spread.median / largest);
  if (spread.max > spread.min) {
    drawing += fmt::format("<span class=\"whisker\" style=\"left:{:.2f}%;width:{:.2f}%\"></span>",
                           100 * spread.min / largest, 100 * (spread.max - spread.min) / largest);
  }
  return drawing;
}

}  // namespace levin::bench
