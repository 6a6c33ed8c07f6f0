#include "checkpoint/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <unordered_set>

#include "checkpoint/names.h"
#include "core/error.h"

namespace levin::checkpoint {
namespace {

using nlohmann::json;

[[noreturn]] void fail(const std::string& what, const std::string& where,
                       const std::string& expected = {}, const std::string& found = {},
                       const std::string& hint = {}) {
  throw Error({.what = what, .where = where, .expected = expected, .found = found, .hint = hint});
}

// Far more than any shard has; a hostile header of 100 MB could hold millions.
constexpr std::size_t kMaxTensors = std::size_t{1} << 18;
// NumPy's and PyTorch's own limit.
constexpr std::size_t kMaxDimensions = 64;
constexpr std::size_t kMaxMetadata = std::size_t{1} << 12;

constexpr std::string_view kTruncatedHint =
    "the file is damaged or was not downloaded completely; fetch it again";

// Streams the header through nlohmann's SAX parser, so that a hostile header costs no tree and
// every event that the format does not allow at its place is refused.
class HeaderHandler final : public nlohmann::json_sax<json> {
 public:
  HeaderHandler(SafetensorsHeader& header, const std::string& where)
      : header_(header), where_(where) {}

  bool null() override { return refuse("null"); }
  bool boolean(bool value) override { return refuse(value ? "true" : "false"); }
  bool number_float(number_float_t /*value*/, const string_t& text) override {
    return refuse(printable(text));
  }
  bool number_integer(number_integer_t value) override { return refuse(std::to_string(value)); }
  bool number_unsigned(number_unsigned_t value) override;
  bool string(string_t& text) override;
  bool binary(binary_t& /*value*/) override { return refuse("binary data"); }
  bool start_object(std::size_t /*size*/) override;
  bool key(string_t& name) override;
  bool end_object() override;
  bool start_array(std::size_t /*size*/) override;
  bool end_array() override;
  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const json::exception& error) override {
    fail("safetensors header is not valid JSON", where_, {},
         fmt::format("byte {}: {}", position, printable(error.what(), 300)));
  }

 private:
  enum class Place { kStart, kTop, kTensor, kMetadata, kShape, kOffsets, kDone };

  std::string tensor_where() const {
    return fmt::format("{}, tensor \"{}\"", where_, printable(tensor_.name));
  }
  [[noreturn]] bool refuse(const std::string& found) {
    fail("unexpected value in safetensors header",
         place_ == Place::kStart || place_ == Place::kTop ? where_ : tensor_where(), expected(),
         found);
  }
  std::string expected() const;
  void finish_tensor();

  SafetensorsHeader& header_;
  const std::string& where_;
  Place place_ = Place::kStart;
  StoredTensor tensor_;
  std::string field_;  // key being read inside a tensor or __metadata__
  std::string dtype_;
  std::vector<uint64_t> offsets_;
  std::unordered_set<std::string> names_;
  std::unordered_set<std::string> fields_;
};

std::string HeaderHandler::expected() const {
  switch (place_) {
    case Place::kStart:
      return "a JSON object";
    case Place::kTop:
      return "an object per tensor";
    case Place::kMetadata:
      return "__metadata__ with string values only";
    case Place::kShape:
      return "shape as an array of non-negative integers below 2^63";
    case Place::kOffsets:
      return "data_offsets as two non-negative integers";
    default:
      return R"({"dtype": string, "shape": array, "data_offsets": array})";
  }
}

bool HeaderHandler::number_unsigned(number_unsigned_t value) {
  if (place_ == Place::kShape) {
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      refuse(std::to_string(value));
    }
    if (tensor_.shape.size() == kMaxDimensions) {
      fail("tensor shape has too many dimensions", tensor_where(),
           fmt::format("at most {}", kMaxDimensions), fmt::format("more than {}", kMaxDimensions));
    }
    tensor_.shape.push_back(static_cast<int64_t>(value));
  } else if (place_ == Place::kOffsets) {
    offsets_.push_back(value);
  } else {
    refuse(std::to_string(value));
  }
  return true;
}

bool HeaderHandler::string(string_t& text) {
  if (place_ == Place::kMetadata) {
    header_.metadata[field_] = text;
  } else if (place_ == Place::kTensor && field_ == "dtype") {
    dtype_ = text;
  } else {
    refuse(fmt::format("\"{}\"", printable(text)));
  }
  return true;
}

bool HeaderHandler::start_object(std::size_t /*size*/) {
  if (place_ == Place::kStart) {
    place_ = Place::kTop;
  } else if (place_ == Place::kTop) {
    place_ = tensor_.name == "__metadata__" ? Place::kMetadata : Place::kTensor;
    fields_.clear();
    dtype_.clear();
    offsets_.clear();
    tensor_.shape.clear();
  } else {
    refuse("an object");
  }
  return true;
}

bool HeaderHandler::key(string_t& name) {
  if (place_ == Place::kTop) {
    tensor_.name = name;
    if (names_.size() == kMaxTensors) {
      fail("safetensors header names too many tensors", where_,
           fmt::format("at most {}", kMaxTensors));
    }
    if (!names_.insert(name).second) {
      fail("safetensors header names a tensor twice", where_, {},
           fmt::format("\"{}\"", printable(name)));
    }
    return true;
  }
  if (fields_.size() == kMaxMetadata) {
    fail("safetensors header has too much metadata", where_,
         fmt::format("at most {} entries", kMaxMetadata));
  }
  if (!fields_.insert(name).second) {
    fail("safetensors header has the same key twice", tensor_where(), {},
         fmt::format("\"{}\"", printable(name)));
  }
  if (place_ == Place::kTensor && name != "dtype" && name != "shape" && name != "data_offsets") {
    fail("unknown key in safetensors header", tensor_where(), "dtype, shape, data_offsets",
         fmt::format("\"{}\"", printable(name)));
  }
  field_ = name;
  return true;
}

