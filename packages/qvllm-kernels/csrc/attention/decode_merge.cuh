// How partial results of decode attention become one: those of a block's warps, and those of the parts of a sequence.
#pragma once
#include <cuda_bf16.h>

#include "attention/decode_units.cuh"
#include "common/atomics.cuh"
#include "common/exp2.cuh"

namespace qvllm {

// What each warp of a block knows at the end of a unit.
struct WarpResults {
  float highest[kDecodeWarps][kHeadsAtOnce];
  float total[kDecodeWarps][kHeadsAtOnce];  // 0: the warp had no keys, and its sums are not there
  const float* sums[kDecodeWarps];          // [heads, head_dim]
};

__device__ __forceinline__ void store_bf16x4(__nv_bfloat16* target, float4 v) {
  const __nv_bfloat162 pairs[2] = {__floats2bfloat162_rn(v.x, v.y), __floats2bfloat162_rn(v.z, v.w)};
  *reinterpret_cast<uint2*>(target) = *reinterpret_cast<const uint2*>(pairs);
}

__device__ __forceinline__ void add_scaled(float4& sum, float4 v, float scale) {
  sum.x += v.x * scale, sum.y += v.y * scale, sum.z += v.z * scale, sum.w += v.w * scale;
}

__device__ __forceinline__ float4 scaled(float4 v, float scale) { return {v.x * scale, v.y * scale, v.z * scale, v.w * scale}; }

// The first element of the output of a unit's query heads.
template <int kHeadDim>
__device__ __forceinline__ __nv_bfloat16* unit_output(const DecodeArguments& a, const Unit& unit) {
  const int64_t row = (int64_t{unit.seq} * a.kv_heads.value + unit.kv_head) * a.group + unit.slice * kHeadsAtOnce;
  return static_cast<__nv_bfloat16*>(a.out) + row * kHeadDim;
}

// Adds the warps' results and writes them to the output, or to the unit's place among the parts. Every thread takes part.
template <int kHeadDim>
__device__ __forceinline__ void merge_warps(const DecodeArguments& a, const Unit& unit, int heads, const WarpResults& warps) {
  const int64_t part_row = (int64_t{unit.item} * a.splits + unit.split) * a.part_heads;
#pragma unroll 1
  for (int i = threadIdx.x; i < heads * kHeadDim / 4; i += kDecodeWarps * 32) {
    const int head = i / (kHeadDim / 4);
    float highest = -CUDART_INF_F, total = 0.0f;
#pragma unroll
    for (int warp = 0; warp < kDecodeWarps; ++warp) highest = fmaxf(highest, warps.highest[warp][head]);
    float4 sum{};
#pragma unroll
    for (int warp = 0; warp < kDecodeWarps; ++warp) {
      if (warps.total[warp][head] == 0.0f) continue;
      const float share = exp2_fast(warps.highest[warp][head] - highest);
      total += share * warps.total[warp][head];
      add_scaled(sum, reinterpret_cast<const float4*>(warps.sums[warp])[i], share);
    }
    if (total > 0.0f) sum = scaled(sum, __fdividef(1.0f, total));  // else there is no key
    if (unit.parts == 1) {
      store_bf16x4(unit_output<kHeadDim>(a, unit) + i * 4, sum);
    } else {
      reinterpret_cast<float4*>(a.parts + part_row * kHeadDim)[i] = sum;
      if (i % (kHeadDim / 4) == 0) a.lse[part_row + head] = highest + __log2f(total);
    }
  }
}

// Says that this block has stored its part of an item. True in every thread of the block that is the last to say so.
__device__ __forceinline__ bool is_last_part(const DecodeArguments& a, const Unit& unit) {
  __shared__ bool last;
  if (threadIdx.x == 0) {
    last = count_arrival(a.arrived + unit.item) == unit.parts - 1;
    if (last) a.arrived[unit.item] = 0;  // as the next launch finds it
  }
  __syncthreads();
  return last;
}

// From the log-sum-exps of the parts, what each part counts; `shares` is [parts, part_heads] of shared memory.
__device__ __forceinline__ void share_out(const DecodeArguments& a, const Unit& unit, int heads, float* shares) {
  const float* lse = a.lse + int64_t{unit.item} * a.splits * a.part_heads;
#pragma unroll 1
  for (int i = threadIdx.x; i < unit.parts * a.part_heads; i += kDecodeWarps * 32) shares[i] = __ldcg(lse + i);
  __syncthreads();
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (int head = threadIdx.x / 32; head < heads; head += kDecodeWarps) {
    float values[kMostSplits / 32], highest = -CUDART_INF_F, total = 0.0f;
#pragma unroll
    for (int i = 0; i < kMostSplits / 32; ++i) {
      const int part = i * 32 + lane;
      values[i] = part < unit.parts ? shares[part * a.part_heads + head] : -CUDART_INF_F;
      highest = fmaxf(highest, values[i]);
    }
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, distance));
#pragma unroll
    for (int i = 0; i < kMostSplits / 32; ++i) total += values[i] = exp2_fast(values[i] - highest);
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) total += __shfl_xor_sync(0xffffffffu, total, distance);
#pragma unroll
    for (int i = 0; i < kMostSplits / 32; ++i) {
      const int part = i * 32 + lane;
      if (part < unit.parts) shares[part * a.part_heads + head] = __fdividef(values[i], total);
    }
  }
  __syncthreads();
}

// Adds the parts of an item, in their order, so that the sum is always the same, whichever block does it.
template <int kHeadDim>
__device__ __forceinline__ void combine_parts(const DecodeArguments& a, const Unit& unit, int heads) {
  constexpr int kBatch = 16;  // loads under way at a time
  __shared__ float shares[kMostSplits * kHeadsAtOnce];
  const int row_vectors = a.part_heads * (kHeadDim / 4);
  const auto* parts = reinterpret_cast<const float4*>(a.parts) + int64_t{unit.item} * a.splits * row_vectors;
  // Other blocks wrote the parts: they are read past the first-level cache.
  float4 batch[kBatch];
  const auto read = [&](int i, int first) {
#pragma unroll
    for (int j = 0; j < kBatch; ++j)
      if (first + j < unit.parts) batch[j] = __ldcg(parts + (first + j) * row_vectors + i);
  };
  int i = threadIdx.x;
  if (i < heads * kHeadDim / 4) read(i, 0);
  share_out(a, unit, heads, shares);
#pragma unroll 1
  for (; i < heads * kHeadDim / 4; i += kDecodeWarps * 32) {
    const float* share = shares + i / (kHeadDim / 4);
    if (i != threadIdx.x) read(i, 0);
    float4 sum{};
#pragma unroll 1
    for (int first = 0; first < unit.parts; first += kBatch) {
      if (first > 0) read(i, first);
#pragma unroll
      for (int j = 0; j < kBatch; ++j)
        if (first + j < unit.parts) add_scaled(sum, batch[j], share[(first + j) * a.part_heads]);
    }
    store_bf16x4(unit_output<kHeadDim>(a, unit) + i * 4, sum);
  }
}

}  // namespace qvllm
