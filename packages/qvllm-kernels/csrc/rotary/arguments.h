// What operators that rotate ask of the heads and of the tables.
#pragma once
#include "common/operands.h"
#include "rotary/kernels.h"

namespace qvllm {

inline void check_head_dim(const char* op, int64_t head_dim) {
  require(head_dim % 8 == 0 && head_dim > 0 && head_dim <= kMaxHeadDim, op, ": head_dim must be a multiple of 8 up to ",
          kMaxHeadDim, ", got ", head_dim);
}

inline void check_table(const char* op, const char* name, const Tensor& table, int64_t tokens, int64_t head_dim, const char* like,
                        const Tensor& q) {
  require(table.scalar_type() == ScalarType::Float, op, ": ", name, " must be float32, got ", table.scalar_type());
  require(
      table.dim() == 2 && table.size(0) == tokens && table.size(1) > 0 && table.size(1) % 8 == 0 && 2 * table.size(1) <= head_dim,
      op, ": ", name, " must be [tokens, rotary_dim / 2], that is ", tokens, " rows of a multiple of 8 up to ", head_dim / 2,
      ", got ", shape_of(table));
  check_last_contiguous(op, name, table);
  check_same_device(op, name, table, like, q);
}

inline void check_tables(const char* op, const Tensor& cos, const Tensor& sin, int64_t tokens, int64_t head_dim, const char* like,
                         const Tensor& q) {
  require(tokens <= std::numeric_limits<int32_t>::max(), op, ": at most 2147483647 tokens are supported, got ", tokens);
  check_table(op, "cos", cos, tokens, head_dim, like, q);
  check_table(op, "sin", sin, tokens, head_dim, like, q);
  require(cos.size(1) == sin.size(1), op, ": cos and sin differ: ", shape_of(cos), " and ", shape_of(sin));
}

inline HeadSize head_size(int64_t head_dim, const Tensor& cos) {
  return {static_cast<uint32_t>(head_dim / 8), static_cast<uint32_t>(cos.size(1) / 8)};
}

// cos and sin are readable().
inline RotaryTables rotary_tables(const Tensor& cos, const Tensor& sin) {
  return {static_cast<const float*>(cos.const_data_ptr()), static_cast<const float*>(sin.const_data_ptr()), cos.stride(0),
          sin.stride(0)};
}

inline constexpr int64_t kFloatsIn16Bytes = 4;

}  // namespace qvllm
