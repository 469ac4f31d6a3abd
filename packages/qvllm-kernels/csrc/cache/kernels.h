// Cache kernel: plain pointers, everything checked by the caller, launched on the current device.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "cache/paged_cache.h"

namespace qvllm {

struct StoreKvArguments {
  const void* k;
  const void* v;
  CacheWriter cache;
  const int64_t* slots;
  int64_t k_token_stride;  // strides in vectors of eight elements
  int64_t k_head_stride;
  int64_t v_token_stride;
  int64_t v_head_stride;
  uint32_t tokens;
  uint32_t kv_heads;
  uint32_t vectors;  // per head
};

cudaError_t launch_store_kv(const StoreKvArguments& arguments, cudaStream_t stream);

}  // namespace qvllm
