// Rotary position embedding: pairs (i, i + half) of each head's first 2 * half elements turn by the token's angles.
#include <limits>

#include "common/launch.cuh"
#include "rotary/head_lanes.cuh"
#include "rotary/rotate.cuh"

namespace qvllm {
namespace {

constexpr int kMostHeads = 4;  // of a thread: 64 registers and 128 bytes of q or k under way

// kLanes threads share kHeads heads of one token, all of q or all of k.
template <int kLanes, int kHeads>
__global__ void __launch_bounds__(kHeadThreads) rotary_kernel(RotaryArguments a) {
  const uint32_t group = blockIdx.x * (kHeadThreads / kLanes) + threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const uint32_t groups = (a.q_heads + a.kv_heads) / kHeads;
  const uint32_t token = group / groups, head = (group - token * groups) * kHeads;
  const bool is_query = head < a.q_heads;
  const uint32_t own_head = is_query ? head : head - a.q_heads;
  const LanePair pair(a.size, lane);
  const int64_t head_stride = is_query ? a.q_head_stride : a.k_head_stride;
  const auto* source = static_cast<const Bf16x8*>(is_query ? a.q : a.k) + own_head * head_stride +
                       token * (is_query ? a.q_token_stride : a.k_token_stride);
  auto* target = static_cast<Bf16x8*>(is_query ? a.q_out : a.k_out) +
                 (int64_t{token} * (is_query ? a.q_heads : a.kv_heads) + own_head) * a.size.vectors;
  wait_for_previous_kernel();
  if (token >= a.tokens || !pair.has_first) return;

  Float8 cos{}, sin{};
  if (pair.rotates) {
    cos = load_float8(a.tables.cos + token * a.tables.cos_stride + lane * kVectorWidth);
    sin = load_float8(a.tables.sin + token * a.tables.sin_stride + lane * kVectorWidth);
  }
  Bf16x8 first[kHeads], second[kHeads] = {};
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    first[h] = source[h * head_stride + pair.first];
    if (pair.has_second) second[h] = source[h * head_stride + pair.second];
  }
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    if (pair.rotates) {
      Float8 left = to_float(first[h]), right = to_float(second[h]);
      rotate(left, right, cos, sin);
      first[h] = to_bf16(left), second[h] = to_bf16(right);
    }
    target[h * a.size.vectors + pair.first] = first[h];
    if (pair.has_second) target[h * a.size.vectors + pair.second] = second[h];
  }
}

}  // namespace

cudaError_t launch_rotary_embedding(const RotaryArguments& a, cudaStream_t stream) {
  const uint32_t heads = a.q_heads + a.kv_heads;
  return with_lanes_and_heads<kMostHeads>(a.size, a.tokens, a.q_heads, a.kv_heads, heads, [&](auto lanes, auto together) {
    constexpr int kLanes = decltype(lanes)::value, kHeads = decltype(together)::value;
    const uint64_t groups = uint64_t{a.tokens} * (heads / kHeads);
    if (groups > std::numeric_limits<int32_t>::max()) return cudaErrorInvalidValue;  // so many heads fill no GPU's memory
    return launch(rotary_kernel<kLanes, kHeads>, static_cast<unsigned>(head_blocks(groups, kLanes)), kHeadThreads, stream, a);
  });
}

}  // namespace qvllm
