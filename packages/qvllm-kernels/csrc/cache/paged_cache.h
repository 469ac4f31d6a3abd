// Where keys and values lie in a paged cache [num_blocks, kv_heads, block_size, head_dim].
#pragma once
#include "common/row_strides.h"

namespace qvllm {

// One of the two caches, in vectors of eight elements.
struct CachePool {
  void* start;
  int64_t block_stride;
  int64_t head_stride;

  // Where a head of a block starts, at an offset into the block.
  QVLLM_HOST_DEVICE int64_t place(uint32_t block, uint32_t offset, uint32_t head, uint32_t vectors) const {
    return block * block_stride + head * head_stride + int64_t{offset} * vectors;
  }
};

struct CacheWriter {
  CachePool k;
  CachePool v;
  uint32_t block_size;
};

}  // namespace qvllm
