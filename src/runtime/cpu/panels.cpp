#include "runtime/cpu/panels.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "core/error.h"
#include "core/small_floats.h"

namespace levin::runtime::cpu {
namespace {

using model::ActivationFormat;
using model::Linear;
using model::WeightFormat;

constexpr uint8_t kZeroNibble = 0;  // of NVFP4
constexpr uint8_t kZeroInt4 = 8;

// Whether float32 weights are all BF16 numbers, so that storing them as such loses nothing.
bool is_bf16(const Linear& linear) {
  const auto values = linear.weight.as<float>();
  return std::all_of(values.begin(), values.end(),
                     [](float v) { return round_to_bf16(v) == v || v != v; });
}

PanelFormat panel_format(const Linear& linear, bool exact_input) {
  switch (linear.format) {
    case WeightFormat::kF32:
      if (!is_bf16(linear)) return PanelFormat::kF32ByF32;
      return exact_input ? PanelFormat::kBf16ByF32 : PanelFormat::kBf16;
    case WeightFormat::kF16:
      return PanelFormat::kF16ByF32;
    case WeightFormat::kBf16:
      return exact_input ? PanelFormat::kBf16ByF32 : PanelFormat::kBf16;
    case WeightFormat::kFp8:
    case WeightFormat::kFp8Channel:
      return PanelFormat::kFp8;
    case WeightFormat::kNvfp4:
      return PanelFormat::kNvfp4;
    case WeightFormat::kInt4:
      return PanelFormat::kInt4;
  }
  return PanelFormat::kF32ByF32;
}

int64_t block_bytes(PanelFormat format) {
  switch (format) {
    case PanelFormat::kNvfp4:
    case PanelFormat::kInt4:
      return kLanes * kBlock / 2;
    case PanelFormat::kFp8:
      return kLanes * kBlock;
    case PanelFormat::kF32ByF32:
      return kLanes * kBlock * 4;
    default:
      return kLanes * kBlock * 2;
  }
}

int64_t scale_bytes(PanelFormat format) {
  if (format == PanelFormat::kNvfp4) return 1;
  return format == PanelFormat::kInt4 ? 2 : 0;
}

bool wants_f32(PanelFormat format) {
  return format == PanelFormat::kBf16ByF32 || format == PanelFormat::kF16ByF32 ||
         format == PanelFormat::kF32ByF32;
}

PackAs pack_as(const Linear& linear, PanelFormat format) {
  if (linear.activation == ActivationFormat::kNone) {
    return wants_f32(format) ? PackAs::kF32 : PackAs::kBf16;
  }
  if (wants_f32(format)) {
    throw Error({.what = "no CPU kernel for this combination of weights and activations",
                 .where = linear.name,
                 .expected = "BF16, FP8, NVFP4 or INT4 weights under quantized activations",
                 .found = fmt::format("{} weights, {} activations", model::name_of(linear.format),
                                      model::name_of(linear.activation)),
                 .hint = "use --runtime reference"});
  }
  switch (linear.activation) {
    case ActivationFormat::kFp8Static:
      return PackAs::kFp8Static;
    case ActivationFormat::kFp8PerToken:
      return PackAs::kFp8PerToken;
    default:
      return PackAs::kNvfp4;
  }
}

void check_groups(const Linear& linear, PanelFormat format) {
  const bool nvfp4 = format == PanelFormat::kNvfp4;
  if (!nvfp4 && format != PanelFormat::kInt4) return;
  if (linear.group_size <= 0 || linear.group_size % kScaleBlock != 0 ||
      (nvfp4 && linear.group_size != kScaleBlock)) {
    throw Error({.what = "no CPU kernel for this group size",
                 .where = linear.name,
                 .expected = nvfp4 ? "16" : "a multiple of 16",
                 .found = fmt::format("{}", linear.group_size),
                 .hint = "use --runtime reference"});
  }
}

// Bytes of one element of a source row, or the row itself, where a panel wants it.
struct PanelWriter {
  const Matrix& matrix;
  uint8_t* panel;  // zeroed
  int64_t lane;
  int64_t row;

  template <typename T>
  const T* source_row(int64_t columns) const {
    return matrix.source->weight.as<T>().data() + row * columns;
  }

  void bf16() const {
    auto* to = reinterpret_cast<uint16_t*>(panel);
    const int64_t in = matrix.in;
    const auto at = [&](int64_t k) { return bf16_element(lane, k); };
    if (matrix.source->format == WeightFormat::kF32) {
      const auto* from = source_row<float>(in);
      for (int64_t k = 0; k < in; ++k) to[at(k)] = float_to_bf16(from[k]);
    } else {
      const auto* from = source_row<uint16_t>(in);
      for (int64_t k = 0; k < in; ++k) to[at(k)] = from[k];
    }
  }

  template <typename T>
  void columns() const {
    auto* to = reinterpret_cast<T*>(panel);
    const auto* from = source_row<T>(matrix.in);
    for (int64_t k = 0; k < matrix.in; ++k) to[f32_element(lane, k)] = from[k];
  }

