// A runtime without snapshots.
#include <fmt/format.h>

#include "core/error.h"
#include "runtime/runtime.h"

namespace levin::runtime {
namespace {

[[noreturn]] void refuse(const Runtime& runtime) {
  throw Error({.what = "this runtime has no snapshots",
               .where = runtime.description(),
               .expected = "a runtime that saves and restores sequences",
               .found = "none",
               .hint = "run without prefix cache"});
}

}  // namespace

SnapshotBytes Runtime::snapshot_bytes(int64_t, int64_t) const {
  refuse(*this);
}

Snapshot Runtime::save(int, int64_t) {
  refuse(*this);
}

void Runtime::restore(int, std::span<const Snapshot>) {
  refuse(*this);
}

}  // namespace levin::runtime
