// The safetensors container: 8 bytes of header length (little-endian), a JSON header, the data.
// Format: https://github.com/huggingface/safetensors (README, "Format").
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace levin::checkpoint {

// The reference implementation refuses longer headers too.
inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;

struct StoredTensor {
  std::string name;
  DType dtype = DType::kBF16;
  Shape shape;
  uint64_t begin = 0;  // first byte, counted from the start of the data section
  uint64_t end = 0;    // one past the last byte
};

struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;            // by offset; together they tile the data section
  std::map<std::string, std::string> metadata;  // __metadata__
  uint64_t data_start = 0;                      // offset of the data section in the file
};

// Parses and validates the header of the whole file `bytes`; `where` names it in errors. Nothing
// behind the header is read. Refused: a length beyond the file or 100 MB, JSON that is not exactly
// name -> {dtype, shape, data_offsets}, duplicate names, unknown types, negative or fractional or
// overflowing numbers, offsets that contradict shape or file, overlaps, gaps and trailing bytes.
// Memory is proportional to the header.
SafetensorsHeader parse_safetensors_header(std::span<const std::byte> bytes,
                                           const std::string& where);

}  // namespace levin::checkpoint