  void fp8() const {
    const auto* from = source_row<uint8_t>(matrix.in);
    for (int64_t k = 0; k < matrix.in; ++k) {
      panel[fp8_element(lane, k)] = from[k];
    }
  }

  // A word of eight nibbles in column order becomes the even columns, then the odd ones.
  static uint32_t even_then_odd(uint32_t word) {
    const auto every_second = [](uint32_t w) {
      w &= 0x0f0f0f0fu;
      w = (w | w >> 4) & 0x00ff00ffu;
      return (w | w >> 8) & 0x0000ffffu;
    };
    return every_second(word) | every_second(word >> 4) << 16;
  }

  void nibbles() const {
    auto* to = reinterpret_cast<uint32_t*>(panel);
    const auto* from = source_row<uint8_t>(matrix.in / 2);
    for (int64_t k = 0; k < matrix.in; k += 8) {  // in is a multiple of 8 in both formats
      uint32_t word = 0;
      std::memcpy(&word, from + k / 2, sizeof(word));
      to[k / 8 * kLanes + lane] = even_then_odd(word);
    }
    const Linear& linear = *matrix.source;
    const int64_t groups = matrix.in / linear.group_size;
    uint8_t* scales = panel + matrix.panels.scale_offset;
    if (linear.format == WeightFormat::kNvfp4) {
      const auto* codes = linear.scales.as<uint8_t>().data() + row * groups;
      for (int64_t g = 0; g < groups; ++g) scales[g * kLanes + lane] = codes[g];
    } else {
      const auto* values = linear.scales.as<uint16_t>().data() + row * groups;
      auto* wide = reinterpret_cast<uint16_t*>(scales);
      for (int64_t g = 0; g < groups; ++g) wide[g * kLanes + lane] = values[g];
    }
  }

  void write() const {
    switch (matrix.panels.format) {
      case PanelFormat::kBf16:
      case PanelFormat::kBf16ByF32:
        return bf16();
      case PanelFormat::kFp8:
        return fp8();
      case PanelFormat::kNvfp4:
      case PanelFormat::kInt4:
        return nibbles();
      case PanelFormat::kF16ByF32:
        return columns<uint16_t>();
      case PanelFormat::kF32ByF32:
        return columns<float>();
    }
  }
};

float row_scale_of(const Linear& linear, int64_t row) {
  if (row >= linear.out) return 0.0F;
  if (linear.format == WeightFormat::kFp8Channel) {
    return linear.scales.as<float>()[static_cast<std::size_t>(row)];
  }
  return linear.global_scale;
}

}  // namespace

Matrix plan_matrix(const Linear& linear, bool exact_input, bool integer_products) {
  Matrix matrix;
  matrix.source = &linear;
  matrix.out = linear.out;
  matrix.in = linear.in;
  matrix.input_scale = linear.input_scale;
  PanelMatrix& p = matrix.panels;
  p.format = panel_format(linear, exact_input);
  check_groups(linear, p.format);
  matrix.input = pack_as(linear, p.format);
  if (integer_products && (p.format == PanelFormat::kNvfp4 || p.format == PanelFormat::kInt4)) {
    p.digits = matrix.input == PackAs::kNvfp4 ? 1 : 2;
  }
  p.panels = round_up(linear.out, kLanes) / kLanes;
  p.blocks = round_up(linear.in, kBlock) / kBlock;
  p.scale_offset = p.blocks * block_bytes(p.format);
  p.group = scale_bytes(p.format) > 0 ? linear.group_size : 0;
  const int64_t groups = p.group > 0 ? (p.blocks * kBlock + p.group - 1) / p.group : 0;
  p.panel_bytes = round_up(p.scale_offset + groups * kLanes * scale_bytes(p.format), 64);
  return matrix;
}

void pack_panels(const Matrix& matrix, int64_t begin, int64_t end, uint8_t* data, float* row_scale,
                 float* bias) {
  const Linear& linear = *matrix.source;
  const bool int4 = matrix.panels.format == PanelFormat::kInt4;
  const auto zero = static_cast<uint8_t>(int4 ? kZeroInt4 | kZeroInt4 << 4 : kZeroNibble);
  for (int64_t p = begin; p < end; ++p) {
    uint8_t* panel = data + p * matrix.panels.panel_bytes;
    std::memset(panel, zero, static_cast<std::size_t>(matrix.panels.scale_offset));
    std::memset(panel + matrix.panels.scale_offset, 0,
                static_cast<std::size_t>(matrix.panels.panel_bytes - matrix.panels.scale_offset));
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const int64_t row = p * kLanes + lane;
      row_scale[row] = row_scale_of(linear, row);
      if (bias != nullptr)
        bias[row] = row < linear.out ? linear.bias[static_cast<std::size_t>(row)] : 0.0F;
      if (row < linear.out) PanelWriter{matrix, panel, lane, row}.write();
    }
  }
}

}  // namespace levin::runtime::cpu
