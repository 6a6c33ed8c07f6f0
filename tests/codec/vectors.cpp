#include "vectors.h"

#include <fmt/format.h>

#include <bit>

#include "core/files.h"
#include "core/small_floats.h"

namespace levin::test {

const nlohmann::json& quant_vectors() {
  static const nlohmann::json vectors =
      read_json(LEVIN_SOURCE_DIR "/tests/data/quant_vectors.json");
  return vectors;
}

float float_of(const std::string& hex) {
  return std::bit_cast<float>(static_cast<uint32_t>(std::stoul(hex, nullptr, 16)));
}

std::vector<uint8_t> bytes_of(const std::string& hex) {
  std::vector<uint8_t> bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    bytes.push_back(static_cast<uint8_t>(std::stoul(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

std::vector<float> bf16_row_of(const std::string& hex) {
  std::vector<float> row;
  for (std::size_t i = 0; i < hex.size(); i += 4) {
    row.push_back(bf16_to_float(static_cast<uint16_t>(std::stoul(hex.substr(i, 4), nullptr, 16))));
  }
  return row;
}

Matrix matrix_of(const nlohmann::json& rows) {
  Matrix matrix;
  for (const auto& hex : rows) {
    const std::vector<float> row = bf16_row_of(hex.get<std::string>());
    ++matrix.rows;
    matrix.cols = static_cast<int64_t>(row.size());
    matrix.values.insert(matrix.values.end(), row.begin(), row.end());
  }
  return matrix;
}

std::vector<uint8_t> bytes_of_rows(const nlohmann::json& rows) {
  return bytes_of(concatenated(rows));
}

std::string bf16_hex(const std::vector<float>& values) {
  std::string hex;
  for (const float value : values) hex += fmt::format("{:04x}", float_to_bf16(value));
  return hex;
}

std::string concatenated(const nlohmann::json& rows) {
  std::string text;
  for (const auto& row : rows) text += row.get<std::string>();
  return text;
}

}  // namespace levin::test
