#include "bench/result_store.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.h"

namespace levin::bench {
namespace {

namespace fs = std::filesystem;

class ResultStoreTest : public testing::Test {
 protected:
  ResultStoreTest()
      : folder_(fs::path(testing::TempDir()) /
                testing::UnitTest::GetInstance()->current_test_info()->name()) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~ResultStoreTest() override { fs::remove_all(folder_); }
  void write(const std::string& name, const std::string& content) const {
    std::ofstream(folder_ / name) << content;
  }

  fs::path folder_;
};

TEST_F(ResultStoreTest, FindsWhatWasPutWithTheSameKey) {
  ResultStore store(folder_ / "new" / "folder");
  EXPECT_FALSE(store.find("a", "1"));
  store.put("a", "1", {{"value", 7}});
  EXPECT_EQ(store.find("a", "1").value().at("value"), 7);
  EXPECT_FALSE(store.find("a", "2"));
  store.put("a", "2", {{"value", 8}});
  EXPECT_EQ(store.find("a", "2").value().at("value"), 8);
  EXPECT_FALSE(store.find("a", "1"));
}

TEST_F(ResultStoreTest, DamagedFilesAreNoResults) {
  ResultStore store(folder_);
  for (const char* content : {"", "{", "[]", "{\"key\": 1}", "{\"key\": \"1\"}",
                              "{\"key\": \"1\", \"result\": {\"value\""}) {
    write("a.json", content);
    EXPECT_FALSE(store.find("a", "1")) << content;
  }
  store.put("a", "1", {{"value", 1}});
  EXPECT_TRUE(store.find("a", "1"));
}

TEST_F(ResultStoreTest, LeavesNoTemporaryFiles) {
  ResultStore store(folder_);
  store.put("a", "1", {{"value", 1}});
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
}

TEST_F(ResultStoreTest, OnlyItsOwnFoldersAreWrittenTo) {
  EXPECT_NO_THROW(require_own_folder(folder_ / "new"));
  EXPECT_NO_THROW(require_own_folder(folder_));  // empty
  write("mine", "precious");
  EXPECT_THROW(require_own_folder(folder_), Error);
  EXPECT_THROW(require_own_folder(folder_ / "mine"), Error);
  { const FileLock lock = claim_folder(folder_ / "new"); }
  std::ofstream(folder_ / "new/report.html") << "x";
  EXPECT_NO_THROW(require_own_folder(folder_ / "new"));
}

TEST(Key, PartsCannotRunIntoEachOther) {
  EXPECT_NE(Key().add("ab").add("c").hex(), Key().add("a").add("bc").hex());
  EXPECT_NE(Key().add(int64_t{1}).hex(), Key().add(int64_t{2}).hex());
  EXPECT_NE(Key().add(1.0).hex(), Key().add(1.5).hex());
  EXPECT_EQ(Key().add("a").hex(), Key().add("a").hex());
  EXPECT_EQ(Key().hex().size(), 16u);
}

TEST_F(ResultStoreTest, FingerprintSeesEveryChange) {
  write("config.json", "{}");
  write("model.safetensors", "weights");
  const std::string first = folder_fingerprint(folder_);
  EXPECT_EQ(folder_fingerprint(folder_), first);
  write("config.json", "[]");  // same size
  const std::string second = folder_fingerprint(folder_);
  EXPECT_NE(second, first);
  write("model.safetensors", "weights, more of them");
  EXPECT_NE(folder_fingerprint(folder_), second);
  write("new.txt", "");
  EXPECT_NE(folder_fingerprint(folder_), second);
}

}  // namespace
}  // namespace levin::bench
