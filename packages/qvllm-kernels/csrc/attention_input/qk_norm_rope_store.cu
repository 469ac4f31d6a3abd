// From the projection of queries, keys and values to attention: norms of q and k, rotation, and the store of k and v, rounded
// where the separate operators round. Every load is issued before the first is waited for: one latency of memory in all.
#include <limits>

#include "attention_input/kernels.h"
#include "common/launch.cuh"
#include "common/prefetch.cuh"
#include "common/reduce.cuh"
#include "norm/normalise.cuh"
#include "rotary/head_lanes.cuh"
#include "rotary/rotate.cuh"

namespace qvllm {
namespace {

constexpr int kMostHeads = 2;  // of a thread: more would take so many registers that fewer bytes were under way

// Where the heads of a group go, `stride` vectors apart.
struct Target {
  Bf16x8* start;
  int64_t stride;
};

// `head` counts q, k and v on end. A negative slot has no place in a cache.
__device__ __forceinline__ Target target_of(const QkNormRopeStoreArguments& a, uint32_t token, uint32_t head, int64_t slot) {
  if (head < a.q_heads) return {static_cast<Bf16x8*>(a.q) + (int64_t{token} * a.q_heads + head) * a.size.vectors, a.size.vectors};
  const bool is_value = head >= a.q_heads + a.kv_heads;
  const CachePool& pool = is_value ? a.cache.v : a.cache.k;
  const uint32_t block = static_cast<uint32_t>(slot) / a.cache.block_size;
  const uint32_t offset = static_cast<uint32_t>(slot) - block * a.cache.block_size;
  const uint32_t own_head = head - a.q_heads - (is_value ? a.kv_heads : 0);
  return {static_cast<Bf16x8*>(pool.start) + pool.place(block, offset, own_head, a.size.vectors), pool.head_stride};
}

// The two vectors of a head that a lane has, normalised and, if they are pairs, rotated.
template <bool kRoundFirst>
__device__ __forceinline__ void norm_rotate(Bf16x8& first, Bf16x8& second, float scale, const Float8& first_weight,
                                            const Float8& second_weight, float offset, bool rotates, const Float8& cos,
                                            const Float8& sin) {
  first = to_bf16(normalised<kRoundFirst>(to_float(first), scale, first_weight, offset));
  second = to_bf16(normalised<kRoundFirst>(to_float(second), scale, second_weight, offset));
  if (!rotates) return;
  Float8 left = to_float(first), right = to_float(second);
  rotate(left, right, cos, sin);
  first = to_bf16(left), second = to_bf16(right);
}

// kLanes threads share kHeads heads of one token, all of q, or all of k, or all of v.
template <int kLanes, int kHeads, bool kRoundFirst>
__global__ void __launch_bounds__(kHeadThreads) qk_norm_rope_store_kernel(QkNormRopeStoreArguments a) {
  const uint32_t group = blockIdx.x * (kHeadThreads / kLanes) + threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const uint32_t groups = (a.q_heads + 2 * a.kv_heads) / kHeads;
  const uint32_t token = group / groups, head = (group - token * groups) * kHeads;
  const bool is_query = head < a.q_heads, is_value = head >= a.q_heads + a.kv_heads;
  const LanePair pair(a.size, lane);
  const bool live = token < a.tokens, has_first = live && pair.has_first, has_second = live && pair.has_second;
  const auto* source = static_cast<const Bf16x8*>(a.qkv) + token * a.token_stride + head * a.size.vectors;
  const auto* weight = static_cast<const Bf16x8*>(is_query ? a.q_weight : a.k_weight);
  if (blockIdx.x == 0) {
    prefetch_to_l2(a.q_weight, a.size.vectors * sizeof(Bf16x8));
    prefetch_to_l2(a.k_weight, a.size.vectors * sizeof(Bf16x8));
  }
  wait_for_previous_kernel();

  // Groups past the last token stay for the sums, with nothing to load or store.
  // The loads that few threads need come first: what follows a branch would wait for what came before it.
  const int64_t slot = live && !is_query ? a.slots[token] : 0;
  Bf16x8 first[kHeads] = {}, second[kHeads] = {}, first_weight{}, second_weight{};
  Float8 cos{}, sin{};
  if (has_first && !is_value) first_weight = weight[pair.first];
  if (has_second && !is_value) second_weight = weight[pair.second];
  if (live && pair.rotates && !is_value) {
    cos = load_float8(a.tables.cos + token * a.tables.cos_stride + lane * kVectorWidth);
    sin = load_float8(a.tables.sin + token * a.tables.sin_stride + lane * kVectorWidth);
  }
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    if (has_first) first[h] = source[h * a.size.vectors + pair.first];
    if (has_second) second[h] = source[h * a.size.vectors + pair.second];
  }

  float squares[kHeads];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) squares[h] = sum_of_squares(to_float(first[h])) + sum_of_squares(to_float(second[h]));
  lane_sums<kLanes>(squares);
  if (!is_value) {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      pin(first[h]), pin(second[h]);
      const float scale = rsqrtf(squares[h] * a.inverse_dim + a.eps);
      norm_rotate<kRoundFirst>(first[h], second[h], scale, to_float(first_weight), to_float(second_weight), a.weight_offset,
                               pair.rotates, cos, sin);
    }
  }

  if (slot < 0) return;
  const Target target = target_of(a, token, head, slot);
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    if (has_first) target.start[h * target.stride + pair.first] = first[h];
    if (has_second) target.start[h * target.stride + pair.second] = second[h];
  }
}

}  // namespace

cudaError_t launch_qk_norm_rope_store(const QkNormRopeStoreArguments& a, cudaStream_t stream) {
  const uint32_t heads = a.q_heads + 2 * a.kv_heads;
  return with_lanes_and_heads<kMostHeads>(a.size, a.tokens, a.q_heads, a.kv_heads, heads, [&](auto lanes, auto together) {
    constexpr int kLanes = decltype(lanes)::value, kHeads = decltype(together)::value;
    const uint64_t groups = uint64_t{a.tokens} * (heads / kHeads);
    if (groups > std::numeric_limits<int32_t>::max()) return cudaErrorInvalidValue;  // so many heads fill no GPU's memory
    auto* kernel = a.weight_offset == 0.0f ? qk_norm_rope_store_kernel<kLanes, kHeads, true>
                                           : qk_norm_rope_store_kernel<kLanes, kHeads, false>;
    return launch(kernel, static_cast<unsigned>(head_blocks(groups, kLanes)), kHeadThreads, stream, a);
  });
}

}  // namespace qvllm
