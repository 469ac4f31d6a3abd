// Sums over neighbouring lanes and over a block. Every thread of the group must take part, and every one gets the sum.
#pragma once

namespace qvllm {

// Lanes [k * kLanes, (k + 1) * kLanes) of a warp form a group; kLanes is a power of two up to 32.
template <int kLanes>
__device__ __forceinline__ float lane_sum(float value) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
  return value;
}

// blockDim.x is a multiple of 32. Uses one barrier, so it may be called once per kernel.
__device__ __forceinline__ float block_sum(float value) {
  __shared__ float warp_sums[32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, num_warps = blockDim.x / 32;
  value = lane_sum<32>(value);
  if (lane == 0) warp_sums[warp] = value;
  __syncthreads();
  return lane_sum<32>(lane < num_warps ? warp_sums[lane] : 0.0f);
}

}  // namespace qvllm
