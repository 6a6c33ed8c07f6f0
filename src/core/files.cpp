#include "core/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "core/error.h"

namespace levin {
namespace fs = std::filesystem;
namespace {

[[noreturn]] void throw_errno(const std::string& what, const fs::path& path, ExitCode code) {
  const int error = errno;
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  const bool too_many = error == EMFILE || error == ENFILE;
  const bool wrong_path =
      error == ENOTDIR || error == ELOOP || error == ENAMETOOLONG || error == EISDIR;
  throw Error({.what = fmt::format("{}: {}", what, std::strerror(error)),
               .where = path.string(),
               .expected = {},
               .found = {},
               .hint = full ? "free some space and run the same command again" : "",
               .exit_code = full || too_many ? ExitCode::kMachine
                            : wrong_path     ? ExitCode::kBadInput
                                             : code});
}

// Where a file named `path` would be written: a symbolic link leads to its target, which need not
// exist.
fs::path target_of(fs::path path) {
  constexpr int kMaxLinks = 40;  // as the kernel
  std::error_code error;
  for (int links = 0; links < kMaxLinks && fs::is_symlink(path, error); ++links) {
    path = path.parent_path() / fs::read_symlink(path, error);  // an absolute one replaces it all
  }
  return path;
}

// Whether the rename was done without replacing anything. File systems without RENAME_NOREPLACE can
// link instead.
bool rename_to_new(const fs::path& from, const fs::path& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return true;
  if (errno != EINVAL && errno != ENOSYS) return false;
  return ::link(from.c_str(), to.c_str()) == 0 && ::unlink(from.c_str()) == 0;
}

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

// A file of `folder` that has no name yet; -1 when the file system cannot have that.
int open_nameless(const fs::path& folder) {
  return ::open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0644);
}

// What is wrong with the place itself, before anything is created there.
void check_place(const fs::path& path, Existing existing) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) {
    if (path.has_filename() && fs::is_directory(folder_of(path), error)) return;
    throw Error({.what = "no folder to write the file into",
                 .where = path.empty() ? "an empty name" : path.string(),
                 .expected = {},
                 .found = {},
                 .hint = "create the folder, or choose another name"});
  }
  if (error) {
    errno = error.value();
    throw_errno("cannot write file", path, ExitCode::kMachine);
  }
  const auto fail = [&](const char* what, const char* hint) {
    throw Error({.what = what, .where = path.string(), .expected = {}, .found = {}, .hint = hint});
  };
  if (!fs::is_regular_file(status)) fail("output is not a regular file", "choose another name");
  if (existing == Existing::kRefuse) {
    fail("output file exists", "choose another name, or replace the file with --overwrite");
  }
}

bool give_name(int descriptor, const fs::path& path) {
  const std::string self = fmt::format("/proc/self/fd/{}", descriptor);
  return ::linkat(AT_FDCWD, self.c_str(), AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW) == 0;
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

void check_output_file(const fs::path& path, Existing existing) {
  const AtomicFile trial(path, existing);
}

void check_not_an_input(const fs::path& output, std::span<const fs::path> inputs) {
  const fs::path target = fs::weakly_canonical(target_of(output));
  for (const fs::path& input : inputs) {
    if (input.empty()) continue;
    const fs::path read = fs::weakly_canonical(input);
    const fs::path in_folder = target.lexically_relative(read);
    const bool inside = !in_folder.empty() && *in_folder.begin() != "..";
    if (!inside) continue;
    throw Error({.what = "output would replace or join the input",
                 .where = output.string(),
                 .expected = "a place of its own",
                 .found = input.string(),
                 .hint = "choose another name"});
  }
}

AtomicFile::AtomicFile(fs::path path, Existing existing)
    : path_(target_of(std::move(path))), existing_(existing) {
  check_place(path_, existing_);
  descriptor_ = open_nameless(folder_of(path_));
  if (descriptor_ >= 0) return;
  with_temporary_name([&] {
    descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    return descriptor_ >= 0;
  });
}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

template <typename Create>
void AtomicFile::with_temporary_name(Create&& create) {
  for (int attempt = 0;; ++attempt) {
    temporary_ = path_;
    temporary_ += fmt::format(".{}-{}.partial", ::getpid(), attempt);
    if (create()) return;
    if (errno != EEXIST) {
      temporary_.clear();
      throw_errno("cannot create file", path_, ExitCode::kMachine);
    }
  }
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      throw_errno("cannot write file", path_, ExitCode::kMachine);
    }
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void AtomicFile::write(std::string_view text) {
  write(std::as_bytes(std::span(text)));
}

void AtomicFile::reserve(uint64_t bytes) {
  errno = ::posix_fallocate(descriptor_, 0, static_cast<off_t>(bytes));
  if (errno != 0) throw_errno("cannot reserve space for file", path_, ExitCode::kMachine);
}

void AtomicFile::write_at(uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written =
        ::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0) {
      if (errno == EINTR) continue;
      throw_errno("cannot write file", path_, ExitCode::kMachine);
    }
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    offset += static_cast<uint64_t>(written);
  }
}

void AtomicFile::commit() {
  if (::fsync(descriptor_) != 0) throw_errno("cannot flush file", path_, ExitCode::kMachine);
  if (temporary_.empty()) with_temporary_name([&] { return give_name(descriptor_, temporary_); });
  const bool renamed = existing_ == Existing::kRefuse
                           ? rename_to_new(temporary_, path_)
                           : ::rename(temporary_.c_str(), path_.c_str()) == 0;
  if (!renamed) throw_errno("cannot rename file into place", path_, ExitCode::kMachine);
  ::close(std::exchange(descriptor_, -1));
  sync_folder(folder_of(path_));
}

bool file_exists(const fs::path& path) {
  std::error_code error;
  if (fs::symlink_status(path, error).type() == fs::file_type::not_found) return false;
  if (fs::status(path, error).type() == fs::file_type::not_found) {
    throw Error({.what = "symbolic link leads nowhere",
                 .where = path.string(),
                 .expected = {},
                 .found = {},
                 .hint = "the folder was not downloaded or copied completely"});
  }
  if (error) {
    errno = error.value();
    throw_errno("cannot open file", path, ExitCode::kBadInput);
  }
  return true;
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

void write_text(const fs::path& path, std::string_view text, Existing existing) {
  AtomicFile file(path, existing);
  file.write(text);
  file.commit();
}

FileLock::FileLock(const fs::path& path) {
  descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor_ < 0) throw_errno("cannot create file", path, ExitCode::kMachine);
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0) return;
  const bool taken = errno == EWOULDBLOCK;
  ::close(descriptor_);
  if (!taken) throw_errno("cannot lock file", path, ExitCode::kMachine);
  throw Error({.what = "another process is writing to the output folder",
               .where = path.string(),
               .expected = {},
               .found = {},
               .hint = "wait for it, or choose another folder",
               .exit_code = ExitCode::kMachine});
}

FileLock::~FileLock() {
  ::close(descriptor_);
}

void create_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (!error) return;
  errno = error.value();
  throw_errno("cannot create folder", folder, ExitCode::kMachine);
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
