// How a head lies over the lanes of a warp, so that both elements of every pair that rotates are in one thread.
//
// Lane i of a head has two vectors of eight elements. The first lanes have vector i of the half that holds the pairs' first
// elements, and its partner in the other half. The lanes after them share what does not rotate: again a vector of the first half
// of that, and one of the second.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "rotary/kernels.h"

namespace qvllm {

constexpr uint32_t kHeadThreads = 128;

template <int kValue>
struct Constant {
  static constexpr int value = kValue;
};

// Calls `run` with the lanes that a head takes, a power of two, as a Constant.
template <typename Run>
cudaError_t with_lanes(const HeadSize& size, Run run) {
  const uint32_t needed = (size.vectors + 1) / 2;
  if (needed <= 4) return run(Constant<4>{});
  if (needed <= 8) return run(Constant<8>{});
  if (needed <= 16) return run(Constant<16>{});
  return run(Constant<32>{});
}

// Calls `run` with the lanes of a head and with how many heads of a token a thread takes: as many as can all be queries, or
// all keys, up to kMost, unless there would be too few threads for the GPU. They share the tables, and wait for memory together.
template <int kMost, typename Run>
cudaError_t with_lanes_and_heads(const HeadSize& size, uint32_t tokens, uint32_t q_heads, uint32_t kv_heads, uint32_t heads,
                                 Run run) {
  constexpr uint64_t kEnoughThreads = 1 << 17;
  return with_lanes(size, [&](auto lanes) {
    const uint64_t threads = uint64_t{tokens} * heads * decltype(lanes)::value;
    const auto fits = [&](uint32_t n) { return q_heads % n == 0 && kv_heads % n == 0 && threads >= n * kEnoughThreads; };
    if constexpr (kMost >= 4) {
      if (fits(4)) return run(lanes, Constant<4>{});
    }
    if (fits(2)) return run(lanes, Constant<2>{});
    return run(lanes, Constant<1>{});
  });
}

// Blocks for `groups` groups of `lanes` threads.
inline uint64_t head_blocks(uint64_t groups, int lanes) {
  const uint64_t per_block = kHeadThreads / lanes;
  return (groups + per_block - 1) / per_block;
}

// The two vectors of a lane; either may be missing.
struct LanePair {
  uint32_t first, second;
  bool has_first, has_second, rotates;

  __device__ __forceinline__ LanePair(const HeadSize& size, uint32_t lane) {
    const uint32_t rest = (size.vectors - 2 * size.half + 1) / 2;  // of what does not rotate, in the lanes' first vectors
    rotates = lane < size.half;
    first = rotates ? lane : lane + size.half;
    second = first + (rotates ? size.half : rest);
    has_first = lane < size.half + rest;
    has_second = has_first && second < size.vectors;
  }
};

}  // namespace qvllm
