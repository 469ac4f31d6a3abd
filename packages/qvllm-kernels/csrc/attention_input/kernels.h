// Attention's input in one kernel: plain pointers, everything checked by the caller, launched on the current device.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "cache/paged_cache.h"
#include "rotary/kernels.h"

namespace qvllm {

struct QkNormRopeStoreArguments {
  const void* qkv;
  const void* q_weight;
  const void* k_weight;
  void* q;  // contiguous
  RotaryTables tables;
  CacheWriter cache;
  const int64_t* slots;
  int64_t token_stride;  // of qkv, in vectors of eight elements
  HeadSize size;
  uint32_t tokens;
  uint32_t q_heads;
  uint32_t kv_heads;
  float inverse_dim;
  float eps;
  float weight_offset;
};

cudaError_t launch_qk_norm_rope_store(const QkNormRopeStoreArguments& arguments, cudaStream_t stream);

}  // namespace qvllm
