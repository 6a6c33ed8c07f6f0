// Memory of a runtime in one piece, laid out before it is allocated: on huge pages where the kernel
// grants them, and not touched until it is used, so that each page lands next to the thread that
// first writes it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace levin::runtime::cpu {

// The place of `count` values of T in an arena.
template <typename T>
struct Place {
  int64_t offset = 0;
  int64_t count = 0;
};

// Adds up what an arena must hold. Every place is aligned to 64 bytes.
class ArenaPlan {
 public:
  template <typename T>
  Place<T> add(int64_t count) {
    const Place<T> place{bytes_, count};
    bytes_ += (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
    return place;
  }
  int64_t bytes() const { return bytes_; }
  // Goes on from an earlier bytes(): for parts that are never used at the same time.
  void rewind(int64_t bytes) { bytes_ = bytes; }

 private:
  int64_t bytes_ = 0;
};

// Zeroed memory. Throws Error (ExitCode::kMachine) when there is not enough address space.
class Arena {
 public:
  Arena() = default;
  explicit Arena(int64_t bytes);
  ~Arena();
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  template <typename T>
  T* at(Place<T> place) const {
    return reinterpret_cast<T*>(static_cast<std::byte*>(base_) + place.offset);
  }
  int64_t bytes() const { return bytes_; }

 private:
  void* base_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace levin::runtime::cpu
