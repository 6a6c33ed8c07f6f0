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

// What a file of the same name means to a writer.
enum class Existing { kReplace, kRefuse };

// Throws Error when a file could not appear under `path`: its folder does not exist or takes no
// files, something other than a regular file is there, or, with kRefuse, anything at all. For
// finding out before hours of work.
void check_output_file(const std::filesystem::path& path, Existing existing);

// Throws Error when `output` is one of `inputs`, or lies in one that is a folder: nobody means to
// lose what was read. Empty paths are nobody's.
void check_not_an_input(const std::filesystem::path& output,
                        std::span<const std::filesystem::path> inputs);

// Writes a file that appears under `path` only when commit() has written, fsynced and renamed it
// (and fsynced the folder). Without commit() it leaves nothing behind; not even when the process is
// killed, where the file system can hold files without a name. A symbolic link at `path` is
// followed. Throws Error as check_output_file does, and with ExitCode::kMachine when
// the disk does not cooperate.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path, Existing existing = Existing::kReplace);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // Appends.
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  // Makes the file that large at once, so that a full disk shows now.
  void reserve(uint64_t bytes);
  void write_at(uint64_t offset, std::span<const std::byte> bytes);
  void commit();

 private:
  // Calls create() with names in temporary_ until one is free.
  template <typename Create>
  void with_temporary_name(Create&& create);

  std::filesystem::path path_;
  std::filesystem::path temporary_;  // beside it, unlike any other file; empty without a name
  Existing existing_;
  int descriptor_ = -1;
};

// Whether there is something under `path`. Throws Error for a link that leads nowhere: a file that
// is meant to be there must not pass for one that is not.
bool file_exists(const std::filesystem::path& path);

// The whole file as text. Throws Error when it cannot be read or is larger than `max_bytes`.
std::string read_text(const std::filesystem::path& path,
                      std::size_t max_bytes = std::size_t{1} << 30);

// Writes `text` to `path` atomically.
void write_text(const std::filesystem::path& path, std::string_view text,
                Existing existing = Existing::kReplace);

// Held by one process at a time; goes with it, however it ends.
class FileLock {
 public:
  // Creates `path` when it does not exist. Throws Error when another process holds the lock.
  explicit FileLock(const std::filesystem::path& path);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int descriptor_ = -1;
};

// Creates a folder and those above it; fine when it exists. Throws Error.
void create_folder(const std::filesystem::path& folder);

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