bool HeaderHandler::end_object() {
  if (place_ == Place::kTensor) finish_tensor();
  place_ = place_ == Place::kTop ? Place::kDone : Place::kTop;
  return true;
}

bool HeaderHandler::start_array(std::size_t /*size*/) {
  if (place_ == Place::kTensor && field_ == "shape") {
    place_ = Place::kShape;
  } else if (place_ == Place::kTensor && field_ == "data_offsets") {
    place_ = Place::kOffsets;
  } else {
    refuse("an array");
  }
  return true;
}

bool HeaderHandler::end_array() {
  place_ = Place::kTensor;
  return true;
}

void HeaderHandler::finish_tensor() {
  if (fields_.size() != 3) {
    fail("safetensors header lacks a key", tensor_where(), "dtype, shape and data_offsets",
         fmt::format("{} of them", fields_.size()));
  }
  const std::optional<DType> dtype = dtype_from_name(dtype_);
  if (!dtype) {
    fail("unknown element type", tensor_where(),
         "F64, F32, F16, BF16, F8_E4M3, F8_E5M2, I64, I32, I16, I8, U8 or BOOL",
         fmt::format("\"{}\"", printable(dtype_)));
  }
  if (offsets_.size() != 2) {
    fail("data_offsets must be two numbers", tensor_where(), "[begin, end]",
         fmt::format("{} numbers", offsets_.size()));
  }
  tensor_.dtype = *dtype;
  tensor_.begin = offsets_[0];
  tensor_.end = offsets_[1];
  const std::optional<int64_t> count = element_count(tensor_.shape);
  const auto size = static_cast<int64_t>(size_of(*dtype));
  if (!count || *count > std::numeric_limits<int64_t>::max() / size) {
    fail("tensor shape is too large", tensor_where(), "fewer than 2^63 bytes",
         to_string(tensor_.shape));
  }
  const auto bytes = static_cast<uint64_t>(*count * size);
  if (tensor_.end < tensor_.begin || tensor_.end - tensor_.begin != bytes) {
    fail("data_offsets do not fit shape and dtype", tensor_where(),
         fmt::format("{} bytes for {} {}", bytes, dtype_, to_string(tensor_.shape)),
         fmt::format("[{}, {}]", tensor_.begin, tensor_.end));
  }
  header_.tensors.push_back(tensor_);
}

// The tensors must tile the data section: no overlap, no gap, nothing left over.
void check_tiling(SafetensorsHeader& header, uint64_t data_bytes, const std::string& where) {
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const StoredTensor& a, const StoredTensor& b) {
              return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
            });
  uint64_t position = 0;
  for (const StoredTensor& tensor : header.tensors) {
    if (tensor.end > data_bytes) {
      fail("tensor reaches beyond the end of the file",
           fmt::format("{}, tensor \"{}\"", where, printable(tensor.name)),
           fmt::format("at most {} data bytes", data_bytes),
           fmt::format("data_offsets [{}, {}]", tensor.begin, tensor.end),
           std::string(kTruncatedHint));
    }
    if (tensor.begin != position) {
      fail(tensor.begin < position ? "tensors overlap" : "bytes that belong to no tensor",
           fmt::format("{}, tensor \"{}\"", where, printable(tensor.name)),
           fmt::format("data_offsets that start at {}", position),
           fmt::format("[{}, {}]", tensor.begin, tensor.end));
    }
    position = tensor.end;
  }
  if (position != data_bytes) {
    fail("bytes after the last tensor", where, fmt::format("{} data bytes", position),
         fmt::format("{} data bytes", data_bytes));
  }
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::span<const std::byte> bytes,
                                           const std::string& where) {
  constexpr uint64_t kLengthBytes = 8;
  if (bytes.size() < kLengthBytes) {
    fail("file is too short for safetensors", where, "at least 8 bytes",
         fmt::format("{} bytes", bytes.size()), std::string(kTruncatedHint));
  }
  uint64_t length = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    length |= static_cast<uint64_t>(bytes[i]) << (8 * i);
  }
  if (length > kMaxHeaderBytes) {
    fail("safetensors header is too long", where, fmt::format("at most {} bytes", kMaxHeaderBytes),
         fmt::format("{} bytes", length), "is this a safetensors file?");
  }
  if (length > bytes.size() - kLengthBytes) {
    fail("safetensors header reaches beyond the end of the file", where,
         fmt::format("{} header bytes", length),
         fmt::format("{} bytes in the file after the length", bytes.size() - kLengthBytes),
         std::string(kTruncatedHint));
  }
  SafetensorsHeader header;
  header.data_start = kLengthBytes + length;
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes,
                              static_cast<std::size_t>(length));
  if (text.find('\0') != text.npos) {  // which the parser takes for the end
    fail("safetensors header is not valid JSON", where, {}, "a zero byte");
  }
  HeaderHandler handler(header, where);
  json::sax_parse(text.begin(), text.end(), &handler);
  check_tiling(header, bytes.size() - header.data_start, where);
  return header;
}

}  // namespace levin::checkpoint
