// Laying out an arena together with the pointers into it.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "runtime/cpu/arena.h"
#include "runtime/cpu/kernels.h"

namespace levin::runtime::cpu {

// Rows of `stride` floats, aligned to 64 bytes.
struct Rows {
  float* data = nullptr;
  int64_t stride = 0;
  float* operator[](int64_t row) const { return data + row * stride; }
  Rows from(int64_t row) const { return {data + row * stride, stride}; }
};

// Adds places to a plan and remembers which pointers to set once there is memory. The pointers must
// stay where they are until then.
class Layout {
 public:
  // Rows have room for whole blocks of 32 values.
  void rows(Rows& rows, int64_t count, int64_t width) {
    rows.stride = round_up(width, kBlock);
    add(rows.data, count * rows.stride);
  }
  template <typename T>
  void add(T*& pointer, int64_t count) {
    const Place<T> place = plan_.add<T>(count);
    bind_.push_back([&pointer, place](const Arena& arena) { pointer = arena.at(place); });
  }
  void add_bytes(void*& pointer, int64_t bytes) {
    const Place<std::byte> place = plan_.add<std::byte>(bytes);
    bind_.push_back([&pointer, place](const Arena& arena) { pointer = arena.at(place); });
  }

  int64_t bytes() const { return plan_.bytes(); }
  // Puts what follows where `bytes` was, over what came after: for parts that are never used at the
  // same time.
  void back_to(int64_t bytes) { plan_.rewind(bytes); }

  Arena allocate() const {
    Arena arena(plan_.bytes());
    for (const auto& bind : bind_) bind(arena);
    return arena;
  }

 private:
  ArenaPlan plan_;
  std::vector<std::function<void(const Arena&)>> bind_;
};

}  // namespace levin::runtime::cpu
