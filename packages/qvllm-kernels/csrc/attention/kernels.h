// Attention kernels: plain pointers, everything checked by the caller, launched on the current device.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/divisor.h"

namespace qvllm {

// Keys and values, [num_blocks, kv_heads, block_size, head_dim] each, and which blocks each sequence has. A block of one head
// is contiguous and starts on 16 bytes.
struct PagedCache {
  const void* k;
  const void* v;
  int64_t k_block_bytes, k_head_bytes;  // from one block, and from one head, to the next
  int64_t v_block_bytes, v_head_bytes;
  const int32_t* block_tables;
  int64_t table_stride;
  int32_t table_width;
  Divisor block_size;
};

// The query heads of one key head are worked on eight at a time, since that is how many columns a tensor-core product has.
inline constexpr int kHeadsAtOnce = 8;
// Keys of one sequence that a block of threads takes at a time.
inline constexpr int kChunkKeys = 64;
// The most parts of one sequence: more would make adding them up longer than what they save.
inline constexpr int kMostSplits = 64;

// A unit of work is one part of the keys of an item: a sequence, a key head and up to eight of its query heads. Unit u is part
// u / items of item u % items, and an item is (sequence, key head, slice of query heads), the last one fastest.
struct DecodeArguments {
  PagedCache cache;
  const void* q;
  int64_t q_seq_stride, q_head_stride;  // in elements
  void* out;                            // [seqs, q_heads, head_dim]
  const int32_t* kv_lens;
  float scale_log2;  // the scale times log2(e)
  int32_t group;  // query heads of a key head
  Divisor kv_heads, slices, items;
  int32_t units;
  int32_t splits;           // parts that an item may have; its own length decides how many it has
  int32_t shortest_rounds;  // chunks of keys that a part has at least
  float rounds_per_root;    // and that many for each of the square root of the item's chunks
  // Where the parts of an item meet. All of this is unused with one split.
  int32_t* arrived;  // [items], zero before and after
  float* lse;        // [items, splits, part_heads], base 2
  float* parts;      // [items, splits, part_heads, head_dim]
  int32_t part_heads;
};

cudaError_t launch_decode_attention(int head_dim, int blocks, const DecodeArguments& arguments, cudaStream_t stream);

}  // namespace qvllm
