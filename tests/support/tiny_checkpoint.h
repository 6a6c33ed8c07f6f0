// Small checkpoint folders for tests: written on the spot, good or bad on purpose, gone at the end.
// Header only; needs levin_core, and levin_model for dummy_tensors().
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/tensor.h"

namespace levin::test {

// An empty folder below the system's temporary folder, removed with its contents at the end.
class TempFolder {
 public:
  TempFolder() {
    static std::atomic<int> counter{0};
    path_ = std::filesystem::temp_directory_path() /
            ("levin_test_" + std::to_string(::getpid()) + "_" + std::to_string(counter++));
    std::filesystem::create_directories(path_);
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

inline void write_file(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

struct TestTensor {
  std::string name;
  DType dtype = DType::kBF16;
  Shape shape;
  std::string bytes;
};

// `values` as the bytes of a tensor; T is the storage type (uint16_t for BF16).
template <typename T>
TestTensor make_tensor(std::string name, DType dtype, Shape shape, const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return {std::move(name), dtype, std::move(shape), std::move(bytes)};
}

// A tensor whose bytes all are `byte`.
inline TestTensor filled_tensor(std::string name, DType dtype, Shape shape, char byte = 0) {
  const auto count = static_cast<std::size_t>(element_count(shape).value_or(0));
  return {std::move(name), dtype, std::move(shape), std::string(count * size_of(dtype), byte)};
}

// The 8 length bytes, `header` as it is, then `data`: for headers that are wrong on purpose.
inline std::string raw_safetensors(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  std::string bytes;
  for (unsigned i = 0; i < 8; ++i) bytes += static_cast<char>(length >> (8 * i));
  return bytes + header + data;
}

// A well-formed safetensors file holding `tensors` in this order.
inline std::string safetensors(const std::vector<TestTensor>& tensors) {
  nlohmann::ordered_json header;
  header["__metadata__"] = {{"format", "pt"}};
  std::string data;
  for (const TestTensor& tensor : tensors) {
    header[tensor.name] = {{"dtype", std::string(name_of(tensor.dtype))},
                           {"shape", tensor.shape},
                           {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
    data += tensor.bytes;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  return raw_safetensors(text, data);
}

// Writes config.json and the tensors: one file, or `shards` files of about equal count and an
// index.
inline void write_checkpoint(const std::filesystem::path& folder, const nlohmann::json& config,
                             const std::vector<TestTensor>& tensors, std::size_t shards = 1) {
  write_file(folder / "config.json", config.dump(2));
  if (shards == 1) return write_file(folder / "model.safetensors", safetensors(tensors));
  nlohmann::json index;
  uint64_t total = 0;
  for (std::size_t i = 0; i < shards; ++i) {
    char name[64];
    std::snprintf(name, sizeof(name), "model-%05zu-of-%05zu.safetensors", i + 1, shards);
    const std::vector<TestTensor> part(
        tensors.begin() + static_cast<std::ptrdiff_t>(tensors.size() * i / shards),
        tensors.begin() + static_cast<std::ptrdiff_t>(tensors.size() * (i + 1) / shards));
    for (const TestTensor& tensor : part) {
      index["weight_map"][tensor.name] = name;
      total += tensor.bytes.size();
    }
    write_file(folder / name, safetensors(part));
  }
  index["metadata"]["total_size"] = total;
  write_file(folder / "model.safetensors.index.json", index.dump(2));
}

// A NemotronH configuration with every block kind, small enough for thousands of loads. Quantizable
// by every format: all widths are multiples of 32.
inline nlohmann::json small_config() {
  return nlohmann::json::parse(R"({
    "model_type": "nemotron_h", "hybrid_override_pattern": "ME*-E", "num_hidden_layers": 5,
    "vocab_size": 96, "hidden_size": 64, "max_position_embeddings": 256,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "mamba_num_heads": 4, "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 16,
    "conv_kernel": 4, "chunk_size": 16,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1,
    "moe_intermediate_size": 32, "moe_shared_expert_intermediate_size": 64,
    "intermediate_size": 96, "routed_scaling_factor": 2.5,
    "num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "*E",
    "mlp_hidden_act": "relu2", "mamba_hidden_act": "silu", "eos_token_id": 2
  })");
}

// What `function` throws as levin::Error; fails the test when it does not.
inline Error error_of(const std::function<void()>& function) {
  try {
    function();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no levin::Error was thrown";
  return Error(
      {.what = "nothing was thrown", .where = {}, .expected = {}, .found = {}, .hint = {}});
}

}  // namespace levin::test
