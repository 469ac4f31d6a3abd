// The logistic function and what is made of it, in float.
#pragma once

namespace qvllm {

// 1 / (1 + exp(-x)). exp is only taken of values up to 0: it cannot overflow, and the denominator stays in [1, 2].
__device__ __forceinline__ float sigmoid(float x) {
  const float decay = __expf(-fabsf(x));
  return __fdividef(x >= 0.0f ? 1.0f : decay, 1.0f + decay);
}

// x / (1 + exp(-x))
__device__ __forceinline__ float silu(float x) { return x * sigmoid(x); }

}  // namespace qvllm
