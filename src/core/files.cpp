#include "core/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/error.h"

namespace levin {
namespace fs = std::filesystem;
namespace {

[[noreturn]] void throw_errno(const std::string& what, const fs::path& path, ExitCode code) {
  const int error = errno;
  const bool full = error == ENOSPC || error == EDQUOT;
  throw Error({.what = fmt::format("{}: {}", what, std::strerror(error)),
               .where = path.string(),
               .expected = {},
               .found = {},
               .hint = full ? "free some space and run the same command again" : "",
               .exit_code = full ? ExitCode::kMachine : code});
}

}  // namespace

MappedFile::MappedFile(const fs::path& path) : path_(path) {
  // O_NONBLOCK: opening a FIFO would wait for a writer; it has no effect on regular files.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) throw_errno("cannot open file", path, ExitCode::kBadInput);
  struct stat status {};
  if (::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(descriptor);
    throw Error({.what = "not a regular file",
                 .where = path.string(),
                 .expected = {},
                 .found = {},
                 .hint = {}});
  }
  size_ = static_cast<std::size_t>(status.st_size);
  if (size_ > 0) {
    void* address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (address == MAP_FAILED) {
      ::close(descriptor);
      throw_errno("cannot map file", path, ExitCode::kMachine);
    }
    data_ = static_cast<const std::byte*>(address);
  }
  ::close(descriptor);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

AtomicFile::AtomicFile(fs::path path) : path_(std::move(path)), temporary_(path_) {
  temporary_ += ".partial";
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor_ < 0) throw_errno("cannot create file", temporary_, ExitCode::kMachine);
}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(temporary_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      throw_errno("cannot write file", temporary_, ExitCode::kMachine);
    }
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void AtomicFile::write(std::string_view text) {
  write(std::as_bytes(std::span(text)));
}

void AtomicFile::commit() {
  if (::fsync(descriptor_) != 0) throw_errno("cannot flush file", temporary_, ExitCode::kMachine);
  ::close(std::exchange(descriptor_, -1));
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary_.c_str());
    errno = error;
    throw_errno("cannot rename file into place", path_, ExitCode::kMachine);
  }
  sync_folder(path_.has_parent_path() ? path_.parent_path() : fs::path("."));
}

std::string read_text(const fs::path& path, std::size_t max_bytes) {
  const MappedFile file(path);
  if (file.bytes().size() > max_bytes) {
    throw Error({.what = "file is too large",
                 .where = path.string(),
                 .expected = fmt::format("at most {} bytes", max_bytes),
                 .found = fmt::format("{} bytes", file.bytes().size()),
                 .hint = {}});
  }
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

void write_text(const fs::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

void sync_folder(const fs::path& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) throw_errno("cannot open folder", folder, ExitCode::kMachine);
  // Some file systems cannot fsync a folder (EINVAL); then there is nothing more to do.
  if (::fsync(descriptor) != 0 && errno != EINVAL) {
    ::close(descriptor);
    throw_errno("cannot flush folder", folder, ExitCode::kMachine);
  }
  ::close(descriptor);
}

}  // namespace levin
