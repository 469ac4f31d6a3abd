// Eight bfloat16 values at a time: one 16-byte load or store, arithmetic in float.
#pragma once
#include <cuda_bf16.h>

#include <cstdint>

namespace qvllm {

inline constexpr int kVectorWidth = 8;

// Held as one uint4, which is copied by one instruction. (A struct of four __nv_bfloat162 is copied by four: that class has a
// copy constructor of its own.) The lower half of every word is the earlier element.
struct Bf16x8 {
  uint4 bits;
};

struct Float8 {
  float at[kVectorWidth];
};

// Eight floats that lie side by side and start on 16 bytes.
__device__ __forceinline__ Float8 load_float8(const float* start) {
  const float4 low = reinterpret_cast<const float4*>(start)[0], high = reinterpret_cast<const float4*>(start)[1];
  return {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
}

// A bfloat16 is the upper half of a float.
__device__ __forceinline__ Float8 to_float(const Bf16x8& packed) {
  const uint32_t words[kVectorWidth / 2] = {packed.bits.x, packed.bits.y, packed.bits.z, packed.bits.w};
  Float8 values;
#pragma unroll
  for (int i = 0; i < kVectorWidth / 2; ++i) {
    values.at[2 * i] = __uint_as_float(words[i] << 16);
    values.at[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
  }
  return values;
}

// Has the value in its four registers at this point: the compiler cannot keep eight floats of it for a later use instead.
__device__ __forceinline__ void pin(Bf16x8& packed) {
  asm volatile("" : "+r"(packed.bits.x), "+r"(packed.bits.y), "+r"(packed.bits.z), "+r"(packed.bits.w));
}

__device__ __forceinline__ Bf16x8 to_bf16(const Float8& values) {
  uint32_t words[kVectorWidth / 2];
#pragma unroll
  for (int i = 0; i < kVectorWidth / 2; ++i) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(values.at[2 * i], values.at[2 * i + 1]);
    words[i] = reinterpret_cast<const uint32_t&>(pair);
  }
  return {{words[0], words[1], words[2], words[3]}};
}

}  // namespace qvllm
