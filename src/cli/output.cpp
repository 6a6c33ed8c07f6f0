#include "cli/output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "core/error.h"

namespace levin::cli {
namespace {

[[noreturn]] void fail(int error) {
  throw Error({.what = error == EPIPE ? "" : std::string("cannot write: ") + std::strerror(error),
               .where = error == EPIPE ? "" : "standard output",
               .expected = {},
               .found = {},
               .hint = {},
               .exit_code = ExitCode::kMachine});
}

// A document with the control characters that JSON lets stand (DEL, U+0080 to U+009F) escaped too,
// so that it cannot steer a terminal. They can only be in its strings.
std::string without_controls(const std::string& document) {
  std::string out;
  for (std::size_t i = 0; i < document.size(); ++i) {
    const auto byte = static_cast<unsigned char>(document[i]);
    const auto next = static_cast<unsigned char>(i + 1 < document.size() ? document[i + 1] : 0);
    if (byte == 0x7f) {
      out += "\\u007f";
    } else if (byte == 0xc2 && next >= 0x80 && next < 0xa0) {
      out += fmt::format("\\u{:04x}", next);
      ++i;
    } else {
      out += document[i];
    }
  }
  return out;
}

}  // namespace

void print_text(std::string_view text) {
  errno = 0;
  const bool ends_line = text.ends_with('\n');
  bool good = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (!ends_line && ::isatty(STDOUT_FILENO) != 0) good = std::fputc('\n', stdout) != EOF && good;
  if (std::fflush(stdout) != 0 || !good) fail(errno);
}

void print_json(const nlohmann::ordered_json& json, int indent) {
  print_text(without_controls(
                 json.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace)) +
             '\n');
}

void write_and_print(const std::function<void()>& write, const std::function<void()>& print) {
  std::exception_ptr failure;
  try {
    write();
  } catch (const Error&) {
    failure = std::current_exception();
  }
  print();
  if (failure) std::rethrow_exception(failure);
}

void check_output() {
  errno = 0;
  std::cout.flush();  // CLI11 prints help there
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.good()) return;
  fail(errno != 0 ? errno : EIO);
}

}  // namespace levin::cli
