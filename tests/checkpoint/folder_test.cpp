#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <fstream>
#include <string>
#include <thread>

#include "checkpoint/checkpoint.h"
#include "core/files.h"
#include "support/tiny_checkpoint.h"

namespace levin::checkpoint {
namespace {

using test::error_of;
using test::filled_tensor;
using test::make_tensor;
using test::TempFolder;
using test::TestTensor;
using test::write_file;
using ::testing::HasSubstr;

const nlohmann::json kConfig = {{"model_type", "nemotron_h"}};
const std::string kIndex = "model.safetensors.index.json";

std::vector<TestTensor> some_tensors() {
  return {filled_tensor("backbone.a.weight", DType::kBF16, {2, 3}, 1),
          filled_tensor("backbone.b.weight", DType::kF32, {4}, 2),
          filled_tensor("lm_head.weight", DType::kU8, {5}, 3)};
}

std::string refusal(const TempFolder& folder) {
  return error_of([&] { Checkpoint::open(folder.path()); }).what();
}

std::string bytes_of(const Checkpoint& checkpoint, const std::string& name) {
  const TensorView view = checkpoint.view(name);
  return {reinterpret_cast<const char*>(view.bytes.data()), view.bytes.size()};
}

// Rewrites the index of `folder` with `change` applied to it.
template <typename Change>
void change_index(const TempFolder& folder, Change&& change) {
  nlohmann::json index = read_json(folder / kIndex);
  change(index);
  write_file(folder / kIndex, index.dump());
}

TEST(Folder, SingleFileAndShardsHoldTheSame) {
  const TempFolder single;
  const TempFolder sharded;
  test::write_checkpoint(single.path(), kConfig, some_tensors());
  test::write_checkpoint(sharded.path(), kConfig, some_tensors(), 3);
  const auto a = Checkpoint::open(single.path());
  const auto b = Checkpoint::open(sharded.path());
  ASSERT_EQ(a->tensors().size(), 3U);
  ASSERT_EQ(b->tensors().size(), 3U);
  EXPECT_EQ(a->total_bytes(), 12U + 16 + 5);
  EXPECT_EQ(b->total_bytes(), a->total_bytes());
  EXPECT_TRUE(b->warnings().empty());
  for (const TestTensor& tensor : some_tensors()) {
    EXPECT_EQ(bytes_of(*a, tensor.name), tensor.bytes);
    EXPECT_EQ(bytes_of(*b, tensor.name), tensor.bytes);
    EXPECT_EQ(b->find(tensor.name)->shape, tensor.shape);
  }
  EXPECT_EQ(b->find("lm_head.weight")->file, "model-00003-of-00003.safetensors");
  EXPECT_EQ(a->find("nothing"), nullptr);
  EXPECT_THAT(error_of([&] { (void)a->view("nothing"); }).what(), HasSubstr("no such tensor"));
}

TEST(Folder, NoFolderNoConfigNoWeights) {
  const TempFolder folder;
  EXPECT_THAT(error_of([&] { Checkpoint::open(folder / "absent"); }).what(),
              HasSubstr("no such model folder"));
  EXPECT_THAT(refusal(folder), HasSubstr("config.json"));
  write_file(folder / "config.json", "[]");
  EXPECT_THAT(refusal(folder), HasSubstr("not a JSON object"));
  write_file(folder / "config.json", "{}");
  EXPECT_THAT(refusal(folder), HasSubstr("folder holds no weights"));
  write_file(folder / "model-00001-of-00002.safetensors", test::safetensors(some_tensors()));
  EXPECT_THAT(refusal(folder), HasSubstr("cannot tell which safetensors files"));
}

TEST(Folder, DamagedShardIsNamed) {
  const TempFolder folder;
  test::write_checkpoint(folder.path(), kConfig, some_tensors(), 2);
  const auto path = folder / "model-00002-of-00002.safetensors";
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  EXPECT_THAT(refusal(folder), HasSubstr("model-00002-of-00002.safetensors"));
  std::filesystem::resize_file(path, 0);
  EXPECT_THAT(refusal(folder), HasSubstr("too short"));
}

TEST(Folder, MissingShard) {
  const TempFolder folder;
  test::write_checkpoint(folder.path(), kConfig, some_tensors(), 3);
  std::filesystem::remove(folder / "model-00002-of-00003.safetensors");
  EXPECT_THAT(refusal(folder), HasSubstr("shards are missing"));
  EXPECT_THAT(refusal(folder), HasSubstr("model-00002-of-00003.safetensors"));
}

TEST(Folder, SurplusShard) {
  const TempFolder folder;
  test::write_checkpoint(folder.path(), kConfig, some_tensors(), 2);
  write_file(folder / "old.safetensors", test::safetensors({}));
  EXPECT_THAT(refusal(folder), HasSubstr("does not name"));
  EXPECT_THAT(refusal(folder), HasSubstr("old.safetensors"));
}

TEST(Folder, IndexPromisesATensorThatIsNotThere) {
  const TempFolder folder;
  test::write_checkpoint(folder.path(), kConfig, some_tensors(), 2);
  change_index(folder, [](nlohmann::json& index) {
    index["weight_map"]["ghost.weight"] = "model-00001-of-00002.safetensors";
  });
  EXPECT_THAT(refusal(folder), HasSubstr("lacks a tensor that the index promises"));
  EXPECT_THAT(refusal(folder), HasSubstr("ghost.weight"));
}

TEST(Folder, ShardHoldsATensorThatTheIndexDoesNotName) {
  const TempFolder folder;
  test::write_checkpoint(folder.path(), kConfig, some_tensors(), 2);
  change_index(folder,
               [](nlohmann::json& index) { index["weight_map"].erase("backbone.b.weight"); });
  EXPECT_THAT(refusal(folder), HasSubstr("not where the shard index says"));
  EXPECT_THAT(refusal(folder), HasSubstr("backbone.b.weight"));
}

TEST(Folder, IndexNamesTheWrongShard) {
  const TempFolder folder;
  test::write_checkpoint(folder.path(), kConfig, some_tensors(), 2);
  change_index(folder, [](nlohmann::json& index) {
    index["weight_map"]["lm_head.weight"] = "model-00001-of-00002.safetensors";
  });
  EXPECT_THAT(refusal(folder), HasSubstr("not where the shard index says"));
}

TEST(Folder, SameTensorInTwoShards) {
  const TempFolder folder;
  test::write_checkpoint(folder.path(), kConfig, some_tensors(), 2);
  write_file(folder / "model-00001-of-00002.safetensors", test::safetensors(some_tensors()));
  EXPECT_THAT(refusal(folder), HasSubstr("same tensor is in two shards"));
}

TEST(Folder, ShardNamesMayNotLeaveTheFolder) {
  for (const std::string name : {"../x.safetensors", "/etc/x.safetensors", "sub/x.safetensors",
                                 "..", ".", "", "x\\y.safetensors", "config.json"}) {
    const TempFolder folder;
    test::write_checkpoint(folder.path(), kConfig, some_tensors(), 2);
    change_index(folder,
                 [&](nlohmann::json& index) { index["weight_map"]["lm_head.weight"] = name; });
    EXPECT_THAT(refusal(folder), HasSubstr("not a safetensors file of this folder")) << name;
  }
}

TEST(Folder, IndexMustBeAnIndex) {
  for (const std::string text :
       {"[]", "{}", R"({"weight_map":[]})", R"({"weight_map":{}})", R"({"weight_map":{"a":1}})",
        R"({"weight_map":{"a":"b.safetensors","a":"b.safetensors"}})", "{"}) {
    const TempFolder folder;
    test::write_checkpoint(folder.path(), kConfig, some_tensors(), 2);
    write_file(folder / kIndex, text);
    EXPECT_THROW(Checkpoint::open(folder.path()), Error) << text;
  }
}

TEST(Folder, WrongTotalSizeIsAWarning) {
  const TempFolder folder;
  test::write_checkpoint(folder.path(), kConfig, some_tensors(), 2);
  change_index(folder, [](nlohmann::json& index) { index["metadata"]["total_size"] = 1; });
  const auto checkpoint = Checkpoint::open(folder.path());
  ASSERT_EQ(checkpoint->warnings().size(), 1U);
  EXPECT_THAT(checkpoint->warnings()[0], HasSubstr("total_size 1,"));
  EXPECT_THAT(checkpoint->warnings()[0],
              HasSubstr(std::to_string(checkpoint->total_bytes()) + " bytes"));
}

TEST(Folder, ATotalSizeThatIsNoNumberIsAWarningToo) {
  for (const char* size : {R"("12")", "-1", "1.5", "[]"}) {
    const TempFolder folder;
    test::write_checkpoint(folder.path(), kConfig, some_tensors(), 2);
    change_index(folder, [&](nlohmann::json& index) {
      index["metadata"]["total_size"] = nlohmann::json::parse(size);
    });
    const auto checkpoint = Checkpoint::open(folder.path());
    ASSERT_EQ(checkpoint->warnings().size(), 1U) << size;
    EXPECT_THAT(checkpoint->warnings()[0], HasSubstr(std::string("total_size ") + size + ","));
  }
}

// As transformers wrote it at times.
TEST(Folder, TotalSizeMayBeAFloat) {
  const TempFolder folder;
  test::write_checkpoint(folder.path(), kConfig, some_tensors(), 2);
  change_index(folder, [](nlohmann::json& index) {
    nlohmann::json& size = index["metadata"]["total_size"];
    size = size.get<double>();
  });
  EXPECT_TRUE(Checkpoint::open(folder.path())->warnings().empty());
}

TEST(Folder, AFifoIsNotAShardAndDoesNotHang) {
  const TempFolder folder;
  write_file(folder / "config.json", "{}");
  ASSERT_EQ(::mkfifo((folder / "model.safetensors").c_str(), 0600), 0);
  EXPECT_THAT(refusal(folder), HasSubstr("not a regular file"));
}

TEST(Folder, AliasesBecomeCanonical) {
  const TempFolder folder;
  test::write_checkpoint(
      folder.path(), kConfig,
      {filled_tensor("language_model.model.layers.0.norm.weight", DType::kBF16, {2}),
       filled_tensor("backbone.embedding.weight", DType::kBF16, {2, 2}),
       filled_tensor("language_model.mtp.layers.0.enorm.weight", DType::kBF16, {2}),
       filled_tensor("language_model.lm_head.weight", DType::kBF16, {2, 2})});
  const auto checkpoint = Checkpoint::open(folder.path());
  EXPECT_NE(checkpoint->find("backbone.layers.0.norm.weight"), nullptr);
  EXPECT_NE(checkpoint->find("backbone.embeddings.weight"), nullptr);
  EXPECT_NE(checkpoint->find("mtp.layers.0.enorm.weight"), nullptr);
  ASSERT_NE(checkpoint->find("lm_head.weight"), nullptr);
  EXPECT_EQ(checkpoint->find("lm_head.weight")->stored_name, "language_model.lm_head.weight");
}

TEST(Folder, TwoSpellingsOfOneTensorAreRefused) {
  const TempFolder folder;
  test::write_checkpoint(folder.path(), kConfig,
                         {filled_tensor("model.norm_f.weight", DType::kBF16, {2}),
                          filled_tensor("backbone.norm_f.weight", DType::kBF16, {2})});
  EXPECT_THAT(refusal(folder), HasSubstr("two tensors mean the same weight"));
  EXPECT_THAT(refusal(folder), HasSubstr("model.norm_f.weight"));
}

TEST(Folder, MergedExpertsAreSplit) {
  const TempFolder folder;
  const std::string experts = "model.layers.1.mixer.experts.";
  std::vector<uint16_t> up(3 * 2 * 4);
  for (std::size_t i = 0; i < up.size(); ++i) up[i] = static_cast<uint16_t>(i);
  test::write_checkpoint(folder.path(), kConfig,
                         {make_tensor(experts + "up_proj", DType::kBF16, {3, 2, 4}, up),
                          filled_tensor(experts + "down_proj.weight", DType::kBF16, {3, 4, 2})});
  const auto checkpoint = Checkpoint::open(folder.path());
  ASSERT_EQ(checkpoint->tensors().size(), 6U);
  for (int expert = 0; expert < 3; ++expert) {
    const std::string name =
        "backbone.layers.1.mixer.experts." + std::to_string(expert) + ".up_proj.weight";
    ASSERT_NE(checkpoint->find(name), nullptr) << name;
    EXPECT_EQ(checkpoint->find(name)->shape, (Shape{2, 4}));
    EXPECT_EQ(checkpoint->find(name)->stored_name, experts + "up_proj");
    EXPECT_EQ(checkpoint->view(name).as<uint16_t>()[0], 8 * expert);
  }
  EXPECT_NE(checkpoint->find("backbone.layers.1.mixer.experts.2.down_proj.weight"), nullptr);
}

TEST(Folder, QuantizedMergedExpertsAreSplitWithTheirScales) {
  const TempFolder folder;
  const std::string up = "backbone.layers.1.mixer.experts.up_proj.";
  test::write_checkpoint(
      folder.path(), kConfig,
      {filled_tensor(up + "weight", DType::kU8, {2, 4, 16}),
       filled_tensor(up + "weight_scale", DType::kF8E4M3, {2, 4, 2}),
       make_tensor<float>(up + "weight_scale_2", DType::kF32, {2}, {0.5F, 0.25F}),
       make_tensor<float>(up + "input_scale", DType::kF32, {}, {2.0F})});
  const auto checkpoint = Checkpoint::open(folder.path());
  const std::string second = "backbone.layers.1.mixer.experts.1.up_proj.";
  EXPECT_EQ(checkpoint->find(second + "weight_scale")->shape, (Shape{4, 2}));
  EXPECT_EQ(checkpoint->find(second + "weight_scale_2")->shape, Shape{});
  EXPECT_EQ(checkpoint->view(second + "weight_scale_2").as<float>()[0], 0.25F);
  // One input scale for all experts counts for each of them.
  EXPECT_EQ(checkpoint->view(second + "input_scale").as<float>()[0], 2.0F);
}

TEST(Folder, MergedExpertsThatDoNotFitAreRefused) {
  const std::string up = "backbone.layers.1.mixer.experts.up_proj";
  const std::vector<std::vector<TestTensor>> bad = {
      // Number of experts differs between weight and scale.
      {filled_tensor(up + ".weight", DType::kU8, {2, 4, 16}),
       filled_tensor(up + ".weight_scale", DType::kF8E4M3, {3, 4, 2})},
      // Shapes that would list expert after expert without any bytes behind them.
      {filled_tensor(up, DType::kBF16, {int64_t{1} << 40, 0, 4})},
      {filled_tensor(up, DType::kU8, {70000, 1, 1})}};
  for (const auto& tensors : bad) {
    const TempFolder folder;
    test::write_checkpoint(folder.path(), kConfig, tensors);
    EXPECT_THAT(refusal(folder), HasSubstr("merged expert tensor has an impossible shape"));
  }
}

TEST(Folder, MisalignedTensorsAreReadable) {
  const TempFolder folder;
  // Five bytes before it put the F32 tensor at an odd address.
  test::write_checkpoint(folder.path(), kConfig,
                         {filled_tensor("a.weight", DType::kU8, {5}, 9),
                          make_tensor<float>("b.weight", DType::kF32, {2}, {1.5F, -2.0F})});
  const auto checkpoint = Checkpoint::open(folder.path());
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      const TensorView view = checkpoint->view("b.weight");
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(view.bytes.data()) % 4, 0U);
      EXPECT_EQ(view.as<float>()[0], 1.5F);
      EXPECT_EQ(view.as<float>()[1], -2.0F);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Folder, CopiesOfMisalignedTensorsGoWithTheirLastByte) {
  const TempFolder folder;
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  test::write_checkpoint(folder.path(), kConfig,
                         {filled_tensor("a.weight", DType::kU8, {5}, 9),
                          filled_tensor("b.weight", DType::kF32, {kBytes / 4}, 1)});
  const auto checkpoint = Checkpoint::open(folder.path());
  EXPECT_EQ(checkpoint->largest_copy(), kBytes);
  const auto resident = [] {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("RssAnon:")) return std::stoull(line.substr(8)) * 1024;
    }
    return 0ULL;
  };
  const std::string before = bytes_of(*checkpoint, "b.weight");
  const auto with_copy = resident();
  const TensorView view = checkpoint->view("b.weight");
  checkpoint->release(view.bytes.first(kBytes / 2));
  EXPECT_EQ(view.as<uint32_t>().size(), kBytes / 4);  // still there
  checkpoint->release(view.bytes.subspan(kBytes / 2));
  EXPECT_LT(resident() + kBytes / 2, with_copy);
  EXPECT_EQ(bytes_of(*checkpoint, "b.weight"), before);
}

