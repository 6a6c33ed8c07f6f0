// What goes wrong inside a template. It becomes a levin::Error, with the name of the template,
// where the template meets the rest of the program (chat_template.cpp).
#pragma once

#include <exception>
#include <string>
#include <utility>

namespace levin::text::jinja {

class Failure : public std::exception {
 public:
  // Line 0 stands for "where the interpreter is".
  explicit Failure(std::string what, int line = 0) : what_(std::move(what)), line_(line) {}
  const char* what() const noexcept override { return what_.c_str(); }
  int line() const { return line_; }

 private:
  std::string what_;
  int line_;
};

}  // namespace levin::text::jinja
