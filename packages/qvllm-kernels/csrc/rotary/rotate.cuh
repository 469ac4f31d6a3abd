// Rotation of pairs.
#pragma once
#include "common/vector.cuh"

namespace qvllm {

// Eight pairs (first, second), each turned by its angle: (a cos - b sin, b cos + a sin).
__device__ __forceinline__ void rotate(Float8& first, Float8& second, const Float8& cos, const Float8& sin) {
#pragma unroll
  for (int k = 0; k < kVectorWidth; ++k) {
    const float a = first.at[k], b = second.at[k];
    first.at[k] = a * cos.at[k] - b * sin.at[k];
    second.at[k] = b * cos.at[k] + a * sin.at[k];
  }
}

}  // namespace qvllm
