// Files as levin treats them: read through a memory map, written under a temporary name and
// renamed into place, so that a reader never sees half a file and nothing is overwritten early.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>

namespace levin {

// A file mapped read-only; the bytes live as long as the object. Throws Error when the file cannot
// be opened or mapped. An empty file maps to an empty span.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// Writes a file that appears under `path` only when commit() has written, fsynced and renamed it
// (and fsynced the folder). Destroyed without commit(), it leaves nothing behind. Errors (disk
// full, permissions) throw Error with ExitCode::kMachine.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  void commit();

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_;
  int descriptor_ = -1;
};

// The whole file as text. Throws Error when it cannot be read or is larger than `max_bytes`.
std::string read_text(const std::filesystem::path& path,
                      std::size_t max_bytes = std::size_t{1} << 30);

// Writes `text` to `path` atomically.
void write_text(const std::filesystem::path& path, std::string_view text);

// fsync of a folder, so that renames and new names inside it survive a power cut.
void sync_folder(const std::filesystem::path& folder);

// JSON as Hugging Face folders hold it. Python writes bare Infinity, -Infinity and NaN; they become
// {"__float__": "Infinity"} objects, the spelling newer transformers use. Duplicate keys, nesting
// deeper than 200 and trailing text are errors. `where` names the source in errors.
nlohmann::json parse_json(std::string_view text, const std::string& where);
nlohmann::json read_json(const std::filesystem::path& path,
                         std::size_t max_bytes = std::size_t{256} << 20);
// JSON whose order of keys matters (templates print it). NaN and Infinity are errors here.
nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& where);

}  // namespace levin
