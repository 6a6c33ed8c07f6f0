// Writing shards, index, metadata and folders, read back with the reader.
#include "checkpoint/writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "checkpoint/checkpoint.h"
#include "checkpoint/metadata_writer.h"
#include "checkpoint/safetensors.h"
#include "core/files.h"
#include "support/tiny_checkpoint.h"

namespace levin::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::TempFolder;
using test::write_file;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

std::vector<std::byte> counting_bytes(std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 7 + 1);
  return bytes;
}

TEST(ShardWriter, TensorsComeBackAlignedWhateverTheOrderOfWriting) {
  const TempFolder folder;
  const std::vector<OutputTensor> tensors = {{"codes", DType::kU8, {3, 5}},
                                             {"weight", DType::kBF16, {3, 3}},
                                             {"scale", DType::kF32, {}},
                                             {"shape", DType::kI64, {2}},
                                             {"empty", DType::kF32, {0, 4}}};
  ShardWriter writer(folder / "model.safetensors", tensors);
  const auto codes = counting_bytes(15);
  writer.write(0, 10, std::span(codes).subspan(10));
  writer.write(3, 0, counting_bytes(16));
  writer.write(0, 0, std::span(codes).first(10));
  writer.write(1, 0, counting_bytes(18));
  EXPECT_FALSE(fs::exists(folder / "model.safetensors"));
  writer.write(2, 0, counting_bytes(4));
  writer.commit();
  EXPECT_EQ(fs::file_size(folder / "model.safetensors"), writer.file_bytes());

  const MappedFile file(folder / "model.safetensors");
  const SafetensorsHeader header = parse_safetensors_header(file.bytes(), "file");
  EXPECT_EQ(header.metadata.at("format"), "pt");
  EXPECT_EQ(header.data_start % 8, 0U);
  ASSERT_EQ(header.tensors.size(), tensors.size());
  for (const StoredTensor& stored : header.tensors) {
    const auto wanted = std::find_if(tensors.begin(), tensors.end(), [&](const auto& tensor) {
      return tensor.name == stored.name;
    });
    ASSERT_NE(wanted, tensors.end());
    EXPECT_EQ(stored.dtype, wanted->dtype);
    EXPECT_EQ(stored.shape, wanted->shape);
    EXPECT_EQ(stored.begin % size_of(stored.dtype), 0U) << stored.name;
    const auto bytes = file.bytes().subspan(header.data_start + stored.begin, wanted->bytes());
    const auto expected = counting_bytes(bytes.size());
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), expected.begin())) << stored.name;
  }
}