TEST(Folder, ReleasedBytesAreReadAgain) {
  const TempFolder folder;
  test::write_checkpoint(folder.path(), kConfig,
                         {filled_tensor("a.weight", DType::kU8, {100'001}, 9),
                          filled_tensor("b.weight", DType::kF32, {5}, 1)});
  const auto checkpoint = Checkpoint::open(folder.path());
  for (const char* name : {"a.weight", "b.weight"}) {
    const std::string before = bytes_of(*checkpoint, name);
    const TensorView view = checkpoint->view(name);
    for (const std::size_t begin : {std::size_t{0}, std::size_t{1}, view.bytes.size() - 1}) {
      checkpoint->release(view.bytes.subspan(begin));
    }
    checkpoint->release({});
    EXPECT_EQ(bytes_of(*checkpoint, name), before);
  }
}

// The real 30B has 6,513 tensors in 66 GB: opening reads headers only.
TEST(Folder, OpensASparse66GbFolderQuickly) {
  const TempFolder folder;
  write_file(folder / "config.json", kConfig.dump());
  nlohmann::ordered_json header;
  uint64_t offset = 0;
  constexpr uint64_t kBytes = 10'136'000;
  for (int i = 0; i < 6513; ++i) {
    const std::string name = "backbone.layers." + std::to_string(i) + ".norm.weight";
    header[name] = {
        {"dtype", "U8"}, {"shape", {kBytes}}, {"data_offsets", {offset, offset + kBytes}}};
    offset += kBytes;
  }
  write_file(folder / "model.safetensors", test::raw_safetensors(header.dump(), ""));
  const auto path = folder / "model.safetensors";
  std::error_code error;
  std::filesystem::resize_file(path, std::filesystem::file_size(path) + offset, error);
  if (error) GTEST_SKIP() << "no sparse files here: " << error.message();
  const auto start = std::chrono::steady_clock::now();
  const auto checkpoint = Checkpoint::open(folder.path());
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  EXPECT_EQ(checkpoint->tensors().size(), 6513U);
  EXPECT_EQ(checkpoint->total_bytes(), 6513 * kBytes);
  EXPECT_LT(seconds.count(), 10.0);
}

}  // namespace
}  // namespace levin::checkpoint
