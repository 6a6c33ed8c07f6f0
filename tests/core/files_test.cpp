#include "core/files.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "support/tiny_checkpoint.h"

namespace levin {
namespace {

using test::error_of;
using test::TempFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::size_t entries(const TempFolder& folder) {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder.path()),
                                                std::filesystem::directory_iterator()));
}

TEST(ErrorText, ShowsThePartsThatAreThere) {
  const Error full({.what = "tensor has the wrong shape",
                    .where = "file, tensor",
                    .expected = "[2]",
                    .found = "[3]",
                    .hint = "look again"});
  EXPECT_STREQ(full.what(),
               "tensor has the wrong shape\n  where:    file, tensor\n  expected: [2]\n"
               "  found:    [3]\n  hint:     look again");
  EXPECT_EQ(full.exit_code(), ExitCode::kBadInput);
  const Error bare({.what = "no",
                    .where = {},
                    .expected = {},
                    .found = {},
                    .hint = {},
                    .exit_code = ExitCode::kNo});
  EXPECT_STREQ(bare.what(), "no");
  EXPECT_EQ(bare.exit_code(), ExitCode::kNo);
}

TEST(MappedFileTest, MapsBytes) {
  const TempFolder folder;
  test::write_file(folder / "a", "hello");
  MappedFile file(folder / "a");
  EXPECT_EQ(file.bytes().size(), 5U);
  EXPECT_EQ(static_cast<char>(file.bytes()[4]), 'o');
  const std::byte* data = file.bytes().data();
  const MappedFile moved(std::move(file));
  EXPECT_EQ(moved.bytes().data(), data);
}

TEST(MappedFileTest, EmptyMissingAndSpecialFiles) {
  const TempFolder folder;
  test::write_file(folder / "empty", "");
  EXPECT_EQ(MappedFile(folder / "empty").bytes().size(), 0U);
  EXPECT_THAT(error_of([&] { MappedFile(folder / "absent"); }).what(), HasSubstr("No such file"));
  EXPECT_THAT(error_of([&] { MappedFile(folder.path()); }).what(), HasSubstr("not a regular file"));
  ASSERT_EQ(::mkfifo((folder / "fifo").c_str(), 0600), 0);
  EXPECT_THAT(error_of([&] { MappedFile(folder / "fifo"); }).what(),
              HasSubstr("not a regular file"));
}

TEST(AtomicFileTest, AppearsOnlyWhenCommitted) {
  const TempFolder folder;
  {
    AtomicFile file(folder / "out");
    file.write("half");
    EXPECT_FALSE(std::filesystem::exists(folder / "out"));
  }
  EXPECT_EQ(entries(folder), 0U);
  AtomicFile file(folder / "out");
  file.write("whole ");
  file.write("file");
  file.commit();
  EXPECT_EQ(read_text(folder / "out"), "whole file");
  EXPECT_EQ(entries(folder), 1U);
}

TEST(AtomicFileTest, KeepsTheOldFileUntilCommit) {
  const TempFolder folder;
  write_text(folder / "out", "old");
  {
    AtomicFile file(folder / "out");
    file.write("new");
  }
  EXPECT_EQ(read_text(folder / "out"), "old");
  write_text(folder / "out", "new");
  EXPECT_EQ(read_text(folder / "out"), "new");
}

TEST(AtomicFileTest, RefusesWhatItMustNotReplace) {
  const TempFolder folder;
  EXPECT_THAT(error_of([&] { AtomicFile(folder / "no/such/folder/out"); }).what(),
              HasSubstr("no folder to write the file into"));
  EXPECT_THAT(error_of([&] { AtomicFile("/dev/null"); }).what(), HasSubstr("not a regular file"));
  EXPECT_THAT(error_of([&] { AtomicFile(folder.path()); }).what(), HasSubstr("not a regular file"));
  write_text(folder / "mine", "precious");
  EXPECT_THAT(error_of([&] { AtomicFile(folder / "mine", Existing::kRefuse); }).what(),
              HasSubstr("output file exists"));
  // Also when it appears in between.
  AtomicFile late(folder / "late", Existing::kRefuse);
  late.write("ours");
  write_text(folder / "late", "theirs");
  EXPECT_THAT(error_of([&] { late.commit(); }).what(), HasSubstr("File exists"));
  EXPECT_EQ(read_text(folder / "late"), "theirs");
}

// As in a folder without permission to write, which root always has: /proc takes no files.
TEST(CheckOutputFile, FindsAFolderThatTakesNoFilesBeforeTheWork) {
  const Error error = error_of([] { check_output_file("/proc/out", Existing::kReplace); });
  EXPECT_EQ(error.exit_code(), ExitCode::kMachine);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("cannot create file"), HasSubstr("/proc/out")));
}

TEST(CheckOutputFile, LeavesNothingBehind) {
  const TempFolder folder;
  check_output_file(folder / "out", Existing::kRefuse);
  EXPECT_EQ(entries(folder), 0U);
}

TEST(AtomicFileTest, TouchesNoOtherFileAndFollowsLinks) {
  const TempFolder folder;
  write_text(folder / "out.partial", "precious");
  std::filesystem::create_symlink("target", folder / "out");
  write_text(folder / "out", "new");
  EXPECT_EQ(read_text(folder / "out.partial"), "precious");
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "out"));
  EXPECT_EQ(read_text(folder / "target"), "new");
  EXPECT_EQ(entries(folder), 3U);
}