TEST(ShardWriter, IncompleteShardsDoNotAppear) {
  const TempFolder folder;
  {
    ShardWriter writer(folder / "a.safetensors", {{"x", DType::kU8, {4}}, {"y", DType::kU8, {4}}});
    writer.write(0, 0, counting_bytes(4));
    const Error error = test::error_of([&] { writer.commit(); });
    EXPECT_THAT(error.what(), HasSubstr("\"y\""));
  }
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(ShardWriter, BytesBeyondATensorAreRefused) {
  const TempFolder folder;
  ShardWriter writer(folder / "a.safetensors", {{"x", DType::kU8, {4}}});
  EXPECT_THROW(writer.write(0, 2, counting_bytes(3)), Error);
}

TEST(ShardWriter, ImpossibleTensorsAreRefused) {
  const TempFolder folder;
  const auto write = [&](std::vector<OutputTensor> tensors) {
    const ShardWriter writer(folder / "a.safetensors", std::move(tensors));
  };
  EXPECT_THROW(write({{"x", DType::kU8, {4}}, {"x", DType::kU8, {4}}}), Error);
  EXPECT_THROW(write({{"x", DType::kU8, {-4}}}), Error);
  EXPECT_THROW(write({{"x", DType::kF32, {int64_t{1} << 40, int64_t{1} << 30}}}), Error);
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(ShardWriter, NeedsAFolder) {
  const Error error =
      test::error_of([] { const ShardWriter writer("/nonexistent/a.safetensors", {}); });
  EXPECT_THAT(error.what(), HasSubstr("no folder to write the file into"));
}

TEST(Publish, MovesConfigLastAndCanBeRepeated) {
  const TempFolder folder;
  const fs::path staging = folder / "staging";
  fs::create_directories(staging);
  for (const char* name : {"config.json", "a.safetensors", "tokenizer.json"}) {
    write_file(staging / name, name);
  }
  // An earlier attempt got as far as one file.
  fs::rename(staging / "a.safetensors", folder / "a.safetensors");
  publish(staging, folder.path());
  for (const char* name : {"config.json", "a.safetensors", "tokenizer.json"}) {
    EXPECT_EQ(read_text(folder / name), name);
  }
  EXPECT_FALSE(fs::exists(staging));
  EXPECT_THROW(publish(staging, folder.path()), Error);
}

TEST(Retire, RemovesTheCheckpointAndNothingElse) {
  const TempFolder folder;
  for (const char* name :
       {"config.json", "model-00001-of-00002.safetensors", "model.safetensors.index.json",
        "hf_quant_config.json", "generation_config.json", "chat_template.jinja",
        "adapter.safetensors", "notes.md"}) {
    write_file(folder / name, "x");
  }
  EXPECT_THAT(retire_checkpoint(folder.path()),
              UnorderedElementsAre("config.json", "model-00001-of-00002.safetensors",
                                   "model.safetensors.index.json", "hf_quant_config.json",
                                   "generation_config.json", "chat_template.jinja"));
  std::vector<std::string> left;
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    left.push_back(entry.path().filename());
  }
  EXPECT_THAT(left, UnorderedElementsAre("adapter.safetensors", "notes.md"));
  EXPECT_THAT(retire_checkpoint(folder.path()), testing::IsEmpty());
  EXPECT_THAT(retire_checkpoint(folder / "absent"), testing::IsEmpty());
}

// The modules of a small mixed model; the convolution, router and embeddings are never quantized.
WrittenQuant mixed() {
  constexpr ModuleQuant kFp8{QuantAlgo::kFp8, 0};
  constexpr ModuleQuant kNvfp4{QuantAlgo::kNvfp4, 16};
  WrittenQuant quant;
  quant.modules = {{"backbone.embeddings", {}},
                   {"backbone.layers.0.mixer.conv1d", {}},
                   {"backbone.layers.0.mixer.in_proj", kFp8},
                   {"backbone.layers.1.mixer.gate", {}},
                   {"backbone.layers.1.mixer.experts.0.up_proj", kNvfp4},
                   {"backbone.layers.10.mixer.q_proj", {}},
                   {"lm_head", {QuantAlgo::kW4A16Nvfp4, 16}},
                   {"mtp.layers.0.mixer.q_proj", {}},
                   {"mtp.layers.1.mixer.experts.0.up_proj", {}}};
  quant.kv_cache = KvCacheQuant::kFp8;
  quant.producer_name = "levin";
  quant.producer_version = "1.2";
  return quant;
}

WrittenQuant uniform(ModuleQuant format) {
  WrittenQuant quant = mixed();
  for (auto& [module, current] : quant.modules) {
    if (current.algo != QuantAlgo::kNone) current = format;
  }
  return quant;
}

// Both files together, and each alone, say what was meant.
void expect_told(const WrittenQuant& quant) {
  const json with_config = {{"quantization_config", modelopt_quantization_config(quant)}};
  const json hf = modelopt_hf_quant_config(quant);
  std::vector<std::string> names;
  for (const auto& [module, format] : quant.modules) names.push_back(module);
  EXPECT_TRUE(merge_quant_metadata(with_config, hf, names).warnings.empty());
  for (const QuantMetadata& told :
       {merge_quant_metadata(with_config, hf, names), merge_quant_metadata(with_config, nullptr),
        merge_quant_metadata(json::object(), hf)}) {
    EXPECT_TRUE(told.contradictions.empty());
    EXPECT_EQ(told.method, "modelopt");
    EXPECT_EQ(told.producer, "levin 1.2");
    EXPECT_EQ(told.kv_cache, quant.kv_cache);
    for (const auto& [module, format] : quant.modules) {
      EXPECT_EQ(told.for_module(module), format) << module;
    }
  }
}

TEST(Metadata, MixedListsLayersAndKeepsTheDraftHeadOut) {
  const WrittenQuant quant = mixed();
  const json config = modelopt_quantization_config(quant);
  EXPECT_EQ(config["quant_algo"], "MIXED_PRECISION");
  EXPECT_EQ(config["quant_method"], "modelopt");
  EXPECT_EQ(config["ignore"], json({"mtp*"}));
  EXPECT_EQ(config["quantized_layers"]["lm_head"],
            json({{"quant_algo", "W4A16_NVFP4"}, {"group_size", 16}}));
  EXPECT_EQ(config["quantized_layers"]["backbone.layers.0.mixer.in_proj"],
            json({{"quant_algo", "FP8"}}));
  EXPECT_EQ(config["config_groups"].size(), 3U);
  EXPECT_EQ(config["config_groups"]["group_2"]["targets"], json({"lm_head"}));
  EXPECT_FALSE(config["config_groups"]["group_2"].contains("input_activations"));
  EXPECT_EQ(config["kv_cache_scheme"],
            json({{"dynamic", false}, {"num_bits", 8}, {"type", "float"}}));
  const json hf = modelopt_hf_quant_config(quant);
  EXPECT_EQ(hf["quantization"]["quantized_layers"], config["quantized_layers"]);
  EXPECT_EQ(hf["quantization"]["kv_cache_quant_algo"], "FP8");
  expect_told(quant);
}

TEST(Metadata, QuantizedDraftHeadLeavesNoExclusion) {
  WrittenQuant quant = mixed();
  quant.modules.back().second = {QuantAlgo::kNvfp4, 16};
  EXPECT_EQ(modelopt_quantization_config(quant)["ignore"], json::array());
  EXPECT_EQ(modelopt_hf_quant_config(quant)["quantization"]["exclude_modules"], json::array());
  expect_told(quant);
}

TEST(Metadata, UniformNamesEveryExceptionAndNoQuantizedModule) {
  for (const ModuleQuant format :
       {ModuleQuant{QuantAlgo::kNvfp4, 16}, ModuleQuant{QuantAlgo::kW4A16Nvfp4, 16},
        ModuleQuant{QuantAlgo::kFp8, 0}, ModuleQuant{QuantAlgo::kFp8PerChannelPerToken, 0}}) {
    const WrittenQuant quant = uniform(format);
    const json config = modelopt_quantization_config(quant);
    EXPECT_EQ(config["quant_algo"], std::string(name_of(format.algo)));
    EXPECT_FALSE(config.contains("quantized_layers"));
    EXPECT_EQ(config["config_groups"]["group_0"]["targets"], json({"Linear"}));
    // "backbone.layers.1*" would also cover a quantized layer 1; a prefix of layer 10 is safe.
    EXPECT_EQ(config["ignore"],
              json({"backbone.embeddings", "backbone.layers.0.mixer.conv1d",
                    "backbone.layers.1.mixer.gate", "backbone.layers.10*", "mtp*"}));
    expect_told(quant);
  }
}

TEST(Metadata, Bf16CacheIsNotMentioned) {
  WrittenQuant quant = mixed();
  quant.kv_cache = KvCacheQuant::kNone;
  EXPECT_FALSE(modelopt_quantization_config(quant).contains("kv_cache_scheme"));
  EXPECT_TRUE(modelopt_hf_quant_config(quant)["quantization"]["kv_cache_quant_algo"].is_null());
  expect_told(quant);
}

TEST(Metadata, Int4UsesCompressedTensorsForm) {
  WrittenQuant quant = uniform({QuantAlgo::kInt4Packed, 64});
  quant.kv_cache = KvCacheQuant::kNone;
  const json config = compressed_tensors_quantization_config(quant);
  EXPECT_EQ(config["quant_method"], "compressed-tensors");
  EXPECT_EQ(config["config_groups"]["config_group_0"]["weights"]["group_size"], 64);
  EXPECT_EQ(config["ignore"], json({"re:.*\\.embeddings$", "re:.*\\.conv1d$", "re:.*\\.gate$",
                                    "re:.*\\.q_proj$", "re:.*mtp\\..*"}));
  const QuantMetadata told = merge_quant_metadata({{"quantization_config", config}}, nullptr);
  for (const auto& [module, format] : quant.modules) {
    EXPECT_EQ(told.for_module(module), format) << module;
  }
}

TEST(Metadata, ConfigTextStaysAsItIs) {
  const std::string before = "{\n  \"a\": [0.0, Infinity],\n  \"b\": {}\n}\n";
  const std::string after =
      with_quantization_config(before, {{"quant_method", "x"}}, "config.json");
  EXPECT_EQ(after,
            "{\n  \"a\": [0.0, Infinity],\n  \"b\": {},\n  \"quantization_config\": {\n"
            "    \"quant_method\": \"x\"\n  }\n}\n");
  EXPECT_EQ(parse_json(after, "x")["quantization_config"]["quant_method"], "x");
  for (const char* bad : {"[]", "{}", "{\"quantization_config\": {}}", "{\"a\": 1", "3"}) {
    EXPECT_THROW(with_quantization_config(bad, {{"a", 1}}, "config.json"), Error) << bad;
  }
}

TEST(ShardIndex, IsReadableByTheReader) {
  const TempFolder folder;
  write_file(folder / "config.json", "{\"a\": 1}");
  for (const char* name : {"a", "b"}) {
    ShardWriter writer(folder / (std::string(name) + ".safetensors"),
                       {{name, DType::kBF16, {2, 3}}});
    writer.write(0, 0, counting_bytes(12));
    writer.commit();
  }
  write_file(folder / "model.safetensors.index.json",
             shard_index_json({{"a", "a.safetensors"}, {"b", "b.safetensors"}}, 24).dump());
  const auto checkpoint = Checkpoint::open(folder.path());
  EXPECT_EQ(checkpoint->tensors().size(), 2U);
  EXPECT_TRUE(checkpoint->warnings().empty());
  // Released bytes stay readable.
  const TensorView view = checkpoint->view("b");
  checkpoint->release(view.bytes);
  EXPECT_EQ(view.bytes[5], counting_bytes(12)[5]);
}

}  // namespace
}  // namespace levin::checkpoint
