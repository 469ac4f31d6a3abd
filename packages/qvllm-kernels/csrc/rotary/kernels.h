// Rotary embedding kernel: plain pointers, everything checked by the caller, launched on the current device.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

namespace qvllm {

// A head, in vectors of eight elements: all of it, and half of what rotates.
struct HeadSize {
  uint32_t vectors;
  uint32_t half;
};

inline constexpr int64_t kMaxHeadDim = 512;  // a head lies in the lanes of one warp

// cos and sin of every token's angles.
struct RotaryTables {
  const float* cos;
  const float* sin;
  int64_t cos_stride;  // in elements, multiples of 4
  int64_t sin_stride;
};

struct RotaryArguments {
  const void* q;
  const void* k;
  void* q_out;  // contiguous
  void* k_out;  // contiguous
  RotaryTables tables;
  HeadSize size;
  int64_t q_token_stride;  // strides in vectors of eight elements
  int64_t q_head_stride;
  int64_t k_token_stride;
  int64_t k_head_stride;
  uint32_t tokens;
  uint32_t q_heads;
  uint32_t kv_heads;
};

cudaError_t launch_rotary_embedding(const RotaryArguments& arguments, cudaStream_t stream);

}  // namespace qvllm
