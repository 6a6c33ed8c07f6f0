// The one exception type of levin: what went wrong, where, what was expected, what was found and
// what to do about it. Thrown at boundaries (files, flags, devices), never on the step path.
#pragma once

#include <exception>
#include <string>

namespace levin {

// Process exit codes that scripts rely on (docs/architecture.md).
enum class ExitCode : int {
  kDone = 0,          // done, and the answer is good
  kNo = 1,            // done, and the answer is no: gate failed, contradiction found
  kBadInput = 2,      // bad usage, or bad bytes in a file
  kMachine = 3,       // the machine could not: memory, disk, device
  kInterrupted = 130  // stopped by the user; nothing is lost
};

struct ErrorParts {
  std::string what;      // one sentence, no full stop: "tensor has the wrong shape"
  std::string where;     // file, tensor, key or flag; empty when `what` says it
  std::string expected;  // empty when there is nothing to compare
  std::string found;
  std::string hint;  // what the user can do
  ExitCode exit_code = ExitCode::kBadInput;
};

class Error : public std::exception {
 public:
  explicit Error(ErrorParts parts);

  // All parts on lines of their own; empty parts are left out.
  const char* what() const noexcept override { return message_.c_str(); }
  const ErrorParts& parts() const { return parts_; }
  ExitCode exit_code() const { return parts_.exit_code; }

 private:
  ErrorParts parts_;
  std::string message_;
};

}  // namespace levin
