// What prefill does to single rows between the products: embedding, norms, operands.
#pragma once

#include "runtime/cuda/linear.h"
#include "runtime/cuda/prefill_gemm.h"
#include "runtime/cuda/tokens.h"

namespace levin::runtime::cuda {

// The tokens of a chunk, in device memory.
struct ChunkRows {
  int rows = 0;
  const int32_t* token = nullptr;
  const int32_t* slot = nullptr;
  const int32_t* position = nullptr;
  // Where the hidden state after norm_f of the token before is: a row of the chunk, or ~ of a row
  // of State::hidden.
  const int32_t* previous = nullptr;
  const int32_t* kept = nullptr;  // where that of the token is kept in State::hidden; -1: nowhere
};

struct EmbedRows {
  ChunkRows chunk;
  const void* table = nullptr;  // [vocab, width]
  TableType type = TableType::kBf16;
  int width = 0;
  float* out = nullptr;  // [rows, width]
};
void launch_embed_rows(cudaStream_t stream, const EmbedRows& embed);

// An operand of many rows.
struct OperandRows {
  Operand operand;
  Panels panels;
  float* row_scales = nullptr;  // [rows], of kFp8Token
};

// Rows of one or two float32 inputs, normalized or not, as operands of up to three kinds.
struct MakeOperands {
  enum class Kind : uint8_t {
    kPlain,
    kNorm,      // x * weight / rms(x)
    kGroupNorm  // the same over each of `groups` stretches of the row
  };
  struct Input {
    const float* x = nullptr;
    int64_t stride = 0;            // floats from row to row
    const int32_t* row = nullptr;  // [rows]: which row of x; null: the same. ~ of a row of `kept_x`
    const float* kept_x = nullptr;
    const float* weight = nullptr;
  };

  Kind kind = Kind::kNorm;
  Input inputs[2];  // side by side
  int input_count = 1;
  int width = 0;  // of an input
  int groups = 1;
  float eps = 0.0F;
  OperandRows operands[kMaxOperands];
  int operand_count = 0;
  float* out = nullptr;  // [rows, width] of the first input in float32; null: nowhere
};
void launch_make_operands(cudaStream_t stream, const MakeOperands& make, int rows);

// Copies row r of `from` to row chunk.kept[r] of `to`, unless that is negative.
void launch_keep_rows(cudaStream_t stream, const ChunkRows& chunk, const float* from, float* to,
                      int width);

}  // namespace levin::runtime::cuda
