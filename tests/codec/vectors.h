// Decoding of tests/data/quant_vectors.json: BF16 rows as 4 hex digits an element, float32 as 8 hex
// digits of the bit pattern, bytes as 2.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace levin::test {

struct Matrix {
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<float> values;
};

const nlohmann::json& quant_vectors();
float float_of(const std::string& hex);
std::vector<uint8_t> bytes_of(const std::string& hex);
std::vector<float> bf16_row_of(const std::string& hex);
// Rows concatenated.
Matrix matrix_of(const nlohmann::json& rows);
std::vector<uint8_t> bytes_of_rows(const nlohmann::json& rows);
// Values rounded to BF16, as the vectors' hex rows concatenated.
std::string bf16_hex(const std::vector<float>& values);
std::string concatenated(const nlohmann::json& rows);

}  // namespace levin::test
