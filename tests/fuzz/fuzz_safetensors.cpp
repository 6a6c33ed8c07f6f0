// Any bytes as a safetensors file: an Error, or a header that describes exactly these bytes.
#include <cstdint>
#include <cstdlib>
#include <span>

#include "checkpoint/safetensors.h"
#include "core/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const auto header =
        levin::checkpoint::parse_safetensors_header(std::as_bytes(std::span(data, size)), "fuzz");
    uint64_t end = 0;
    for (const auto& tensor : header.tensors) {
      const auto count = levin::element_count(tensor.shape);
      if (!count || tensor.begin != end) std::abort();
      end = tensor.end;
      if (end - tensor.begin != static_cast<uint64_t>(*count) * levin::size_of(tensor.dtype)) {
        std::abort();
      }
    }
    if (header.data_start + end != size) std::abort();
  } catch (const levin::Error&) {
    return 0;
  }
  return 0;
}
