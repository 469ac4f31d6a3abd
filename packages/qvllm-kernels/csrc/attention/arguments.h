// What both attention operators ask of the queries and of the paged cache.
#pragma once
#include "attention/kernels.h"
#include "common/tensors.h"

namespace qvllm {

inline void check_on_device(const char* op, const char* name, const Tensor& x, const Tensor& q) {
  require(x.is_cpu() == q.is_cpu() && x.get_device_index() == q.get_device_index(), op, ": ", name, " must be on the same device as q");
}

inline void check_int32(const char* op, const char* name, const Tensor& x, const Tensor& q) {
  require(x.scalar_type() == ScalarType::Int, op, ": ", name, " must be int32, got ", x.scalar_type());
  require(x.stride(-1) == 1 || x.size(-1) <= 1, op, ": the last dimension of ", name, " must be contiguous, got stride ", x.stride(-1),
          "; call .contiguous() first");
  check_on_device(op, name, x, q);
}

inline void check_lengths(const char* op, const char* name, const Tensor& x, int64_t size, const Tensor& q) {
  require(x.dim() == 1 && x.size(0) == size, op, ": ", name, " must be [", size, "], got ", shape_of(x));
  check_int32(op, name, x, q);
}

inline void check_cache(const char* op, const char* name, const Tensor& cache, const Tensor& q) {
  const int64_t head_dim = q.size(2);
  require(cache.scalar_type() == ScalarType::BFloat16, op, ": ", name, " must be bfloat16, got ", cache.scalar_type());
  require(cache.dim() == 4 && cache.size(3) == head_dim, op, ": ", name, " must be [num_blocks, kv_heads, block_size, ", head_dim,
          "] like q's heads, got ", shape_of(cache));
  require(cache.size(2) > 0 && cache.size(2) % 16 == 0, op, ": block_size must be a multiple of 16, got ", cache.size(2));
  require(cache.stride(3) == 1 && cache.stride(2) == head_dim, op, ": a block of one head of ", name,
          " must be contiguous, got strides ", cache.stride(2), " and ", cache.stride(3), " in the last two dimensions");
  require(cache.stride(0) % 8 == 0 && cache.stride(1) % 8 == 0 && aligned(cache), op, ": every block of ", name,
          " must start on 16 bytes; use strides that are multiples of 8 elements, and an aligned start");
  check_on_device(op, name, cache, q);
}

// q [tokens, q_heads, head_dim], caches, and one row of block_tables and one length for each of `seqs` sequences.
inline void check_attention(const char* op, const Tensor& q, const Tensor& k_cache, const Tensor& v_cache, const Tensor& block_tables,
                            const Tensor& kv_lens, int64_t seqs) {
  require(q.scalar_type() == ScalarType::BFloat16, op, ": q must be bfloat16, got ", q.scalar_type());
  const int64_t head_dim = q.dim() == 3 ? q.size(2) : 0;
  require(head_dim == 32 || head_dim == 64 || head_dim == 128 || head_dim == 256, op,
          ": q must be [tokens, q_heads, head_dim] with head_dim 32, 64, 128 or 256, got ", shape_of(q));
  require(q.stride(2) == 1, op, ": the last dimension of q must be contiguous (stride 1), got stride ", q.stride(2),
          "; call .contiguous() first");
  check_cache(op, "k_cache", k_cache, q);
  check_cache(op, "v_cache", v_cache, q);
  for (int64_t i = 0; i < 4; ++i)
    require(k_cache.size(i) == v_cache.size(i), op, ": k_cache and v_cache differ: ", shape_of(k_cache), " and ", shape_of(v_cache));
  const int64_t kv_heads = k_cache.size(1);
  require(kv_heads > 0 && q.size(1) > 0 && q.size(1) % kv_heads == 0, op, ": ", q.size(1), " query heads are no multiple of ", kv_heads,
          " key heads");
  require(block_tables.dim() == 2 && block_tables.size(0) == seqs, op, ": block_tables must be [", seqs,
          ", width], one row per sequence, got ", shape_of(block_tables));
  check_int32(op, "block_tables", block_tables, q);
  check_lengths(op, "kv_lens", kv_lens, seqs, q);
}

inline PagedCache paged_cache(const Tensor& k_cache, const Tensor& v_cache, const Tensor& block_tables) {
  constexpr int64_t kBytes = 2;  // of an element
  return {k_cache.const_data_ptr(),
          v_cache.const_data_ptr(),
          k_cache.stride(0) * kBytes,
          k_cache.stride(1) * kBytes,
          v_cache.stride(0) * kBytes,
          v_cache.stride(1) * kBytes,
          static_cast<const int32_t*>(block_tables.const_data_ptr()),
          block_tables.stride(0),
          static_cast<int32_t>(block_tables.size(1)),
          Divisor(static_cast<uint32_t>(k_cache.size(2)))};
}

// q where kernels can read it 16 bytes at a time: itself, or else a contiguous copy.
inline Tensor readable_queries(const Tensor& q) {
  return aligned(q) && q.stride(0) % 8 == 0 && q.stride(1) % 8 == 0 ? q : contiguous_copy(q);
}

inline constexpr double kLog2E = 1.4426950408889634;

}  // namespace qvllm
