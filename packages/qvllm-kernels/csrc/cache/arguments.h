// What operators that write into the paged cache ask of it.
#pragma once
#include "cache/paged_cache.h"
#include "common/operands.h"

namespace qvllm {

inline void check_cache_pool(const char* op, const char* name, const Tensor& cache, int64_t kv_heads, int64_t head_dim,
                             const char* like, const Tensor& x) {
  require(cache.scalar_type() == ScalarType::BFloat16, op, ": ", name, " must be bfloat16, got ", cache.scalar_type());
  require(cache.dim() == 4 && cache.size(1) == kv_heads && cache.size(2) > 0 && cache.size(3) == head_dim, op, ": ", name,
          " must be [num_blocks, ", kv_heads, ", block_size, ", head_dim, "], got ", shape_of(cache));
  require(cache.stride(3) == 1 && (cache.stride(2) == head_dim || cache.size(2) == 1), op, ": a block of one head of ", name,
          " must be contiguous, got strides ", cache.stride(2), " and ", cache.stride(3), " in the last two dimensions");
  require(rows_aligned(cache), op, ": every block of ", name,
          " must start on 16 bytes; use strides that are multiples of 8 elements, and an aligned start");
  require(cache.size(0) * cache.size(2) <= std::numeric_limits<int32_t>::max(), op, ": ", name,
          " may have at most 2147483647 slots, got ", cache.size(0) * cache.size(2));
  check_same_device(op, name, cache, like, x);
}

inline void check_cache_writes(const char* op, const Tensor& k_cache, const Tensor& v_cache, const Tensor& slot_mapping,
                               int64_t tokens, int64_t kv_heads, int64_t head_dim, const char* like, const Tensor& x) {
  check_cache_pool(op, "k_cache", k_cache, kv_heads, head_dim, like, x);
  check_cache_pool(op, "v_cache", v_cache, kv_heads, head_dim, like, x);
  require(k_cache.size(0) == v_cache.size(0) && k_cache.size(2) == v_cache.size(2), op,
          ": k_cache and v_cache differ: ", shape_of(k_cache), " and ", shape_of(v_cache));
  require(slot_mapping.scalar_type() == ScalarType::Long, op, ": slot_mapping must be int64, got ", slot_mapping.scalar_type());
  check_list(op, "slot_mapping", slot_mapping, tokens, like, x);
}

inline CacheWriter cache_writer(Tensor& k_cache, Tensor& v_cache) {
  return {{k_cache.mutable_data_ptr(), k_cache.stride(0) / 8, k_cache.stride(1) / 8},
          {v_cache.mutable_data_ptr(), v_cache.stride(0) / 8, v_cache.stride(1) / 8},
          static_cast<uint32_t>(k_cache.size(2))};
}

}  // namespace qvllm
