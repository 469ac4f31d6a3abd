// Eight bfloat16 values at a time: one 16-byte load or store, arithmetic in float.
#pragma once
#include <cuda_bf16.h>

namespace qvllm {

inline constexpr int kVectorWidth = 8;

struct alignas(16) Bf16x8 {
  __nv_bfloat162 pairs[kVectorWidth / 2];
};

struct Float8 {
  float at[kVectorWidth];
};

__device__ __forceinline__ Float8 to_float(const Bf16x8& packed) {
  Float8 values;
#pragma unroll
  for (int i = 0; i < kVectorWidth / 2; ++i) {
    const float2 pair = __bfloat1622float2(packed.pairs[i]);
    values.at[2 * i] = pair.x;
    values.at[2 * i + 1] = pair.y;
  }
  return values;
}

__device__ __forceinline__ Bf16x8 to_bf16(const Float8& values) {
  Bf16x8 packed;
#pragma unroll
  for (int i = 0; i < kVectorWidth / 2; ++i) packed.pairs[i] = __floats2bfloat162_rn(values.at[2 * i], values.at[2 * i + 1]);
  return packed;
}

}  // namespace qvllm
