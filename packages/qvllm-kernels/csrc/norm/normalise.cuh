// The arithmetic that every norm shares, on eight elements at a time.
#pragma once
#include "common/vector.cuh"
#include "norm/kernels.h"

namespace qvllm {

__device__ __forceinline__ float sum_of_squares(const Float8& v) {
  float even = 0.0f, odd = 0.0f;  // two chains of additions take half the time of one
#pragma unroll
  for (int k = 0; k < kVectorWidth; k += 2) {
    even += v.at[k] * v.at[k];
    odd += v.at[k + 1] * v.at[k + 1];
  }
  return even + odd;
}

__device__ __forceinline__ float inverse_rms(float squares, const NormRows& size) {
  return rsqrtf(squares * size.inverse_dim + size.eps);
}

// x * scale * (offset + weight). kRoundFirst: the normalised value is rounded to bfloat16 before it meets the weight.
template <bool kRoundFirst>
__device__ __forceinline__ Float8 normalised(Float8 x, float scale, const Float8& weight, float offset) {
#pragma unroll
  for (int k = 0; k < kVectorWidth; ++k) x.at[k] *= scale;
  if constexpr (kRoundFirst) x = to_float(to_bf16(x));
#pragma unroll
  for (int k = 0; k < kVectorWidth; ++k) x.at[k] *= offset + weight.at[k];
  return x;
}

}  // namespace qvllm