// A limit on the size of files stands in for a full disk: the same code path, without root.
// In a file system that can hold files without a name, as those of Linux's disks and memory can.
TEST(AtomicFileTest, KilledWritersLeaveNothing) {
  const TempFolder folder;
  const int nameless = ::open(folder.path().c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0644);
  if (nameless < 0) GTEST_SKIP() << "this file system has no files without a name";
  ::close(nameless);
  const pid_t child = ::fork();
  if (child == 0) {
    AtomicFile file(folder / "out");
    file.write("half a fi");
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(entries(folder), 0U);
}

TEST(AtomicFileTest, FullDisksAreTheMachines) {
  const TempFolder folder;
  std::signal(SIGXFSZ, SIG_IGN);
  ::rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const ::rlimit limit{1 << 16, before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &limit);
  const auto write_much = [&](bool reserve) {
    return error_of([&] {
      AtomicFile file(folder / "out");
      if (reserve) file.reserve(1 << 20);
      file.write(std::string(1 << 20, 'x'));
    });
  };
  const Error reserved = write_much(true);
  const Error written = write_much(false);
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, SIG_DFL);
  for (const Error& error : {reserved, written}) {
    EXPECT_EQ(error.exit_code(), ExitCode::kMachine);
    EXPECT_THAT(error.what(), HasSubstr("File too large"));
  }
  EXPECT_EQ(entries(folder), 0U);
}

TEST(FileExists, LinksThatLeadNowhereAreErrors) {
  const TempFolder folder;
  EXPECT_FALSE(file_exists(folder / "none"));
  std::filesystem::create_symlink("none", folder / "dangling");
  EXPECT_THAT(error_of([&] { file_exists(folder / "dangling"); }).what(),
              HasSubstr("symbolic link leads nowhere"));
  std::filesystem::create_symlink("loop", folder / "loop");
  EXPECT_THAT(error_of([&] { file_exists(folder / "loop"); }).what(),
              HasSubstr("Too many levels of symbolic links"));
  write_text(folder / "file", "x");
  EXPECT_TRUE(file_exists(folder / "file"));
}

TEST(FileLock, IsHeldOnce) {
  const TempFolder folder;
  {
    const FileLock lock(folder / "lock");
    EXPECT_THAT(error_of([&] { FileLock(folder / "lock"); }).what(), HasSubstr("another process"));
  }
  EXPECT_NO_THROW(FileLock(folder / "lock"));
}

TEST(ReadText, HasALimit) {
  const TempFolder folder;
  test::write_file(folder / "a", "12345");
  EXPECT_EQ(read_text(folder / "a", 5), "12345");
  EXPECT_THAT(error_of([&] { read_text(folder / "a", 4); }).what(), HasSubstr("too large"));
}

TEST(Json, PythonsBareFloats) {
  const auto json = parse_json(R"({"a": [Infinity, -Infinity, NaN], "s": "Infinity \" NaN"})", "x");
  EXPECT_EQ(json["a"][0]["__float__"], "Infinity");
  EXPECT_EQ(json["a"][1]["__float__"], "-Infinity");
  EXPECT_EQ(json["a"][2]["__float__"], "NaN");
  EXPECT_EQ(json["s"], "Infinity \" NaN");
}

TEST(Json, DuplicateKeysAreErrors) {
  EXPECT_THAT(error_of([] { parse_json(R"({"a": 1, "a": 2})", "config.json"); }).what(),
              AllOf(HasSubstr("same key twice"), HasSubstr("config.json")));
  EXPECT_THROW(parse_json(R"({"x": [{"a": {"b": 1, "b": 2}}]})", "x"), Error);
  // The same key in two objects is no duplicate.
  EXPECT_NO_THROW(parse_json(R"([{"a": {"a": 1}}, {"a": 2}])", "x"));
}

TEST(Json, DeepNestingIsAnError) {
  const auto nested = [](std::size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_NO_THROW(parse_json(nested(200), "x"));
  EXPECT_THAT(error_of([&] { parse_json(nested(300), "x"); }).what(),
              HasSubstr("nested too deeply"));
  EXPECT_THAT(error_of([&] { parse_json(std::string(1'000'000, '['), "x"); }).what(),
              HasSubstr("nested too deeply"));
}

TEST(Json, BadText) {
  for (const char* text : {"", "{", "{} x", "{\"a\":}", "[1,]", "{'a':1}", "\"\xff\"", "nul"}) {
    EXPECT_THAT(error_of([&] { parse_json(text, "x"); }).what(), HasSubstr("not valid JSON"))
        << text;
  }
}

TEST(Json, NothingHidesBehindAZeroByte) {
  const std::string_view text("{\"a\": 1}\0 more", 13);
  EXPECT_THAT(error_of([&] { parse_json(text, "x"); }).what(), HasSubstr("zero byte"));
  EXPECT_THAT(error_of([&] { parse_ordered_json(text, "x"); }).what(), HasSubstr("zero byte"));
}

TEST(Json, ReadsFiles) {
  const TempFolder folder;
  test::write_file(folder / "a.json", R"({"a": 1})");
  EXPECT_EQ(read_json(folder / "a.json")["a"], 1);
  EXPECT_THROW(read_json(folder / "b.json"), Error);
  EXPECT_THROW(read_json(folder / "a.json", 3), Error);
}

}  // namespace
}  // namespace levin
